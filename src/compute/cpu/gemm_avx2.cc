// Products in FP32: weights and rows are floats, every output is one vector of 8 partial sums over K, then one tree.
#include <immintrin.h>

#include "compute/cpu/kernels.h"

namespace nib::cpu::avx2 {

namespace {

constexpr int kOutputs = 4;      // of one tile
constexpr int64_t kTokens = 48;  // rows of x that stay in the L2 cache while the weights pass

int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

__m128 fold(__m256 v) { return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)); }

// The sums of four vectors.
__m128 sum(const __m256* v) {
  __m128 a = fold(v[0]), b = fold(v[1]), c = fold(v[2]), d = fold(v[3]);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  return _mm_add_ps(_mm_add_ps(a, b), _mm_add_ps(c, d));
}

// Nearest, ties to even; NaN stays NaN.
Half to_half(float f) {
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<Half>((u >> 16) | 0x40);
  return static_cast<Half>((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

void store(const GemmBlock& g, int64_t token, int64_t output, __m128 y) {
  alignas(16) float out[kOutputs];
  _mm_store_ps(out, _mm_mul_ps(y, _mm_set1_ps(g.outer)));
  const int64_t count = min(kOutputs, g.end - output), offset = token * g.y_stride + output;
  for (int64_t j = 0; j < count; ++j) {
    if (g.y_half)
      static_cast<Half*>(g.y)[offset + j] = to_half(out[j]);
    else
      static_cast<float*>(g.y)[offset + j] = out[j];
  }
}

void unpack_half(float* row, const uint8_t* data, int64_t in) {
  int64_t k = 0;
  for (; k + 8 <= in; k += 8) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 2 * k));
    _mm256_store_ps(row + k, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)));
  }
  for (; k < in; ++k) {
    const uint32_t u = static_cast<uint32_t>(data[2 * k] | data[2 * k + 1] << 8) << 16;
    __builtin_memcpy(row + k, &u, 4);
  }
}

// E4M3 bits (sign apart) moved to the exponent of a float count from 2^-127 instead of 2^-7.
__m256 e4m3(__m256i byte) {
  const __m256i magnitude = _mm256_slli_epi32(_mm256_and_si256(byte, _mm256_set1_epi32(0x7f)), 20);
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(byte, _mm256_set1_epi32(0x80)), 24);
  return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(magnitude, sign)), _mm256_set1_ps(0x1p120f));
}

void unpack_nvfp4(float* row, const uint8_t* data, const uint8_t* scales, int64_t in) {
  const __m128i twice = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  const __m128i low = _mm_set1_epi8(15);
  for (int64_t k = 0; k < in; k += 16) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(data + k / 2));
    const __m128i codes = _mm_unpacklo_epi8(_mm_and_si128(bytes, low), _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
    const __m128i values = _mm_shuffle_epi8(twice, codes);
    const __m256 scale = _mm256_mul_ps(e4m3(_mm256_set1_epi32(scales[k / 16])), _mm256_set1_ps(0.5f));
    const __m256 a = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(values));
    const __m256 b = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(values, 8)));
    _mm256_store_ps(row + k, _mm256_mul_ps(a, scale));
    _mm256_store_ps(row + k + 8, _mm256_mul_ps(b, scale));
  }
}

void unpack_mxfp8(float* row, const uint8_t* data, const uint8_t* scales, int64_t in) {
  for (int64_t k = 0; k < in; k += 8) {
    const uint8_t s = scales[k / 32];
    const __m256 scale = _mm256_castsi256_ps(_mm256_set1_epi32(s ? s << 23 : 1 << 22));
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(data + k));
    _mm256_store_ps(row + k, _mm256_mul_ps(e4m3(_mm256_cvtepu8_epi32(bytes)), scale));
  }
}

void unpack(float* row, const GemmBlock& g, int64_t n) {
  switch (g.format) {
    case Format::kF32:
      __builtin_memcpy(row, g.data + n * g.in * 4, g.in * 4);
      break;
    case Format::kBF16:
      unpack_half(row, g.data + n * g.in * 2, g.in);
      break;
    case Format::kNvfp4:
      unpack_nvfp4(row, g.data + n * g.in / 2, g.scales + n * g.in / 16, g.in);
      break;
    case Format::kMxfp8:
      unpack_mxfp8(row, g.data + n * g.in, g.scales + n * g.in / 32, g.in);
      break;
  }
  for (int64_t k = g.in; k % 8; ++k) row[k] = 0;
}

template <int kRows>
void multiply(const GemmBlock& g, const float* w, int64_t w_stride, int64_t token, int64_t output) {
  const float* x = static_cast<const float*>(g.x) + token * g.x_stride;
  __m256 acc[kRows][kOutputs];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kOutputs; ++j) acc[i][j] = _mm256_setzero_ps();
  for (int64_t k = 0; k < g.in; k += 8) {
    __m256 a[kRows];
    for (int i = 0; i < kRows; ++i) a[i] = _mm256_loadu_ps(x + i * g.x_stride + k);
    for (int j = 0; j < kOutputs; ++j) {
      const __m256 b = _mm256_load_ps(w + j * w_stride + k);
      for (int i = 0; i < kRows; ++i) acc[i][j] = _mm256_fmadd_ps(a[i], b, acc[i][j]);
    }
  }
  for (int i = 0; i < kRows; ++i) store(g, token + i, output, sum(acc[i]));
}

}  // namespace

void gemm(const GemmBlock& g) {
  float* w = reinterpret_cast<float*>(g.scratch);
  const int64_t w_stride = (g.in + 7) / 8 * 8;
  for (int64_t m = 0; m < g.tokens; m += kTokens)
    for (int64_t n = g.begin; n < g.end; n += kOutputs) {
      for (int j = 0; j < kOutputs; ++j) unpack(w + j * w_stride, g, min(n + j, g.end - 1));
      const int64_t end = min(m + kTokens, g.tokens);
      int64_t t = m;
      for (; t + 3 <= end; t += 3) multiply<3>(g, w, w_stride, t, n);
      for (; t + 2 <= end; t += 2) multiply<2>(g, w, w_stride, t, n);
      for (; t < end; ++t) multiply<1>(g, w, w_stride, t, n);
    }
}

}  // namespace nib::cpu::avx2
