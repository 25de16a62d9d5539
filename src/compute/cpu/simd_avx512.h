// Sixteen floats at a time, under the names of simd_avx2.h as far as attention needs them.
//   const Vector v = load(x + i, n - i);     // lanes behind n are zero
//   store(y + i, n - i, exp(v));
// For files named *_avx512.cc only; everything is local to the file that includes it.
#pragma once

#include <immintrin.h>

#include "compute/cpu/kernels.h"

namespace nib::cpu {
namespace {

using Vector = __m512;
constexpr int64_t kLanes = 16;
constexpr int kMaxHeads = 4;  // query heads that fit the registers together

inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>(n >= kLanes ? 0xffff : (1 << n) - 1); }

inline __m512 load(const float* p) { return _mm512_loadu_ps(p); }
inline __m512 load(const Half* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
inline __m512 load(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline __m512 load(const Half* p, int64_t n) {
  const __m256i h = _mm256_maskz_loadu_epi16(first_lanes(n), p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
inline void store(float* p, __m512 v) { _mm512_storeu_ps(p, v); }
inline void store(float* p, int64_t n, __m512 v) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
inline void store(Half* p, int64_t n, __m512 v) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), (__m256i)_mm512_cvtneps_pbh(v));
}

inline __m512 splat(float f) { return _mm512_set1_ps(f); }

inline __m128 fold(__m512 v) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
inline float sum(__m512 v) {
  __m128 q = fold(v);
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
// The sums of four vectors, each by one tree.
inline __m128 sum4(const __m512* v) {
  __m128 a = fold(v[0]), b = fold(v[1]), c = fold(v[2]), d = fold(v[3]);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  return _mm_add_ps(_mm_add_ps(a, b), _mm_add_ps(c, d));
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

}  // namespace
}  // namespace nib::cpu
