// One row of attention, written over the vectors of the simd header that is included before this one: an online softmax
// over blocks of 64 keys at absolute positions, for all query heads of one key head.
//   #include "compute/cpu/simd_avx2.h"
//   #include "compute/cpu/attention_row.h"
#pragma once

#include "compute/cpu/to_float.h"

namespace nib::cpu {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr int64_t kColumns = 2 * kLanes;  // of a head that are worked on together

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t round_down(int64_t n, int64_t to) { return n / to * to; }

// kWhole: head_dim is a whole number of kColumns.
template <class E, bool kWhole>
class AttentionState {
 public:
  explicit AttentionState(const AttentionRow<E>& a)
      : a_(a),
        width_((a.head_dim + kColumns - 1) / kColumns * kColumns),
        q_(a.scratch),
        sum_(q_ + a.group * width_),
        score_(sum_ + a.group * width_),
        total_(score_ + a.group * kKeyBlock),
        top_(total_ + a.group * kLanes) {
    for (int64_t g = 0; g < a.group; ++g) {
      top_[g] = -kInfinity;
      store(total_ + g * kLanes, splat(0.0f));
      for (int64_t d = 0; d < width_; d += kColumns) {
        store_query(q_ + g * width_ + d, a.q + g * a.head_dim + d, left(d));
        store(sum_ + g * width_ + d, splat(0.0f));
        store(sum_ + g * width_ + d + kLanes, splat(0.0f));
      }
    }
    find_keys(round_down(a.first, kKeyBlock), a.first);
  }

  // The visible keys [begin, end) of the block of keys that starts at `base`; blocks come in order.
  void add_block(int64_t base, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < kKeyBlock; ++i) key_[i] = next_[i];
    next_count_ = 0;
    if (end <= a_.position) find_keys(end, end);
    for_heads<kMaxHeads>(0, base, begin - base, end - base);
  }

  void finish() {
    for (int64_t g = 0; g < a_.group; ++g) {
      // The sink is a key without a value.
      float scale = 1.0f;
      if (a_.sink) scale = rescale(g, a_.sink[g] > top_[g] ? a_.sink[g] : top_[g]);
      const float total = sum(load(total_ + g * kLanes)) + (a_.sink ? exp1(a_.sink[g] - top_[g]) : 0.0f);
      for (int64_t d = 0; d < width_; d += kColumns) {
        const float* from = sum_ + g * width_ + d;
        store_columns(a_.out + g * a_.head_dim + d, left(d),
                      {load(from) * splat(scale) / splat(total), load(from + kLanes) * splat(scale) / splat(total)});
      }
    }
  }

 private:
  static float exp1(float x) { return first(exp(splat(x))); }

  // Columns of a head from d on; a constant where the compiler can drop the tails.
  int64_t left(int64_t d) const { return kWhole ? kColumns : a_.head_dim - d; }

  // Where the keys of the block at `base` lie, from `begin` on.
  void find_keys(int64_t base, int64_t begin) {
    const int64_t end = smaller(base + kKeyBlock, a_.position + 1);
    for (int64_t s = begin; s < end;) {
      int64_t at = s % a_.block_size, offset = a_.block_table[s / a_.block_size] * a_.block_stride + at * a_.key_stride;
      for (; at < a_.block_size && s < end; ++at, ++s, offset += a_.key_stride) next_[s - base] = offset;
    }
    next_count_ = end - base;
  }
  // Blocks lie anywhere: keys of the next block are asked for while as many of this one are worked on.
  void prefetch(int64_t begin, int64_t count) const {
    constexpr int64_t kLine = 64 / sizeof(E);
    for (int64_t i = begin; i < smaller(begin + count, next_count_); ++i)
      for (int64_t d = 0; d < a_.head_dim; d += kLine) {
        _mm_prefetch(reinterpret_cast<const char*>(a_.k + next_[i] + d), _MM_HINT_T1);
        _mm_prefetch(reinterpret_cast<const char*>(a_.v + next_[i] + d), _MM_HINT_T1);
      }
  }

  // Moves head g to a larger maximum; returns what its sums must be multiplied by.
  float rescale(int64_t g, float top) {
    if (top_[g] == top) return 1.0f;
    const float factor = exp1(top_[g] - top);
    store(total_ + g * kLanes, load(total_ + g * kLanes) * splat(factor));
    top_[g] = top;
    return factor;
  }

  // All heads from g on, as many together as fit the registers.
  template <int kHeads>
  void for_heads(int64_t g, int64_t base, int64_t begin, int64_t end) {
    for (; g + kHeads <= a_.group; g += kHeads) add_heads<kHeads>(g, base, begin, end);
    if constexpr (kHeads > 1) for_heads<kHeads / 2>(g, base, begin, end);
  }

  template <int kHeads>
  void add_heads(int64_t g, int64_t base, int64_t begin, int64_t end) {
    constexpr int64_t kKeys = kLanes / kHeads;
    for (int64_t s = round_down(begin, kKeys); s < end; s += kKeys) {
      if (g == 0) prefetch(s, kKeys);
      score_keys<kHeads>(g, s, begin, end);
    }
    float factor[kHeads];
    for (int h = 0; h < kHeads; ++h) factor[h] = weigh(g + h, base, begin, end);
    constexpr int kWide = kMaxHeads / kHeads;  // enough sums at once to hide the latency of each
    int64_t d = 0;
    for (; d + kWide * kColumns <= width_; d += kWide * kColumns) add_values<kHeads, kWide>(g, d, begin, end, factor);
    for (; d < width_; d += kColumns) add_values<kHeads, 1>(g, d, begin, end, factor);
  }

