// One row of attention, written over the vectors of the simd header that is included before this one: an online softmax
// over blocks of 64 keys at absolute positions, for all query heads of one key head.
//   #include "compute/cpu/simd_avx2.h"
//   #include "compute/cpu/attention_row.h"
#pragma once

#include "compute/cpu/kernels.h"

namespace nib::cpu {
namespace {

constexpr float kInfinity = __builtin_inff();

inline float to_float(float f) { return f; }
inline float to_float(Half h) {
  const uint32_t u = static_cast<uint32_t>(h) << 16;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// kWhole: head_dim is a whole number of vectors.
template <class E, bool kWhole>
class AttentionState {
 public:
  explicit AttentionState(const AttentionRow<E>& a)
      : a_(a),
        width_((a.head_dim + kLanes - 1) / kLanes * kLanes),
        q_(a.scratch),
        sum_(q_ + a.group * width_),
        score_(sum_ + a.group * width_),
        top_(score_ + a.group * kKeyBlock),
        total_(top_ + a.group) {
    for (int64_t g = 0; g < a.group; ++g) {
      top_[g] = -kInfinity, total_[g] = 0;
      for (int64_t d = 0; d < width_; d += kLanes) {
        store(q_ + g * width_ + d, load_part(a.q + g * a.head_dim + d, a.head_dim - d));
        store(sum_ + g * width_ + d, splat(0.0f));
      }
    }
  }

  // The visible keys [begin, end) of the block of keys that starts at `base`.
  void add_block(int64_t base, int64_t begin, int64_t end) {
    const E *k[kKeyBlock], *v[kKeyBlock];
    for_offsets(begin, end,
                [&](int64_t s, int64_t offset) { k[s - base] = a_.k + offset, v[s - base] = a_.v + offset; });
    next_count_ = 0;
    for_offsets(end, smaller(end + kKeyBlock, a_.position + 1),
                [&](int64_t, int64_t offset) { next_[next_count_++] = offset; });
    for_heads<kMaxHeads>(0, base, begin - base, end - base, k, v);
  }

  void finish() {
    for (int64_t g = 0; g < a_.group; ++g) {
      // The sink is a key without a value.
      float scale = 1.0f;
      if (a_.sink) rescale(g, a_.sink[g] > top_[g] ? a_.sink[g] : top_[g], &scale);
      const float total = total_[g] + (a_.sink ? exp1(a_.sink[g] - top_[g]) : 0.0f);
      for (int64_t d = 0; d < width_; d += kLanes) {
        const Vector out = load(sum_ + g * width_ + d) * splat(scale) / splat(total);
        store(a_.out + g * a_.head_dim + d, a_.head_dim - d, out);
      }
    }
  }

 private:
  static float exp1(float x) { return sum(exp(splat(x))) / kLanes; }

  // Calls f(s, offset of key s) for the keys [begin, end).
  template <class F>
  void for_offsets(int64_t begin, int64_t end, const F& f) const {
    for (int64_t s = begin; s < end;) {
      int64_t at = s % a_.block_size, offset = a_.block_table[s / a_.block_size] * a_.block_stride + at * a_.key_stride;
      for (; at < a_.block_size && s < end; ++at, ++s, offset += a_.key_stride) f(s, offset);
    }
  }
  // Blocks lie anywhere: four keys of the next block are asked for while four of this one are worked on.
  void prefetch(int64_t begin) const {
    constexpr int64_t kLine = 64 / sizeof(E);
    for (int64_t i = begin; i < smaller(begin + 4, next_count_); ++i)
      for (int64_t d = 0; d < a_.head_dim; d += kLine) {
        _mm_prefetch(reinterpret_cast<const char*>(a_.k + next_[i] + d), _MM_HINT_T1);
        _mm_prefetch(reinterpret_cast<const char*>(a_.v + next_[i] + d), _MM_HINT_T1);
      }
  }

  static Vector load_part(const E* p, int64_t n) { return kWhole ? load(p) : load(p, n); }

  // Moves head g to a larger maximum; *factor is what its sums must be multiplied by.
  void rescale(int64_t g, float top, float* factor) {
    *factor = top_[g] == top ? 1.0f : exp1(top_[g] - top);
    total_[g] *= *factor;
    top_[g] = top;
  }

  // All heads from g on, as many together as fit the registers.
  template <int kHeads>
  void for_heads(int64_t g, int64_t base, int64_t begin, int64_t end, const E* const* k, const E* const* v) {
    for (; g + kHeads <= a_.group; g += kHeads) add_heads<kHeads>(g, base, begin, end, k, v);
    if constexpr (kHeads > 1) for_heads<kHeads / 2>(g, base, begin, end, k, v);
  }

  template <int kHeads>
  void add_heads(int64_t g, int64_t base, int64_t begin, int64_t end, const E* const* k, const E* const* v) {
    for (int64_t s = begin; s < end; s += 4) {
      if (g == 0) prefetch(s - begin);
      score_keys<kHeads>(g, s, end, k);
    }
    float factor[kHeads];
    for (int h = 0; h < kHeads; ++h) factor[h] = weigh(g + h, base, begin, end);
    constexpr int kWide = 8 / kHeads;  // enough sums at once to hide the latency of each
    int64_t d = 0;
    for (; d + kWide * kLanes <= width_; d += kWide * kLanes) add_values<kHeads, kWide>(g, d, begin, end, factor, v);
    for (; d < width_; d += kLanes) add_values<kHeads, 1>(g, d, begin, end, factor, v);
  }

  // Products of q with keys s .. s+3; those behind the end repeat the last and are not kept.
  template <int kHeads>
  void score_keys(int64_t g, int64_t s, int64_t end, const E* const* k) {
    Vector acc[kHeads][4];
    for (int h = 0; h < kHeads; ++h)
      for (int i = 0; i < 4; ++i) acc[h][i] = splat(0.0f);
    const E* key[4];
    for (int i = 0; i < 4; ++i) key[i] = k[smaller(s + i, end - 1)];
    for (int64_t d = 0; d < width_; d += kLanes) {
      Vector row[4];
      for (int i = 0; i < 4; ++i) row[i] = load_part(key[i] + d, a_.head_dim - d);
      for (int h = 0; h < kHeads; ++h) {
        const Vector q = load(q_ + (g + h) * width_ + d);
        for (int i = 0; i < 4; ++i) acc[h][i] = multiply_add(q, row[i], acc[h][i]);
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      float dot[4];
      _mm_storeu_ps(dot, sum4(acc[h]));
      for (int64_t i = 0; i < smaller(4, end - s); ++i) score_[(g + h) * kKeyBlock + s + i] = dot[i];
    }
  }

  // score = scale * product + bias of the visible keys, minus infinity elsewhere.
  void add_bias(float* score, int64_t g, int64_t base, int64_t begin, int64_t end) {
    const E* profile = a_.profile + g * a_.profile_stride;
    const int64_t distance = a_.position - base;  // of key `base`
    const float beyond = a_.clamp_beyond_extent && a_.extent > 0 ? to_float(profile[a_.extent - 1]) : 0.0f;
    int64_t near = distance - a_.extent + 1;  // the first key with a bias of its own
    near = near < begin ? begin : near > end ? end : near;
    for (int64_t s = 0; s < begin; ++s) score[s] = -kInfinity;
    for (int64_t s = begin; s < near; ++s) score[s] = a_.scale * score[s] + beyond;
    for (int64_t s = near; s < end; ++s) score[s] = a_.scale * score[s] + to_float(profile[distance - s]);
    for (int64_t s = end; s < kKeyBlock; ++s) score[s] = -kInfinity;
  }

  // Turns the products of head g into weights under the new maximum; returns the factor of the old sums.
  float weigh(int64_t g, int64_t base, int64_t begin, int64_t end) {
    float* score = score_ + g * kKeyBlock;
    add_bias(score, g, base, begin, end);
    Vector top = load(score);
    for (int64_t s = kLanes; s < kKeyBlock; s += kLanes) top = larger(top, load(score + s));
    const float block_top = largest(top);
    float factor;
    rescale(g, block_top > top_[g] ? block_top : top_[g], &factor);
    Vector total = splat(0.0f);
    for (int64_t s = 0; s < kKeyBlock; s += kLanes) {
      const Vector weight = exp(load(score + s) - splat(top_[g]));
      store(score + s, weight);
      total = total + weight;
    }
    total_[g] += sum(total);
    return factor;
  }

  // kVectors vectors of columns, from d on, of the weighted sum of values, keys in order.
  template <int kHeads, int kVectors>
  void add_values(int64_t g, int64_t d, int64_t begin, int64_t end, const float* factor, const E* const* v) {
    Vector acc[kHeads][kVectors];
    for (int h = 0; h < kHeads; ++h)
      for (int i = 0; i < kVectors; ++i) acc[h][i] = load(sum_ + (g + h) * width_ + d + i * kLanes) * splat(factor[h]);
    for (int64_t s = begin; s < end; ++s) {
      Vector weight[kHeads];
      for (int h = 0; h < kHeads; ++h) weight[h] = splat(score_[(g + h) * kKeyBlock + s]);
      for (int i = 0; i < kVectors; ++i) {
        const Vector value = load_part(v[s] + d + i * kLanes, a_.head_dim - d - i * kLanes);
        for (int h = 0; h < kHeads; ++h) acc[h][i] = multiply_add(weight[h], value, acc[h][i]);
      }
    }
    for (int h = 0; h < kHeads; ++h)
      for (int i = 0; i < kVectors; ++i) store(sum_ + (g + h) * width_ + d + i * kLanes, acc[h][i]);
  }

  const AttentionRow<E>& a_;
  int64_t next_[kKeyBlock];  // offsets of the keys of the next block
  int64_t next_count_ = 0;
  int64_t width_;        // head_dim, rounded up to whole vectors
  float *q_, *sum_;      // [group, width_]
  float* score_;         // [group, kKeyBlock]
  float *top_, *total_;  // [group]
};

template <class E, bool kWhole>
void attend_over_blocks(const AttentionRow<E>& a) {
  AttentionState<E, kWhole> state(a);
  for (int64_t base = a.first / kKeyBlock * kKeyBlock; base <= a.position; base += kKeyBlock)
    state.add_block(base, base > a.first ? base : a.first, smaller(base + kKeyBlock, a.position + 1));
  state.finish();
}

template <class E>
void attend(const AttentionRow<E>& a) {
  a.head_dim % kLanes == 0 ? attend_over_blocks<E, true>(a) : attend_over_blocks<E, false>(a);
}

}  // namespace
}  // namespace nib::cpu
