// The attention of one block at one key head, written over the vectors of the simd header that is included before this
// one: an online softmax over blocks of 64 keys at absolute positions, then over the block's own rows. Every query sees
// every key, so each block of keys is unpacked to floats once and multiplied with all queries like a matrix.
//   #include "compute/cpu/simd_avx2.h"
//   #include "compute/cpu/block_attention_head.h"
#pragma once

#include "compute/cpu/block_kernels.h"
#include "compute/cpu/to_float.h"

namespace nib::cpu {
namespace {

constexpr float kInfinity = __builtin_inff();

inline __m128 load4(const float* p) { return _mm_loadu_ps(p); }
inline __m128 load4(const Half* p) {
  const __m128i h = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), h));
}
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline float exp1(float x) { return exp(splat(x))[0]; }

// Keys [begin, end) of a block of up to 64: lane i is key i.
template <class E>
struct KeyBlock {
  int64_t begin = 0, end = 0;
  const E *k[kKeyBlock], *v[kKeyBlock];
};

template <class E>
class BlockAttention {
 public:
  explicit BlockAttention(const BlockAttentionHead<E>& a)
      : a_(a),
        queries_(a.slots * a.group),
        width_((a.head_dim + kLanes - 1) / kLanes * kLanes),
        q_(a.scratch),
        sum_(q_ + queries_ * width_),
        keys_(sum_ + queries_ * width_),
        values_(keys_ + kKeyBlock * width_),
        top_(values_ + kKeyBlock * width_),
        total_(top_ + queries_) {
    for (int64_t i = 0; i < queries_; ++i) {
      const E* q = a.q + i / a.group * a.q_stride + i % a.group * a.head_dim;
      top_[i] = -kInfinity, total_[i] = 0;
      for (int64_t d = 0; d < width_; d += kLanes) {
        store(q_ + i * width_ + d, load(q + d, a.head_dim - d) * splat(a.scale));
        store(sum_ + i * width_ + d, splat(0.0f));
      }
    }
  }

  void add_context() {
    if (a_.context_begin == a_.context_end) return;
    for (int64_t base = a_.context_begin / kKeyBlock * kKeyBlock; base < a_.context_end; base += kKeyBlock) {
      KeyBlock<E> keys;
      keys.begin = base > a_.context_begin ? 0 : a_.context_begin - base;
      keys.end = smaller(kKeyBlock, a_.context_end - base);
      for (int64_t i = keys.begin; i < keys.end; ++i) {
        const int64_t s = base + i;
        const int64_t offset = a_.block_table[s / a_.block_size] * a_.block_stride + s % a_.block_size * a_.key_stride;
        keys.k[i] = a_.cached_k + offset, keys.v[i] = a_.cached_v + offset;
      }
      add(keys);
    }
  }

  void add_own_rows() {
    for (int64_t base = 0; base < a_.slots; base += kKeyBlock) {
      KeyBlock<E> keys;
      keys.end = smaller(kKeyBlock, a_.slots - base);
      for (int64_t i = 0; i < keys.end; ++i)
        keys.k[i] = a_.k + (base + i) * a_.k_stride, keys.v[i] = a_.v + (base + i) * a_.v_stride;
      add(keys);
    }
  }

  void finish() {
    for (int64_t i = 0; i < queries_; ++i) {
      E* out = a_.out + i / a_.group * a_.out_stride + i % a_.group * a_.head_dim;
      for (int64_t d = 0; d < a_.head_dim; d += kLanes)
        store(out + d, a_.head_dim - d, load(sum_ + i * width_ + d) / splat(total_[i]));
    }
  }

 private:
  void add(const KeyBlock<E>& keys) {
    unpack(keys);
    for_queries<kMaxHeads>(0, keys.begin, keys.end);
  }

  // keys_: [head_dim, 64]   values_: [64, width_]
  void unpack(const KeyBlock<E>& keys) {
    for (int64_t i = keys.begin; i < keys.end; ++i)
      for (int64_t d = 0; d < width_; d += kLanes)
        store(values_ + i * width_ + d, load(keys.v[i] + d, a_.head_dim - d));
    for (int64_t i = keys.begin / 4 * 4; i < keys.end; i += 4) {
      const E* k[4];  // lanes that are not visible repeat a visible key; their scores are not kept
      for (int64_t j = 0; j < 4; ++j) k[j] = keys.k[i + j < keys.begin ? keys.begin : smaller(i + j, keys.end - 1)];
      int64_t d = 0;
      for (; d + 4 <= a_.head_dim; d += 4) {
        __m128 r0 = load4(k[0] + d), r1 = load4(k[1] + d), r2 = load4(k[2] + d), r3 = load4(k[3] + d);
        _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
        float* to = keys_ + d * kKeyBlock + i;
        _mm_storeu_ps(to, r0), _mm_storeu_ps(to + kKeyBlock, r1);
        _mm_storeu_ps(to + 2 * kKeyBlock, r2), _mm_storeu_ps(to + 3 * kKeyBlock, r3);
      }
      for (; d < a_.head_dim; ++d)
        for (int64_t j = 0; j < 4; ++j) keys_[d * kKeyBlock + i + j] = to_float(k[j][d]);
    }
  }