  // Products of the queries with as many keys from s on as fill a vector; those outside [begin, end) are of another
  // key.
  template <int kHeads>
  void score_keys(int64_t g, int64_t s, int64_t begin, int64_t end) {
    constexpr int kKeys = kLanes / kHeads;
    const E* key[kKeys];
    for (int i = 0; i < kKeys; ++i) key[i] = a_.k + key_[s + i < begin ? begin : smaller(s + i, end - 1)];
    Vector acc[kHeads * kKeys];
    for (Vector& v : acc) v = splat(0.0f);
    for (int64_t d = 0; d < width_; d += kColumns)
      for (int i = 0; i < kKeys; ++i)
        for (int h = 0; h < kHeads; ++h)
          acc[h * kKeys + i] = dot(acc[h * kKeys + i], q_ + (g + h) * width_ + d, key[i] + d, left(d));
    float product[kLanes];
    store(product, sum_each(acc));
    for (int h = 0; h < kHeads; ++h)
      __builtin_memcpy(score_ + (g + h) * kKeyBlock + s, product + h * kKeys, sizeof(float) * kKeys);
  }

  // scale * product + bias of the keys s, s+1, ...; minus infinity outside [begin, end).
  Vector biased(const float* score, int64_t g, int64_t base, int64_t s, int64_t begin, int64_t end) const {
    const E* profile = a_.profile + g * a_.profile_stride;
    const int64_t distance = a_.position - base - s, last = distance - kLanes + 1;  // of the first lane, of the last
    const float beyond = a_.clamp_beyond_extent && a_.extent > 0 ? to_float(profile[a_.extent - 1]) : 0.0f;
    Vector bias = splat(0.0f);  // without an extent there is no profile
    if (a_.extent > 0) bias = load_reversed(profile + last, -last, a_.extent - last);
    if (distance >= a_.extent) bias = select(bias, distance - a_.extent + 1, kLanes, splat(beyond));
    return select(multiply_add(splat(a_.scale), load(score + s), bias), begin - s, end - s, splat(-kInfinity));
  }

  // Turns the products of head g into weights under the new maximum; returns the factor of the old sums.
  float weigh(int64_t g, int64_t base, int64_t begin, int64_t end) {
    float* score = score_ + g * kKeyBlock;
    const int64_t from = round_down(begin, kLanes);
    Vector top = splat(-kInfinity);
    for (int64_t s = from; s < end; s += kLanes) {
      const Vector v = biased(score, g, base, s, begin, end);
      store(score + s, v);
      top = larger(top, v);
    }
    const float block_top = largest(top);
    const float factor = rescale(g, block_top > top_[g] ? block_top : top_[g]);
    Vector total = load(total_ + g * kLanes);
    for (int64_t s = from; s < end; s += kLanes) {
      const Vector weight = exp(load(score + s) - splat(top_[g]));
      store(score + s, weight);
      total = total + weight;
    }
    store(total_ + g * kLanes, total);
    return factor;
  }

  // kWide pieces of columns, from d on, of the weighted sum of values, keys in order.
  template <int kHeads, int kWide>
  void add_values(int64_t g, int64_t d, int64_t begin, int64_t end, const float* factor) {
    Vector acc[kHeads][2 * kWide];
    for (int h = 0; h < kHeads; ++h)
      for (int i = 0; i < 2 * kWide; ++i) acc[h][i] = load(sum_ + (g + h) * width_ + d + i * kLanes) * splat(factor[h]);
    for (int64_t s = begin; s < end; ++s) {
      const E* value = a_.v + key_[s] + d;
      Vector weight[kHeads];
      for (int h = 0; h < kHeads; ++h) weight[h] = splat(score_[(g + h) * kKeyBlock + s]);
      for (int i = 0; i < kWide; ++i) {
        const Columns c = load_columns(value + i * kColumns, left(d + i * kColumns));
        for (int h = 0; h < kHeads; ++h) {
          acc[h][2 * i] = multiply_add(weight[h], c.a, acc[h][2 * i]);
          acc[h][2 * i + 1] = multiply_add(weight[h], c.b, acc[h][2 * i + 1]);
        }
      }
    }
    for (int h = 0; h < kHeads; ++h)
      for (int i = 0; i < 2 * kWide; ++i) store(sum_ + (g + h) * width_ + d + i * kLanes, acc[h][i]);
  }

  const AttentionRow<E>& a_;
  int64_t key_[kKeyBlock], next_[kKeyBlock];  // offsets of the keys of this block and of the next
  int64_t next_count_ = 0;                    // index behind the last one of the next
  int64_t width_;                             // head_dim, rounded up to kColumns
  float *q_, *sum_;                           // [group, width_]
  float* score_;                              // [group, kKeyBlock]
  float* total_;                              // [group, kLanes]
  float* top_;                                // [group]
};

template <class E, bool kWhole>
void attend_over_blocks(const AttentionRow<E>& a) {
  AttentionState<E, kWhole> state(a);
  for (int64_t base = round_down(a.first, kKeyBlock); base <= a.position; base += kKeyBlock)
    state.add_block(base, base > a.first ? base : a.first, smaller(base + kKeyBlock, a.position + 1));
  state.finish();
}

template <class E>
void attend(const AttentionRow<E>& a) {
  a.head_dim % kColumns == 0 ? attend_over_blocks<E, true>(a) : attend_over_blocks<E, false>(a);
}

}  // namespace
}  // namespace nib::cpu
