// Eight floats at a time: loads and stores of both activation types, sums in a fixed tree, exp and tanh.
//   const __m256 v = load(x + i, n - i);     // lanes behind n are zero
//   store(y + i, n - i, exp(v));
// For files named *_avx2.cc only; everything is local to the file that includes it.
#pragma once

#include <immintrin.h>

#include "compute/cpu/kernels.h"

namespace nib::cpu {
namespace {

using Vector = __m256;
constexpr int64_t kLanes = 8;
constexpr int kMaxHeads = 2;  // query heads whose sums fit the registers together

[[maybe_unused]] inline __m256 load(const float* p) { return _mm256_loadu_ps(p); }
[[maybe_unused]] inline __m256 load(const Half* p) {
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
template <class E>
inline __m256 load(const E* p, int64_t n) {
  if (n >= kLanes) return load(p);
  E part[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = p[i];
  return load(part);
}

[[maybe_unused]] inline void store(float* p, __m256 v) { _mm256_storeu_ps(p, v); }
// Rounds to nearest, ties to even; NaN stays NaN.
[[maybe_unused]] inline void store(Half* p, __m256 v) {
  const __m256i u = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i words = _mm256_blendv_epi8(rounded, quiet, nan);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}
template <class E>
inline void store(E* p, int64_t n, __m256 v) {
  if (n >= kLanes) return store(p, v);
  E part[kLanes];
  store(part, v);
  for (int64_t i = 0; i < n; ++i) p[i] = part[i];
}
// v as it would read back from memory of type E.
template <class E>
inline __m256 rounded(__m256 v) {
  if constexpr (sizeof(E) == 4) return v;
  Half part[kLanes];
  store(part, v);
  return load(part);
}

[[maybe_unused]] inline float sum(__m256 v) {
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}

[[maybe_unused]] inline __m256 splat(float f) { return _mm256_set1_ps(f); }

[[maybe_unused]] inline float first(__m256 v) { return _mm256_cvtss_f32(v); }
// Lane i: the sum of v[i], each by one tree.
[[maybe_unused]] inline __m256 sum_each(const __m256* v) {
  const auto halves = [](__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  };
  const auto pairs = [](__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0)),
                         _mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
  };
  return pairs(pairs(halves(v[0], v[4]), halves(v[1], v[5])), pairs(halves(v[2], v[6]), halves(v[3], v[7])));
}

// The lanes [begin, end) of v, elsewhere those of other; both ends may lie outside.
[[maybe_unused]] inline __m256 select(__m256 v, int64_t begin, int64_t end, __m256 other) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const auto clamp = [](int64_t i) { return static_cast<int>(i < 0 ? 0 : i > kLanes ? kLanes : i); };
  const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(clamp(end)), lane);
  const __m256i above = _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(clamp(begin) - 1));
  return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(_mm256_and_si256(below, above)));
}

// Elements p[7], p[6], ... p[0]; only those of [begin, end) are read, zero stands for the others.
template <class E>
inline __m256 load_reversed(const E* p, int64_t begin, int64_t end) {
  E part[kLanes] = {};
  if (begin > 0 || end < kLanes) {
    for (int64_t i = begin > 0 ? begin : 0; i < end && i < kLanes; ++i) part[i] = p[i];
    p = part;
  }
  return _mm256_permutevar8x32_ps(load(p), _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

// Two vectors of columns: of floats in order, of halves the even ones and the odd ones.
struct Columns {
  __m256 a, b;
};
// The even and the odd ones of 16 halves.
[[maybe_unused]] inline Columns split_halves(__m256 v) {
  const __m256i halves = _mm256_castps_si256(v);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(halves, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(halves, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}
[[maybe_unused]] inline Columns load_columns(const float* p, int64_t n) {
  return {load(p, n), load(p + kLanes, n - kLanes)};
}
[[maybe_unused]] inline Columns load_columns(const Half* p, int64_t n) {
  Half part[2 * kLanes] = {};
  if (n < 2 * kLanes) {
    for (int64_t i = 0; i < n; ++i) part[i] = p[i];
    p = part;
  }
  return split_halves(_mm256_loadu_ps(reinterpret_cast<const float*>(p)));
}
// The even columns and the odd ones, of either type.
[[maybe_unused]] inline Columns load_pairs(const Half* p, int64_t n) { return load_columns(p, n); }
[[maybe_unused]] inline Columns load_pairs(const float* p, int64_t n) {
  const Columns c = load_columns(p, n);
  const auto in_order = [](__m256 v) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), _MM_SHUFFLE(3, 1, 2, 0)));
  };
  return {in_order(_mm256_shuffle_ps(c.a, c.b, _MM_SHUFFLE(2, 0, 2, 0))),
          in_order(_mm256_shuffle_ps(c.a, c.b, _MM_SHUFFLE(3, 1, 3, 1)))};
}
[[maybe_unused]] inline void store_columns(float* p, int64_t n, const Columns& c) {
  store(p, n, c.a);
  store(p + kLanes, n - kLanes, c.b);
}
[[maybe_unused]] inline void store_columns(Half* p, int64_t n, const Columns& c) {
  Half even[kLanes], odd[kLanes];
  store(even, c.a);
  store(odd, c.b);
  for (int64_t i = 0; i < n && i < 2 * kLanes; ++i) p[i] = i % 2 == 0 ? even[i / 2] : odd[i / 2];
}

