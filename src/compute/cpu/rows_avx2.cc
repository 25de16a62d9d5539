// Operations that work on one row at a time: norms, gates, activations, convolutions, mixtures. All wider instruction
// sets use these too: they wait for memory, not for lanes.
#include "compute/cpu/simd_avx2.h"

namespace nib::cpu::avx2 {

namespace {

float to_float(float f) { return f; }
float to_float(Half h) {
  const uint32_t u = static_cast<uint32_t>(h) << 16;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}

// sum_i f(i), f giving eight terms from column i on; four partial sums, then one tree.
template <class F>
float sum_columns(int64_t n, const F& f) {
  constexpr int64_t kStep = 4 * kLanes;
  __m256 acc[4] = {};
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep)
    for (int p = 0; p < 4; ++p) acc[p] = _mm256_add_ps(acc[p], f(i + p * kLanes));
  for (int p = 0; p < 4; ++p)
    if (i + p * kLanes < n) acc[p] = _mm256_add_ps(acc[p], f(i + p * kLanes));
  return sum(_mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3])));
}

template <class E>
float sum_squares(const E* x, int64_t n) {
  return sum_columns(n, [&](int64_t i) {
    const __m256 v = load(x + i, n - i);
    return _mm256_mul_ps(v, v);
  });
}

// Even and odd columns of 16, each in order.
struct Pairs {
  __m256 even, odd;
};
Pairs split_pairs(__m256 low, __m256 high) {
  const auto in_order = [](__m256 v) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), _MM_SHUFFLE(3, 1, 2, 0)));
  };
  return {in_order(_mm256_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0))),
          in_order(_mm256_shuffle_ps(low, high, _MM_SHUFFLE(3, 1, 3, 1)))};
}

float inverse_root(float mean_square, float eps) { return 1.0f / __builtin_sqrtf(mean_square + eps); }

__m256 gate_value(__m256 g, Gate act) {
  switch (act) {
    case Gate::kSigmoid:
      return sigmoid(g);
    case Gate::kSilu:
      return _mm256_mul_ps(g, sigmoid(g));
    case Gate::kTanh:
      return tanh(g);
    case Gate::kNone:
      return g;
  }
  return g;
}

}  // namespace

template <class Y, class X>
void rms_norm_row(Y* y, const X* x, const Y* weight, int64_t n, float eps) {
  const __m256 r = splat(inverse_root(sum_squares(x, n) / static_cast<float>(n), eps));
  for (int64_t i = 0; i < n; i += kLanes) {
    const __m256 v = _mm256_mul_ps(load(x + i, n - i), r);
    store(y + i, n - i, weight ? _mm256_mul_ps(v, load(weight + i, n - i)) : v);
  }
}

template <class E>
void add_row(E* y, const E* x, const E* delta, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes)
    store(y + i, n - i, _mm256_add_ps(load(x + i, n - i), load(delta + i, n - i)));
}

template <class E>
void scale_row(E* x, int64_t n, float factor) {
  for (int64_t i = 0; i < n; i += kLanes) store(x + i, n - i, _mm256_mul_ps(load(x + i, n - i), splat(factor)));
}

template <class E>
void clip_row(E* x, const E* scale, int64_t n, float limit) {
  const auto scaled = [&](int64_t i) {
    const __m256 v = load(x + i, n - i);
    return scale ? _mm256_mul_ps(v, load(scale + i, n - i)) : v;
  };
  const float squares = sum_columns(n, [&](int64_t i) { return _mm256_mul_ps(scaled(i), scaled(i)); });
  const float length = __builtin_sqrtf(squares);
  const __m256 factor = splat(limit > 0 && length > limit ? limit / length : 1.0f);
  for (int64_t i = 0; i < n; i += kLanes) store(x + i, n - i, _mm256_mul_ps(scaled(i), factor));
}

template <class E>
void gate_row(E* y, const E* gate, int64_t n, Gate act) {
  for (int64_t i = 0; i < n; i += kLanes)
    store(y + i, n - i, _mm256_mul_ps(load(y + i, n - i), gate_value(load(gate + i, n - i), act)));
}

template <class E>
void gate_head(E* y, E gate, int64_t n, Gate act) {
  const __m256 g = gate_value(splat(to_float(gate)), act);
  for (int64_t i = 0; i < n; i += kLanes) store(y + i, n - i, _mm256_mul_ps(load(y + i, n - i), g));
}

