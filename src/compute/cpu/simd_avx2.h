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
constexpr int kMaxHeads = 2;  // query heads that fit the registers together

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

// The sums of four vectors, each by one tree.
[[maybe_unused]] inline __m128 sum4(const __m256* v) {
  const auto fold = [](__m256 x) { return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); };
  __m128 a = fold(v[0]), b = fold(v[1]), c = fold(v[2]), d = fold(v[3]);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  return _mm_add_ps(_mm_add_ps(a, b), _mm_add_ps(c, d));
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