// Products of two vectors of columns: a query is laid out once, then dot adds its products with keys.
template <class E>
inline void store_query(float* to, const E* q, int64_t n) {
  const Columns c = load_columns(q, n);
  store(to, c.a);
  store(to + kLanes, c.b);
}
template <class E>
inline __m256 dot(__m256 acc, const float* query, const E* key, int64_t n) {
  const Columns c = load_columns(key, n);
  return _mm256_fmadd_ps(load(query + kLanes), c.b, _mm256_fmadd_ps(load(query), c.a, acc));
}

[[maybe_unused]] inline float largest(__m256 v) {
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

[[maybe_unused]] inline __m256 multiply_add(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
[[maybe_unused]] inline __m256 larger(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }

// e^x within 2 ulp: 2^n times a polynomial on |r| <= ln(2)/2. Zero below the normal range, NaN stays NaN.
[[maybe_unused]] inline __m256 exp(__m256 x) {
  const __m256 clamped = _mm256_min_ps(splat(88.72283f), _mm256_max_ps(splat(-87.33654f), x));
  const __m256 n =
      _mm256_round_ps(_mm256_mul_ps(clamped, splat(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, splat(0.693359375f), clamped);
  r = _mm256_fnmadd_ps(n, splat(-2.12194440e-4f), r);
  __m256 p = splat(1.9875691500e-4f);
  constexpr float kNext[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  for (float c : kNext) p = _mm256_fmadd_ps(p, r, splat(c));
  p = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), splat(1.0f));
  // 2^n in two factors: n may be 128.
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
  const auto power = [](__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
  };
  const __m256 y = _mm256_mul_ps(_mm256_mul_ps(p, power(half)), power(_mm256_sub_epi32(whole, half)));
  const __m256 tiny = _mm256_cmp_ps(x, splat(-87.33654f), _CMP_LT_OQ);
  return _mm256_blendv_ps(_mm256_andnot_ps(tiny, y), x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

[[maybe_unused]] inline __m256 sigmoid(__m256 x) {
  return _mm256_div_ps(splat(1.0f), _mm256_add_ps(splat(1.0f), exp(_mm256_sub_ps(_mm256_setzero_ps(), x))));
}

// An odd polynomial near zero, 1 - 2 / (e^2x + 1) elsewhere.
[[maybe_unused]] inline __m256 tanh(__m256 x) {
  const __m256 z = _mm256_mul_ps(x, x);
  __m256 p = splat(-5.70498872745e-3f);
  constexpr float kNext[] = {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f};
  for (float c : kNext) p = _mm256_fmadd_ps(p, z, splat(c));
  const __m256 near_zero = _mm256_fmadd_ps(_mm256_mul_ps(p, z), x, x);
  const __m256 e = exp(_mm256_add_ps(x, x));
  const __m256 far = _mm256_sub_ps(splat(1.0f), _mm256_div_ps(splat(2.0f), _mm256_add_ps(e, splat(1.0f))));
  const __m256 size = _mm256_andnot_ps(splat(-0.0f), x);
  return _mm256_blendv_ps(far, near_zero, _mm256_cmp_ps(size, splat(0.625f), _CMP_LT_OQ));
}

}  // namespace
}  // namespace nib::cpu