template <class E>
void activation_row(E* y, const E* h, int64_t n, const ActivationRow& a) {
  const auto capped = [](__m256 x, float cap) {
    return cap > 0 ? _mm256_mul_ps(splat(cap), tanh(_mm256_div_ps(x, splat(cap)))) : x;
  };
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = 2 * (n - i);
    const __m256 low = load(h + 2 * i, left);
    const __m256 high = left > kLanes ? load(h + 2 * i + kLanes, left - kLanes) : _mm256_setzero_ps();
    const auto [gate, up] = split_pairs(low, high);  // g0 u0 g1 u1 ...
    const __m256 g = a.situ ? capped(gate, a.beta) : gate, u = a.situ ? capped(up, a.linear_beta) : up;
    const __m256 act = _mm256_mul_ps(_mm256_mul_ps(g, sigmoid(gate)), u);
    store(y + i, n - i, _mm256_mul_ps(splat(a.weight), act));
  }
}

namespace {

// Taps of n channels, which lie together channel by channel, turned around: tap j of eight channels in taps[j].
template <class E>
void load_taps(__m256* taps, const E* fixed, int64_t width, int64_t n) {
  for (int64_t j = 0; j < width; ++j) {
    alignas(32) float one[kLanes] = {};
    for (int64_t l = 0; l < kLanes && l < n; ++l) one[l] = to_float(fixed[l * width + j]);
    taps[j] = _mm256_load_ps(one);
  }
}
void load_four_taps(__m256* taps, const Half* fixed) {
  const Pairs p = split_pairs(_mm256_loadu_ps(reinterpret_cast<const float*>(fixed)),
                              _mm256_loadu_ps(reinterpret_cast<const float*>(fixed + 16)));
  const __m256i a = _mm256_castps_si256(p.even), b = _mm256_castps_si256(p.odd);
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  taps[0] = _mm256_castsi256_ps(_mm256_slli_epi32(a, 16));
  taps[1] = _mm256_castsi256_ps(_mm256_and_si256(a, high));
  taps[2] = _mm256_castsi256_ps(_mm256_slli_epi32(b, 16));
  taps[3] = _mm256_castsi256_ps(_mm256_and_si256(b, high));
}

constexpr int64_t kMaxWidth = 16;

// Columns [begin, end) of one head, or of all channels where no tap is generated. Terms in the order of the formula.
template <class E>
void conv_columns(const ConvRow<E>& c, int64_t begin, int64_t end, const E* generated) {
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t n = end - i;
    __m256 taps[kMaxWidth] = {};
    bool done = false;
    if constexpr (sizeof(E) == 2)
      if ((done = c.fixed && c.width == 4 && n >= kLanes)) load_four_taps(taps, c.fixed + i * 4);
    if (c.fixed && !done) load_taps(taps, c.fixed + i * c.width, c.width, n);
    __m256 acc = _mm256_setzero_ps();
    for (int64_t j = 0; j < c.width; ++j) {
      const __m256 tap = generated ? _mm256_add_ps(taps[j], splat(to_float(generated[j]))) : taps[j];
      const __m256 x = c.inputs[j] ? load(c.inputs[j] + i, n) : _mm256_setzero_ps();
      acc = _mm256_add_ps(acc, _mm256_mul_ps(tap, x));
    }
    if (c.skip) acc = _mm256_add_ps(acc, load(c.inputs[c.width - 1] + i, n));
    if (c.residual) acc = _mm256_add_ps(rounded<E>(acc), load(c.residual + i, n));
    store(c.y + i, n, acc);
  }
}

}  // namespace

template <class E>
void conv_row(const ConvRow<E>& c) {
  if (!c.generated) return conv_columns<E>(c, 0, c.channels, nullptr);
  for (int64_t h = 0; h < c.channels / c.head_dim; ++h)
    conv_columns(c, h * c.head_dim, (h + 1) * c.head_dim, c.generated + h * c.width);
}

template <class E>
void depth_mix_row(const DepthMixRow<E>& m) {
  const int64_t n = m.hidden;
  float r[16];
  for (int j = 0; j < m.num_sources; ++j)
    r[j] = inverse_root(sum_squares(m.sources[j], n) / static_cast<float>(n), m.source_eps);
  for (int o = 0; o < m.num_outputs; ++o) {
    float a[kLanes * 2] = {1.0f};
    if (const float* q = m.queries[o]) {
      float top = -__builtin_inff(), total = 0;
      for (int j = 0; j < m.num_sources; ++j) {
        const float dot =
            sum_columns(n, [&](int64_t i) { return _mm256_mul_ps(load(q + i, n - i), load(m.sources[j] + i, n - i)); });
        a[j] = m.logit_scale * (dot * r[j]);
        top = a[j] > top ? a[j] : top;
      }
      for (int j = 0; j < 16; j += kLanes) store(a + j, exp(_mm256_sub_ps(load(a + j), splat(top))));
      for (int j = 0; j < m.num_sources; ++j) total += a[j];
      for (int j = 0; j < m.num_sources; ++j) a[j] /= total;
    }
    const float squares = sum_columns(n, [&](int64_t i) {
      __m256 h = _mm256_setzero_ps();
      for (int j = 0; j < m.num_sources; ++j) h = _mm256_fmadd_ps(splat(a[j]), load(m.sources[j] + i, n - i), h);
      store(m.scratch + i, n - i, h);
      return _mm256_mul_ps(h, h);
    });
    const __m256 scale = splat(inverse_root(squares / static_cast<float>(n), m.norm_eps));
    for (int64_t i = 0; i < n; i += kLanes) {
      const __m256 h = _mm256_mul_ps(load(m.scratch + i, n - i), scale);
      store(m.outputs[o] + i, n - i, _mm256_mul_ps(h, load(m.gains[o] + i, n - i)));
    }
  }
}

