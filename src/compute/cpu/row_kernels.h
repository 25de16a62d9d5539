// Operations that work on one row at a time: norms, gates, activations, convolutions, mixtures. Written over the
// vectors of the simd header that is included before this one.
//   #include "compute/cpu/simd_avx2.h"
//   #include "compute/cpu/row_kernels.h"
//   const RowKernels<Half> k = row_kernels<Half>();
#pragma once

#include "compute/cpu/to_float.h"

namespace nib::cpu {
namespace {

// sum_i f(i), f giving a vector of terms from column i on; four partial sums, then one tree.
template <class F>
float sum_columns(int64_t n, const F& f) {
  constexpr int64_t kStep = 4 * kLanes;
  Vector acc[4] = {};
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep)
    for (int p = 0; p < 4; ++p) acc[p] = acc[p] + f(i + p * kLanes);
  for (int p = 0; p < 4; ++p)
    if (i + p * kLanes < n) acc[p] = acc[p] + f(i + p * kLanes);
  return sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

template <class E>
float sum_squares(const E* x, int64_t n) {
  return sum_columns(n, [&](int64_t i) {
    const Vector v = load(x + i, n - i);
    return v * v;
  });
}

float inverse_root(float mean_square, float eps) { return 1.0f / __builtin_sqrtf(mean_square + eps); }

Vector gate_value(Vector g, Gate act) {
  switch (act) {
    case Gate::kSigmoid:
      return sigmoid(g);
    case Gate::kSilu:
      return g * sigmoid(g);
    case Gate::kTanh:
      return tanh(g);
    case Gate::kNone:
      return g;
  }
  return g;
}

template <class Y, class X>
void rms_norm_row(Y* y, const X* x, const Y* weight, int64_t n, float eps) {
  const Vector r = splat(inverse_root(sum_squares(x, n) / static_cast<float>(n), eps));
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vector v = load(x + i, n - i) * r;
    store(y + i, n - i, weight ? v * load(weight + i, n - i) : v);
  }
}

template <class E>
void add_row(E* y, const E* x, const E* delta, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store(y + i, n - i, load(x + i, n - i) + load(delta + i, n - i));
}

template <class E>
void scale_row(E* x, int64_t n, float factor) {
  for (int64_t i = 0; i < n; i += kLanes) store(x + i, n - i, load(x + i, n - i) * splat(factor));
}

template <class E>
void clip_row(E* x, const E* scale, int64_t n, float limit) {
  const auto scaled = [&](int64_t i) {
    const Vector v = load(x + i, n - i);
    return scale ? v * load(scale + i, n - i) : v;
  };
  const float squares = sum_columns(n, [&](int64_t i) { return scaled(i) * scaled(i); });
  const float length = __builtin_sqrtf(squares);
  const Vector factor = splat(limit > 0 && length > limit ? limit / length : 1.0f);
  for (int64_t i = 0; i < n; i += kLanes) store(x + i, n - i, scaled(i) * factor);
}

template <class E>
void gate_row(E* y, const E* gate, int64_t n, Gate act) {
  for (int64_t i = 0; i < n; i += kLanes)
    store(y + i, n - i, load(y + i, n - i) * gate_value(load(gate + i, n - i), act));
}

template <class E>
void gate_head(E* y, E gate, int64_t n, Gate act) {
  const Vector g = gate_value(splat(to_float(gate)), act);
  for (int64_t i = 0; i < n; i += kLanes) store(y + i, n - i, load(y + i, n - i) * g);
}

template <class E>
void activation_row(E* y, const E* h, int64_t n, const ActivationRow& a) {
  const auto capped = [](Vector x, float cap) { return cap > 0 ? splat(cap) * tanh(x / splat(cap)) : x; };
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto [gate, up] = load_pairs(h + 2 * i, 2 * (n - i));  // g0 u0 g1 u1 ...
    const Vector g = a.situ ? capped(gate, a.beta) : gate, u = a.situ ? capped(up, a.linear_beta) : up;
    const Vector act = g * sigmoid(gate) * u;
    store(y + i, n - i, splat(a.weight) * act);
  }
}

// Taps of n channels, which lie together channel by channel, turned around: tap j of all channels in taps[j].
template <class E>
void load_taps(Vector* taps, const E* fixed, int64_t width, int64_t n) {
  for (int64_t j = 0; j < width; ++j) {
    float one[kLanes] = {};
    for (int64_t l = 0; l < kLanes && l < n; ++l) one[l] = to_float(fixed[l * width + j]);
    taps[j] = load(one);
  }
}
void load_four_taps(Vector* taps, const Half* fixed) {
  const Columns p = load_pairs(reinterpret_cast<const float*>(fixed), 2 * kLanes);  // taps 0 and 1, taps 2 and 3
  const Columns a = split_halves(p.a), b = split_halves(p.b);
  taps[0] = a.a, taps[1] = a.b, taps[2] = b.a, taps[3] = b.b;
}

constexpr int64_t kMaxWidth = 16;

