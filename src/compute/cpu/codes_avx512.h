// NVFP4 and MXFP8 weights of one row, 64 at a time, as bf16 and scales.
//   const CodesRow<Nvfp4> row(block, n);      // output n
//   row.load(b);                              // columns 64 b to 64 b + 63
// For files named *_avx512.cc and *_amx.cc only; everything is local to the file that includes it.
#pragma once

#include <immintrin.h>

#include "compute/cpu/kernels.h"

namespace nib::cpu {
namespace {

inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

template <class T>
[[gnu::always_inline]] inline T read(const uint8_t* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

// 64 weights as bf16 without their scales, even ones and odd ones. Lane i of the products holds columns 4i to 4i+3,
// which share a scale.
struct Codes {
  __m512bh even, odd;
  __m512 scale;
};

// The eight magnitudes of E2M1 and their negatives, twice: a lookup sees five bits, the fifth is of the next code.
[[gnu::always_inline]] inline __m512i e2m1_table() {
  const __m256i half = _mm256_setr_epi16(
      0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, static_cast<short>(0x8000), static_cast<short>(0xbf00),
      static_cast<short>(0xbf80), static_cast<short>(0xbfc0), static_cast<short>(0xc000), static_cast<short>(0xc040),
      static_cast<short>(0xc080), static_cast<short>(0xc0c0));
  return _mm512_broadcast_i64x4(half);
}

// Each 4-byte lane takes byte `lane / lanes` of the scales as its top byte.
template <int kLanes>
[[gnu::always_inline]] inline __m512i spread(__m512i scales) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i index = _mm512_slli_epi32(_mm512_srli_epi32(lane, kLanes == 4 ? 2 : 3), 24);
  return _mm512_shuffle_epi8(scales, _mm512_or_si512(index, _mm512_set1_epi32(0x00808080)));
}

struct Nvfp4 {
  static constexpr int64_t kDataBytes = 32, kScaleBytes = 4;                   // of 64 weights
  [[gnu::always_inline]] static Codes unpack(__m512i bytes, __m512i scales) {  // bytes: zero-extended to 16 bits
    const __m512i table = e2m1_table();
    // E4M3 bits moved to the exponent of a float count from 2^-127 instead of 2^-7; exact below the normal range too.
    const __m512 scale = _mm512_castsi512_ps(_mm512_srli_epi32(spread<4>(scales), 4));
    return {(__m512bh)_mm512_permutexvar_epi16(bytes, table),
            (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 4), table),
            _mm512_mul_ps(scale, _mm512_set1_ps(0x1p120f))};
  }
  [[gnu::always_inline]] static Codes load(const uint8_t* data, const uint8_t* scales) {
    return unpack(_mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(data))),
                  _mm512_set1_epi32(read<int>(scales)));
  }
  [[gnu::always_inline]] static Codes load_tail(const uint8_t* data, const uint8_t* scales, int64_t n) {
    const __m256i bytes = _mm256_maskz_loadu_epi8(static_cast<__mmask32>((1ull << n / 2) - 1), data);
    const __m128i scale = _mm_maskz_loadu_epi8(static_cast<__mmask16>((1 << n / 16) - 1), scales);
    return unpack(_mm512_cvtepu8_epi16(bytes), _mm512_broadcastd_epi32(scale));
  }
};

struct Mxfp8 {
  static constexpr int64_t kDataBytes = 64, kScaleBytes = 2;
  // E4M3 in the low bytes of 16-bit lanes to bf16; the eight values below the normal range come from a table.
  [[gnu::always_inline]] static __m512bh to_half(__m512i byte) {
    const __m512i magnitude = _mm512_and_si512(byte, _mm512_set1_epi16(0x7f));
    const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(byte, _mm512_set1_epi16(0x80)), 8);
    const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
    const __m512i small = _mm512_broadcast_i32x4(
        _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));  // 0 to 7 times 2^-9
    const __mmask32 is_small = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
    return (__m512bh)_mm512_or_si512(_mm512_mask_permutexvar_epi16(normal, is_small, magnitude, small), sign);
  }
  [[gnu::always_inline]] static Codes unpack(__m512i bytes, __m512i scales) {
    // E8M0 moved to the exponent; the smallest is a half of the smallest normal float.
    const __m512i scale = _mm512_max_epu32(_mm512_srli_epi32(spread<8>(scales), 1), _mm512_set1_epi32(1 << 22));
    return {to_half(_mm512_and_si512(bytes, _mm512_set1_epi16(0xff))), to_half(_mm512_srli_epi16(bytes, 8)),
            _mm512_castsi512_ps(scale)};
  }
  [[gnu::always_inline]] static Codes load(const uint8_t* data, const uint8_t* scales) {
    return unpack(_mm512_loadu_si512(data), _mm512_set1_epi16(read<short>(scales)));
  }
  [[gnu::always_inline]] static Codes load_tail(const uint8_t* data, const uint8_t* scales, int64_t) {  // of 32
    return unpack(_mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(data))),
                  _mm512_set1_epi32(scales[0]));
  }
};

// The weights of one output.
template <class F>
struct CodesRow {
  const uint8_t *data, *scales;

  CodesRow() = default;
  CodesRow(const GemmBlock& g, int64_t n)
      : data(g.data + n * (g.in * F::kDataBytes / 64)), scales(g.scales + n * (g.in * F::kScaleBytes / 64)) {}
  // A block of 64 columns, all there.
  [[gnu::always_inline]] Codes load(int64_t block) const {
    return F::load(data + block * F::kDataBytes, scales + block * F::kScaleBytes);
  }
  // Asks for what lies some kilobytes ahead: rows are too short for the hardware to see a stream, but they lie one
  // after the other. Past the end of the weight it does nothing.
  [[gnu::always_inline]] void prefetch(int64_t block) const {
    constexpr int64_t kAhead = 256;  // blocks
    _mm_prefetch(reinterpret_cast<const char*>(data + (block + kAhead) * F::kDataBytes), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(scales + (block + kAhead) * F::kScaleBytes), _MM_HINT_T0);
  }
  // The first n < 64 columns of a block, zeros behind.
  [[gnu::always_inline]] Codes load_tail(int64_t block, int64_t n) const {
    return F::load_tail(data + block * F::kDataBytes, scales + block * F::kScaleBytes, n);
  }
};

// Calls f(block, weights) for all blocks of a row.
template <class F, class Function>
void for_blocks(const CodesRow<F>& row, int64_t in, const Function& f) {
  const int64_t blocks = in / 64;
  for (int64_t b = 0; b < blocks; ++b) f(b, row.load(b));
  if (in % 64 != 0) f(blocks, row.load_tail(blocks, in % 64));
}

}  // namespace
}  // namespace nib::cpu
