// Sixteen floats at a time, under the names of simd_avx2.h.
//   const Vector v = load(x + i, n - i);     // lanes behind n are zero
//   store(y + i, n - i, exp(v));
// For files named *_avx512.cc only; everything is local to the file that includes it.
#pragma once

#include <immintrin.h>

#include "compute/cpu/kernels.h"
#include "compute/cpu/sums_avx512.h"

namespace nib::cpu {
namespace {

using Vector = __m512;
constexpr int64_t kLanes = 16;
constexpr int kMaxHeads = 4;  // query heads whose sums fit the registers together

// n may be negative.
inline __mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>(n >= kLanes ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
}

inline __m512 load(const float* p) { return _mm512_loadu_ps(p); }
inline __m512 load(const Half* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
inline __m512 load(const float* p, int64_t n) {
  return n >= kLanes ? load(p) : _mm512_maskz_loadu_ps(first_lanes(n), p);
}
inline __m512 load(const Half* p, int64_t n) {
  if (n >= kLanes) return load(p);
  const __m256i h = _mm256_maskz_loadu_epi16(first_lanes(n), p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
inline void store(float* p, __m512 v) { _mm512_storeu_ps(p, v); }
inline void store(float* p, int64_t n, __m512 v) {
  n >= kLanes ? store(p, v) : _mm512_mask_storeu_ps(p, first_lanes(n), v);
}
inline void store(Half* p, int64_t n, __m512 v) {
  const __m256i h = (__m256i)_mm512_cvtneps_pbh(v);
  if (n >= kLanes) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), h);
  _mm256_mask_storeu_epi16(p, first_lanes(n), h);
}
// v as it would read back from memory of type E.
template <class E>
inline __m512 rounded(__m512 v) {
  if constexpr (sizeof(E) == 4) return v;
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(v)), 16));
}

inline __m512 splat(float f) { return _mm512_set1_ps(f); }

// The lanes [begin, end) of v, elsewhere those of other; both ends may lie outside.
inline __mmask16 lanes(int64_t begin, int64_t end) { return first_lanes(end) & ~first_lanes(begin); }
inline __m512 select(__m512 v, int64_t begin, int64_t end, __m512 other) {
  return _mm512_mask_mov_ps(other, lanes(begin, end), v);
}

// Elements p[15], p[14], ... p[0]; only those of [begin, end) are read, zero stands for the others.
inline __m512 load_reversed(const float* p, int64_t begin, int64_t end) {
  const __m512i down = _mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_permutexvar_ps(down, _mm512_maskz_loadu_ps(lanes(begin, end), p));
}
inline __m512 load_reversed(const Half* p, int64_t begin, int64_t end) {
  const __m512i down = _mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i halves = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes(begin, end), p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_permutexvar_epi32(down, halves), 16));
}

// Two vectors of columns: of floats in order, of halves the even ones and the odd ones.
struct Columns {
  __m512 a, b;
};
inline __m512i load_halves(const Half* p, int64_t n) {
  return n >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16((1u << n) - 1, p);
}
inline Columns load_columns(const float* p, int64_t n) { return {load(p, n), load(p + kLanes, n - kLanes)}; }
// The even and the odd ones of 32 halves.
inline Columns split_halves(__m512 v) {
  const __m512i halves = _mm512_castps_si512(v);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(halves, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(halves, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
inline Columns load_columns(const Half* p, int64_t n) { return split_halves(_mm512_castsi512_ps(load_halves(p, n))); }
// The even columns and the odd ones, of either type.
inline Columns load_pairs(const Half* p, int64_t n) { return load_columns(p, n); }
inline Columns load_pairs(const float* p, int64_t n) {
  const Columns c = load_columns(p, n);
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return {_mm512_permutex2var_ps(c.a, even, c.b),
          _mm512_permutex2var_ps(c.a, _mm512_or_si512(even, _mm512_set1_epi32(1)), c.b)};
}
inline void store_columns(float* p, int64_t n, const Columns& c) {
  store(p, n, c.a);
  store(p + kLanes, n - kLanes, c.b);
}
inline void store_columns(Half* p, int64_t n, const Columns& c) {
  const __m512i even = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(c.a));
  const __m512i odd = _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(c.b)), 16);
  _mm512_mask_storeu_epi16(p, n >= 32 ? 0xffffffffu : (1u << n) - 1, _mm512_or_si512(even, odd));
}

// Products of two vectors of columns: a query is laid out once, then dot adds its products with keys.
inline void store_query(float* to, const float* q, int64_t n) {
  store(to, load(q, n));
  store(to + kLanes, load(q + kLanes, n - kLanes));
}
inline void store_query(float* to, const Half* q, int64_t n) { _mm512_storeu_si512(to, load_halves(q, n)); }
inline __m512 dot(__m512 acc, const float* query, const float* key, int64_t n) {
  acc = _mm512_fmadd_ps(load(query), load(key, n), acc);
  return _mm512_fmadd_ps(load(query + kLanes), load(key + kLanes, n - kLanes), acc);
}
inline __m512 dot(__m512 acc, const float* query, const Half* key, int64_t n) {
  return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_loadu_si512(query), (__m512bh)load_halves(key, n));
}

inline float first(__m512 v) { return _mm512_cvtss_f32(v); }
inline float sum(__m512 v) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
// Lane i: the sum of v[i].
[[gnu::always_inline]] inline __m512 sum_each(const __m512* v) {
  const __m512 folds[4] = {fold(v), fold(v + 4), fold(v + 8), fold(v + 12)};
  return sum_folds(folds);
}
inline float largest(__m512 v) { return _mm512_reduce_max_ps(v); }

inline __m512 multiply_add(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
inline __m512 larger(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }

// e^x within 2 ulp: 2^n times a polynomial on |r| <= ln(2)/2. Zero far below the normal range, NaN stays NaN.
inline __m512 exp(__m512 x) {
  const __m512 clamped = _mm512_min_ps(splat(88.72283f), _mm512_max_ps(splat(-104.0f), x));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(clamped, splat(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
  __m512 r = _mm512_fnmadd_ps(n, splat(0.693359375f), clamped);
  r = _mm512_fnmadd_ps(n, splat(-2.12194440e-4f), r);
  __m512 p = splat(1.9875691500e-4f);
  constexpr float kNext[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  for (float c : kNext) p = _mm512_fmadd_ps(p, r, splat(c));
  p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), splat(1.0f));
  return _mm512_mask_mov_ps(_mm512_scalef_ps(p, n), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

inline __m512 sigmoid(__m512 x) { return splat(1.0f) / (splat(1.0f) + exp(splat(0.0f) - x)); }

// An odd polynomial near zero, 1 - 2 / (e^2x + 1) elsewhere.
inline __m512 tanh(__m512 x) {
  const __m512 z = x * x;
  __m512 p = splat(-5.70498872745e-3f);
  constexpr float kNext[] = {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f};
  for (float c : kNext) p = _mm512_fmadd_ps(p, z, splat(c));
  const __m512 near_zero = _mm512_fmadd_ps(p * z, x, x);
  const __m512 far = splat(1.0f) - splat(2.0f) / (exp(x + x) + splat(1.0f));
  return _mm512_mask_mov_ps(far, _mm512_cmp_ps_mask(_mm512_abs_ps(x), splat(0.625f), _CMP_LT_OQ), near_zero);
}

}  // namespace
}  // namespace nib::cpu
