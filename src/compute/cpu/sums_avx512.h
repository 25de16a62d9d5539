// Sums across the lanes of sixteen vectors at once, every one by the same tree.
//   __m512 folds[4];
//   for (int q = 0; q < 4; ++q) folds[q] = fold(v + 4 * q);
//   const __m512 y = sum_folds(folds);               // lane i: the sum of v[i]
// For files named *_avx512.cc only; everything is local to the file that includes it.
#pragma once

#include <immintrin.h>

namespace nib::cpu {
namespace {

// Four vectors, each folded to four partial sums, side by side.
[[gnu::always_inline]] inline __m512 fold(const __m512* v) {
  const auto halves = [](__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(1, 0, 1, 0)),
                         _mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(3, 2, 3, 2)));
  };
  const __m512 a = halves(v[0], v[1]), b = halves(v[2], v[3]);
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(2, 0, 2, 0)),
                       _mm512_shuffle_f32x4(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
}

[[gnu::always_inline]] inline __m512 sum_folds(const __m512* folds) {
  const auto pairs = [](__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0)),
                         _mm512_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
  };
  const __m512 sums = pairs(pairs(folds[0], folds[1]), pairs(folds[2], folds[3]));  // 0 4 8 12, 1 5 9 13, ...
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), sums);
}

}  // namespace
}  // namespace nib::cpu