// Columns [begin, end) of one head, or of all channels where no tap is generated. Terms in the order of the formula.
template <class E>
void conv_columns(const ConvRow<E>& c, int64_t begin, int64_t end, const E* generated) {
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t n = end - i;
    Vector taps[kMaxWidth] = {};
    bool done = false;
    if constexpr (sizeof(E) == 2)
      if ((done = c.fixed && c.width == 4 && n >= kLanes)) load_four_taps(taps, c.fixed + i * 4);
    if (c.fixed && !done) load_taps(taps, c.fixed + i * c.width, c.width, n);
    Vector acc = splat(0.0f);
    for (int64_t j = 0; j < c.width; ++j) {
      const Vector tap = generated ? taps[j] + splat(to_float(generated[j])) : taps[j];
      const Vector x = c.inputs[j] ? load(c.inputs[j] + i, n) : splat(0.0f);
      acc = acc + tap * x;
    }
    if (c.skip) acc = acc + load(c.inputs[c.width - 1] + i, n);
    if (c.residual) acc = rounded<E>(acc) + load(c.residual + i, n);
    store(c.y + i, n, acc);
  }
}

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
    float a[16] = {1.0f};
    if (const float* q = m.queries[o]) {
      float top = -__builtin_inff(), total = 0;
      for (int j = 0; j < m.num_sources; ++j) {
        const float dot = sum_columns(n, [&](int64_t i) { return load(q + i, n - i) * load(m.sources[j] + i, n - i); });
        a[j] = m.logit_scale * (dot * r[j]);
        top = a[j] > top ? a[j] : top;
      }
      for (int j = 0; j < 16; j += kLanes) store(a + j, exp(load(a + j) - splat(top)));
      for (int j = 0; j < m.num_sources; ++j) total += a[j];
      for (int j = 0; j < m.num_sources; ++j) a[j] /= total;
    }
    const float squares = sum_columns(n, [&](int64_t i) {
      Vector h = splat(0.0f);
      for (int j = 0; j < m.num_sources; ++j) h = multiply_add(splat(a[j]), load(m.sources[j] + i, n - i), h);
      store(m.scratch + i, n - i, h);
      return h * h;
    });
    if (!m.gains[o]) {
      for (int64_t i = 0; i < n; i += kLanes) store(m.outputs[o] + i, n - i, load(m.scratch + i, n - i));
      continue;
    }
    const Vector scale = splat(inverse_root(squares / static_cast<float>(n), m.norm_eps));
    for (int64_t i = 0; i < n; i += kLanes) {
      const Vector h = load(m.scratch + i, n - i) * scale;
      store(m.outputs[o] + i, n - i, h * load(m.gains[o] + i, n - i));
    }
  }
}

// kHeads heads share the loads of kWide vectors of the table; each output adds its terms in the order of d.
template <int kHeads, int kWide, class E>
void profile_columns(E* profile, const E* r, const E* table, const ProfileShape& p, int64_t e) {
  Vector acc[kHeads][kWide] = {};
  for (int64_t d = 0; d < p.d_rel; ++d) {
    Vector w[kWide];
    for (int i = 0; i < kWide; ++i)
      w[i] = load(table + d * p.table_stride + e + i * kLanes, p.columns - e - i * kLanes);
    for (int h = 0; h < kHeads; ++h) {
      const Vector factor = splat(to_float(r[h * p.d_rel + d]));
      for (int i = 0; i < kWide; ++i) acc[h][i] = multiply_add(factor, w[i], acc[h][i]);
    }
  }
  for (int h = 0; h < kHeads; ++h)
    for (int i = 0; i < kWide; ++i)
      store(profile + h * p.columns + e + i * kLanes, p.columns - e - i * kLanes, acc[h][i]);
}

template <int kHeads, class E>
void profile_heads(E* profile, const E* r, const E* table, const ProfileShape& p) {
  constexpr int kWide = kLanes / 4;  // what fits the registers with four heads
  int64_t e = 0;
  for (; e + kWide * kLanes <= p.columns; e += kWide * kLanes) profile_columns<kHeads, kWide>(profile, r, table, p, e);
  for (; e < p.columns; e += kLanes) profile_columns<kHeads, 1>(profile, r, table, p, e);
}

template <class E>
void profile_row(E* profile, const E* r, const E* table, const ProfileShape& p) {
  int64_t h = 0;
  for (; h + 4 <= p.heads; h += 4) profile_heads<4>(profile + h * p.columns, r + h * p.d_rel, table, p);
  for (; h < p.heads; ++h) profile_heads<1>(profile + h * p.columns, r + h * p.d_rel, table, p);
}

void soft_cap_row(float* x, int64_t n, float mup, float cap) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vector z = load(x + i, n - i) / splat(mup);
    store(x + i, n - i, cap > 0 ? splat(cap) * tanh(z / splat(cap)) : z);
  }
}

void sigmoid_row(float* y, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store(y + i, n - i, sigmoid(load(x + i, n - i)));
}

template <class E, class P>
void combine_row(E* y, const P* parts, const int32_t* slots, const float* factors, int64_t count, int64_t n,
                 bool accumulate) {
  for (int64_t i = 0; i < n; i += kLanes) {
    Vector sum = accumulate ? load(y + i, n - i) : splat(0.0f);
    for (int64_t j = 0; j < count; ++j) {
      const Vector part = load(parts + slots[j] * n + i, n - i);
      sum = sum + (factors ? splat(factors[j]) * part : part);
    }
    store(y + i, n - i, sum);
  }
}

template <class E>
constexpr RowKernels<E> row_kernels() {
  return {.rms_norm = rms_norm_row<E, E>,
          .rms_norm_floats = rms_norm_row<E, float>,
          .rms_norm_halves = rms_norm_row<E, Half>,
          .add = add_row<E>,
          .scale = scale_row<E>,
          .clip = clip_row<E>,
          .gate = gate_row<E>,
          .gate_head = gate_head<E>,
          .activation = activation_row<E>,
          .conv = conv_row<E>,
          .depth_mix = depth_mix_row<E>,
          .profile = profile_row<E>,
          .combine = combine_row<E, E>,
          .combine_floats = combine_row<E, float>,
          .soft_cap = soft_cap_row,
          .sigmoid = sigmoid_row};
}

}  // namespace
}  // namespace nib::cpu