namespace {

// kHeads heads share the loads of the table; each output adds its terms in the order of d.
template <int kHeads, class E>
void profile_heads(E* profile, const E* r, const E* table, int64_t table_stride, int64_t d_rel, int64_t columns) {
  for (int64_t e = 0; e < columns; e += kLanes) {
    __m256 acc[kHeads] = {};
    for (int64_t d = 0; d < d_rel; ++d) {
      const __m256 w = load(table + d * table_stride + e, columns - e);
      for (int h = 0; h < kHeads; ++h) acc[h] = _mm256_fmadd_ps(splat(to_float(r[h * d_rel + d])), w, acc[h]);
    }
    for (int h = 0; h < kHeads; ++h) store(profile + h * columns + e, columns - e, acc[h]);
  }
}

}  // namespace

template <class E>
void profile_row(E* profile, const E* r, const E* table, int64_t table_stride, int64_t heads, int64_t d_rel,
                 int64_t columns) {
  int64_t h = 0;
  for (; h + 4 <= heads; h += 4)
    profile_heads<4>(profile + h * columns, r + h * d_rel, table, table_stride, d_rel, columns);
  for (; h < heads; ++h) profile_heads<1>(profile + h * columns, r + h * d_rel, table, table_stride, d_rel, columns);
}

void soft_cap_row(float* x, int64_t n, float mup, float cap) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const __m256 z = _mm256_div_ps(load(x + i, n - i), splat(mup));
    store(x + i, n - i, cap > 0 ? _mm256_mul_ps(splat(cap), tanh(_mm256_div_ps(z, splat(cap)))) : z);
  }
}

void sigmoid_row(float* y, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store(y + i, n - i, sigmoid(load(x + i, n - i)));
}

template <class E, class P>
void combine_row(E* y, const P* parts, const int32_t* slots, const float* factors, int64_t count, int64_t n,
                 bool accumulate) {
  for (int64_t i = 0; i < n; i += kLanes) {
    __m256 sum = accumulate ? load(y + i, n - i) : _mm256_setzero_ps();
    for (int64_t j = 0; j < count; ++j) {
      const __m256 part = load(parts + slots[j] * n + i, n - i);
      sum = _mm256_add_ps(sum, factors ? _mm256_mul_ps(splat(factors[j]), part) : part);
    }
    store(y + i, n - i, sum);
  }
}

template void rms_norm_row(float*, const float*, const float*, int64_t, float);
template void rms_norm_row(float*, const Half*, const float*, int64_t, float);
template void rms_norm_row(Half*, const float*, const Half*, int64_t, float);
template void rms_norm_row(Half*, const Half*, const Half*, int64_t, float);

template void combine_row(float*, const float*, const int32_t*, const float*, int64_t, int64_t, bool);
template void combine_row(Half*, const float*, const int32_t*, const float*, int64_t, int64_t, bool);
template void combine_row(Half*, const Half*, const int32_t*, const float*, int64_t, int64_t, bool);

#define NIB_INSTANTIATE(E)                                                   \
  template void add_row(E*, const E*, const E*, int64_t);                    \
  template void scale_row(E*, int64_t, float);                               \
  template void clip_row(E*, const E*, int64_t, float);                      \
  template void gate_row(E*, const E*, int64_t, Gate);                       \
  template void gate_head(E*, E, int64_t, Gate);                             \
  template void activation_row(E*, const E*, int64_t, const ActivationRow&); \
  template void conv_row(const ConvRow<E>&);                                 \
  template void depth_mix_row(const DepthMixRow<E>&);                        \
  template void profile_row(E*, const E*, const E*, int64_t, int64_t, int64_t, int64_t);
NIB_INSTANTIATE(float)
NIB_INSTANTIATE(Half)

}  // namespace nib::cpu::avx2