  // All queries from i on, as many together as fit the registers.
  template <int kRows>
  void for_queries(int64_t i, int64_t begin, int64_t end) {
    for (; i + kRows <= queries_; i += kRows) add_to_queries<kRows>(i, begin, end);
    if constexpr (kRows > 1) for_queries<kRows / 2>(i, begin, end);
  }

  template <int kRows>
  void add_to_queries(int64_t i, int64_t begin, int64_t end) {
    float score[kRows * kKeyBlock], factor[kRows];
    int64_t s = begin / kLanes * kLanes;
    for (; s + 4 * kLanes <= kKeyBlock && s + 3 * kLanes < end; s += 4 * kLanes) score_keys<kRows, 4>(i, s, score);
    for (; s < end; s += kLanes) score_keys<kRows, 1>(i, s, score);
    for (int r = 0; r < kRows; ++r) factor[r] = weigh(i + r, score + r * kKeyBlock, begin, end);
    int64_t d = 0;
    for (; d + 4 * kLanes <= width_; d += 4 * kLanes) add_values<kRows, 4>(i, d, begin, end, score, factor);
    for (; d + 2 * kLanes <= width_; d += 2 * kLanes) add_values<kRows, 2>(i, d, begin, end, score, factor);
    for (; d < width_; d += kLanes) add_values<kRows, 1>(i, d, begin, end, score, factor);
  }

  // Products with kVectors vectors of keys from lane s on.
  template <int kRows, int kVectors>
  void score_keys(int64_t i, int64_t s, float* score) const {
    Vector acc[kRows][kVectors];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) acc[r][v] = splat(0.0f);
    for (int64_t d = 0; d < a_.head_dim; ++d) {
      Vector key[kVectors];
      for (int v = 0; v < kVectors; ++v) key[v] = load(keys_ + d * kKeyBlock + s + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Vector q = splat(q_[(i + r) * width_ + d]);
        for (int v = 0; v < kVectors; ++v) acc[r][v] = multiply_add(q, key[v], acc[r][v]);
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) store(score + r * kKeyBlock + s + v * kLanes, acc[r][v]);
  }

  // Turns the products of query i into weights under the new maximum; returns the factor of the old sums. Vectors
  // without a visible key would add zeros only.
  float weigh(int64_t i, float* score, int64_t begin, int64_t end) {
    const int64_t first = begin / kLanes * kLanes, last = (end + kLanes - 1) / kLanes * kLanes;
    for (int64_t s = first; s < begin; ++s) score[s] = -kInfinity;
    for (int64_t s = end; s < last; ++s) score[s] = -kInfinity;
    Vector top = load(score + first);
    for (int64_t s = first + kLanes; s < last; s += kLanes) top = larger(top, load(score + s));
    const float block_top = largest(top), new_top = block_top > top_[i] ? block_top : top_[i];
    const float factor = top_[i] == new_top ? 1.0f : exp1(top_[i] - new_top);
    top_[i] = new_top;
    Vector total = splat(0.0f);
    for (int64_t s = first; s < last; s += kLanes) {
      const Vector weight = exp(load(score + s) - splat(new_top));
      store(score + s, weight);
      total = total + weight;
    }
    total_[i] = total_[i] * factor + sum(total);
    return factor;
  }

  // kVectors vectors of columns, from d on, of the weighted sum of values, keys in order.
  template <int kRows, int kVectors>
  void add_values(int64_t i, int64_t d, int64_t begin, int64_t end, const float* score, const float* factor) {
    Vector acc[kRows][kVectors];
    float* sums = sum_ + i * width_ + d;
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) acc[r][v] = load(sums + r * width_ + v * kLanes) * splat(factor[r]);
    for (int64_t s = begin; s < end; ++s) {
      Vector value[kVectors];
      for (int v = 0; v < kVectors; ++v) value[v] = load(values_ + s * width_ + d + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Vector weight = splat(score[r * kKeyBlock + s]);
        for (int v = 0; v < kVectors; ++v) acc[r][v] = multiply_add(weight, value[v], acc[r][v]);
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) store(sums + r * width_ + v * kLanes, acc[r][v]);
  }

  const BlockAttentionHead<E>& a_;
  int64_t queries_, width_;  // width_: head_dim, rounded up to whole vectors
  float *q_, *sum_;          // [queries_, width_]
  float *keys_, *values_;    // of the block of keys in hand
  float *top_, *total_;      // [queries_]
};

template <class E>
void attend_block(const BlockAttentionHead<E>& a) {
  BlockAttention<E> attention(a);
  attention.add_context();
  attention.add_own_rows();
  attention.finish();
}

}  // namespace
}  // namespace nib::cpu
