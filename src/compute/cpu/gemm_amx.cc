// Products with bf16 activations on AMX tiles: 16 rows of the weight are the left operand as they lie in memory, rows
// of x in pairs of columns are the right one, so a result tile is [outputs, tokens]. K runs in steps of 32 in one
// order; a tile of fewer tokens is the same instruction on narrower operands.
#include <immintrin.h>

#include "compute/cpu/codes_avx512.h"

namespace nib::cpu::amx {

namespace {

constexpr int64_t kOutputs = 32;  // two tiles of weights
constexpr int64_t kTokens = 128;  // rows of x that stay in the L2 cache while the weights pass
constexpr int64_t kStep = 32;     // columns of a tile

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// GCC 12 does not know what the tile loads read; this makes it finish its own writes first.
void finish_writes(const void* p) { __asm__ volatile("" : : "r"(p) : "memory"); }

// Tiles 0 to 3: results (outputs x tokens); 4, 5: weights; 6, 7: rows of x.
void configure(int64_t tokens) {
  TileConfig c;
  for (int i = 0; i < 8; ++i) {
    c.rows[i] = 16;
    c.row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? 64 : tokens * 4);
  }
  finish_writes(&c);
  _tile_loadconfig(&c);
}

// 32 rows of weights, `stride` elements apart, zero behind the last output and behind the last column.
struct Weights {
  const Half* data;
  int64_t stride;
};

// Results of one tile [16 outputs][tokens] to y[token][output].
void store(const GemmBlock& g, const float* tile, int64_t token, int64_t tokens, int64_t output) {
  if (output >= g.end) return;
  const __mmask16 mask = static_cast<__mmask16>((1u << min(16, g.end - output)) - 1);
  const __m512i index = _mm512_slli_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 4);
  for (int64_t t = 0; t < tokens; ++t) {
    const __m512 y = _mm512_mul_ps(_mm512_i32gather_ps(index, tile + t, 4), _mm512_set1_ps(g.outer));
    const int64_t offset = (token + t) * g.y_stride + output;
    if (g.y_half)
      _mm256_mask_storeu_epi16(static_cast<Half*>(g.y) + offset, mask, (__m256i)_mm512_cvtneps_pbh(y));
    else
      _mm512_mask_storeu_ps(static_cast<float*>(g.y) + offset, mask, y);
  }
}

const Half* tile_of(const GemmBlock& g, int64_t token) { return static_cast<const Half*>(g.x) + token * g.x_stride; }

// 32 outputs of the 32 tokens from `token` on.
void multiply_wide(const GemmBlock& g, const Weights& w, int64_t token, int64_t output) {
  const Half *left = tile_of(g, token), *right = tile_of(g, token + 16);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < g.in; k += kStep) {
    _tile_loadd(4, w.data + k, w.stride * 2);
    _tile_loadd(5, w.data + 16 * w.stride + k, w.stride * 2);
    _tile_loadd(6, left + k * 16, 64);
    _tile_loadd(7, right + k * 16, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  alignas(64) float result[4][256];
  _tile_stored(0, result[0], 64);
  _tile_stored(1, result[1], 64);
  _tile_stored(2, result[2], 64);
  _tile_stored(3, result[3], 64);
  for (int i = 0; i < 4; ++i) store(g, result[i], token + i % 2 * 16, 16, output + i / 2 * 16);
}

// 32 outputs of one tile of tokens, at most 16.
void multiply_narrow(const GemmBlock& g, const Weights& w, int64_t token, int64_t tokens, int64_t output) {
  const Half* x = tile_of(g, token);
  _tile_zero(0);
  _tile_zero(2);
  for (int64_t k = 0; k < g.in; k += kStep) {
    _tile_loadd(4, w.data + k, w.stride * 2);
    _tile_loadd(5, w.data + 16 * w.stride + k, w.stride * 2);
    _tile_loadd(6, x + k * tokens, tokens * 4);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
  }
  alignas(64) float result[2][256];
  _tile_stored(0, result[0], 64);
  _tile_stored(2, result[1], 64);
  for (int i = 0; i < 2; ++i) store(g, result[i], token, tokens, output + i * 16);
}

// All tokens, for the weights that prepare(output) lays out.
template <class Prepare>
void multiply(const GemmBlock& g, const Prepare& prepare) {
  for (int64_t m = 0; m < g.tokens; m += kTokens)
    for (int64_t n = g.begin; n < g.end; n += kOutputs) {
      const Weights w = prepare(n);
      finish_writes(w.data);
      const int64_t end = min(m + kTokens, g.tokens);
      int64_t t = m;
      if (t + 32 <= end) configure(16);
      for (; t + 32 <= end; t += 32) multiply_wide(g, w, t, n);
      for (; t < end; t += 16) {
        configure(min(16, end - t));
        multiply_narrow(g, w, t, min(16, end - t), n);
      }
    }
  _tile_release();
}

int64_t padded(int64_t in) { return (in + kPadding - 1) / kPadding * kPadding; }

// Rows that do not fill a tile are copied, with zeros around them.
Weights prepare_half(const GemmBlock& g, int64_t output) {
  const Half* rows = reinterpret_cast<const Half*>(g.data) + output * g.in;
  if (g.in % kStep == 0 && output + kOutputs <= g.end) return {rows, g.in};
  const int64_t stride = padded(g.in), count = min(kOutputs, g.end - output);
  Half* copy = reinterpret_cast<Half*>(g.scratch);
  for (int64_t i = 0; i < kOutputs; ++i)
    for (int64_t k = 0; k < stride; ++k) copy[i * stride + k] = i < count && k < g.in ? rows[i * g.in + k] : Half{0};
  return {copy, stride};
}

// A bf16 times its scale: at most six significant bits, so exact. Lane i of the scales belongs to halves 2i and 2i+1.
__m512i scaled(__m512bh w, __m512 scale) {
  const __m512i bits = (__m512i)w, high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512 even = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)), scale);
  const __m512 odd = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(bits, high)), scale);
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even), 16),
                         _mm512_and_si512(_mm512_castps_si512(odd), high));
}

template <class F>
Weights prepare_codes(const GemmBlock& g, int64_t output) {
  const int64_t stride = padded(g.in);
  Half* rows = reinterpret_cast<Half*>(g.scratch);
  for (int64_t i = 0; i < kOutputs; ++i)
    for_blocks(CodesRow<F>(g, min(output + i, g.end - 1)), g.in, [&](int64_t b, const Codes& w) {
      _mm512_store_si512(rows + i * stride + b * 64, scaled(w.even, w.scale));
      _mm512_store_si512(rows + i * stride + b * 64 + 32, scaled(w.odd, w.scale));
    });
  return {rows, stride};
}

}  // namespace

void gemm_half(const GemmBlock& g) {
  multiply(g, [&](int64_t n) { return prepare_half(g, n); });
}

// The split order fills whole blocks of 64 columns.
void gemm_codes(const GemmBlock& block) {
  GemmBlock g = block;
  g.in = padded(block.in);
  multiply(g, [&](int64_t n) {
    return block.format == Format::kNvfp4 ? prepare_codes<Nvfp4>(block, n) : prepare_codes<Mxfp8>(block, n);
  });
}

}  // namespace nib::cpu::amx
