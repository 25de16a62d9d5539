// Products with bf16 activations: every output is one vector of 16 partial sums over K in one order, then one tree.
// Tiles share loads only, so their shape cannot change a bit.
#include <immintrin.h>

#include "compute/cpu/codes_avx512.h"

namespace nib::cpu::avx512 {

namespace {

constexpr int kMaxRows = 6, kOutputs = 4;  // of one tile, at most
constexpr int64_t kBlockOutputs = 64;      // whose weights stay in the L2 cache while the tokens pass
constexpr int64_t kColumns = 1024;         // of which a tile stays in the L1 cache
constexpr int64_t kTokens = 48;            // rows of x that stay in the L2 cache while the weights pass

__m512bh load(const Half* p) { return (__m512bh)_mm512_loadu_si512(p); }
__m512bh load(const Half* p, int64_t n) {
  return (__m512bh)_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << n) - 1), p);
}

[[gnu::always_inline]] inline __m128 fold(__m512 v) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// The sums of four vectors.
[[gnu::always_inline]] inline __m128 sum(const __m512* v) {
  __m128 a = fold(v[0]), b = fold(v[1]), c = fold(v[2]), d = fold(v[3]);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  return _mm_add_ps(_mm_add_ps(a, b), _mm_add_ps(c, d));
}

void store(const GemmBlock& g, int64_t token, int64_t output, __m128 y) {
  const int64_t count = min(kOutputs, g.end - output), offset = token * g.y_stride + output;
  const __mmask8 mask = static_cast<__mmask8>((1 << count) - 1);
  y = _mm_mul_ps(y, _mm_set1_ps(g.outer));
  if (g.y_half)
    _mm_mask_storeu_epi16(static_cast<Half*>(g.y) + offset, mask, (__m128i)_mm_cvtneps_pbh(y));
  else
    _mm_mask_storeu_ps(static_cast<float*>(g.y) + offset, mask, y);
}

// Calls tile.run<rows>(token) for all tokens of [begin, end), at most kRows together.
template <int kRows, class Tile>
void for_tokens(int64_t begin, int64_t end, const Tile& tile) {
  for (; begin + kRows <= end; begin += kRows) tile.template run<kRows>(begin);
  if constexpr (kRows > 1) for_tokens<kRows - 1>(begin, end, tile);
}

// A part of K for the outputs [begin, end): the partial sums wait in the scratch between two parts, whole vectors, so
// the parts change no bit.
struct HalfTile {
  const GemmBlock& g;
  int64_t begin, end;      // outputs
  int64_t k_begin, k_end;  // columns
  int64_t first_token;     // whose sums begin the scratch

  float* waiting(int64_t token, int64_t output) const {
    return reinterpret_cast<float*>(g.scratch) + ((token - first_token) * kBlockOutputs + output - begin) * 16;
  }

  template <int kRows>
  void run(int64_t token) const {
    for (int64_t n = begin; n < end; n += kOutputs) run<kRows>(token, n);
  }

  template <int kRows>
  void run(int64_t token, int64_t output) const {
    const Half* w[kOutputs];
    for (int j = 0; j < kOutputs; ++j) w[j] = reinterpret_cast<const Half*>(g.data) + min(output + j, g.end - 1) * g.in;
    const Half* x = static_cast<const Half*>(g.x) + token * g.x_stride;
    __m512 acc[kRows][kOutputs];
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kOutputs; ++j)
        acc[i][j] = k_begin == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(waiting(token + i, output + j));
    int64_t k = k_begin;
    for (; k + 32 <= k_end; k += 32) {
      __m512bh b[kOutputs];
      for (int j = 0; j < kOutputs; ++j) b[j] = load(w[j] + k);
      for (int i = 0; i < kRows; ++i) {
        const __m512bh a = load(x + i * g.x_stride + k);
        for (int j = 0; j < kOutputs; ++j) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], a, b[j]);
      }
    }
    if (k_end < g.in) {
      for (int i = 0; i < kRows; ++i)
        for (int j = 0; j < kOutputs; ++j) _mm512_storeu_ps(waiting(token + i, output + j), acc[i][j]);
      return;
    }
    if (k < g.in)
      for (int i = 0; i < kRows; ++i)
        for (int j = 0; j < kOutputs; ++j)
          acc[i][j] = _mm512_dpbf16_ps(acc[i][j], load(x + i * g.x_stride + k), load(w[j] + k, g.in - k));
    for (int i = 0; i < kRows; ++i) store(g, token + i, output, sum(acc[i]));
  }
};

// Four outputs; weights are unpacked anew for every few rows, which costs less than to store and read them.
template <class F>
struct CodesTile {
  const GemmBlock& g;
  int64_t output;
  CodesRow<F> weights[kOutputs];

  CodesTile(const GemmBlock& g, int64_t output) : g(g), output(output) {
    for (int j = 0; j < kOutputs; ++j) weights[j] = CodesRow<F>(g, min(output + j, g.end - 1));
  }

  // acc += products of one block: the sum of four columns a lane, times their scale.
  template <int kRows>
  [[gnu::always_inline]] void add(__m512* acc, const Half* x, const Codes& w) const {
    for (int i = 0; i < kRows; ++i) {
      const Half* p = x + i * g.x_stride;
      const __m512 even = _mm512_dpbf16_ps(_mm512_setzero_ps(), load(p), w.even);
      acc[i * kOutputs] = _mm512_fmadd_ps(_mm512_dpbf16_ps(even, load(p + 32), w.odd), w.scale, acc[i * kOutputs]);
    }
  }

  template <int kRows>
  void run(int64_t token) const {
    const Half* x = static_cast<const Half*>(g.x) + token * g.x_stride;
    __m512 acc[kRows * kOutputs];
    for (__m512& v : acc) v = _mm512_setzero_ps();
    const int64_t blocks = g.in / 64;
    for (int64_t b = 0; b < blocks; ++b)
      for (int j = 0; j < kOutputs; ++j) {
        weights[j].prefetch(b);
        add<kRows>(acc + j, x + b * 64, weights[j].load(b));
      }
    if (g.in % 64 != 0)
      for (int j = 0; j < kOutputs; ++j) add<kRows>(acc + j, x + blocks * 64, weights[j].load_tail(blocks, g.in % 64));
    for (int i = 0; i < kRows; ++i) store(g, token + i, output, sum(acc + i * kOutputs));
  }
};

template <class F>
void multiply_codes(const GemmBlock& g) {
  for (int64_t m = 0; m < g.tokens; m += kTokens)
    for (int64_t n = g.begin; n < g.end; n += kOutputs)
      for_tokens<kMaxRows>(m, min(m + kTokens, g.tokens), CodesTile<F>(g, n));
}

static_assert(kTokens * kBlockOutputs * 16 * sizeof(float) <= kWaitingBytes);

}  // namespace

void gemm_half(const GemmBlock& g) {
  // Few rows: the weights stream by once. Many: a part of K at a time, so that a tile of x stays in the L1 cache.
  const int64_t k_step = g.tokens <= kMaxRows ? g.in : kColumns;
  for (int64_t m = 0; m < g.tokens; m += kTokens)
    for (int64_t n = g.begin; n < g.end; n += kBlockOutputs)
      for (int64_t k = 0; k < g.in; k += k_step)
        for_tokens<kMaxRows>(m, min(m + kTokens, g.tokens),
                             HalfTile{g, n, min(n + kBlockOutputs, g.end), k, min(k + k_step, g.in), m});
}

void gemm_codes(const GemmBlock& g) {
  if (g.format == Format::kNvfp4)
    multiply_codes<Nvfp4>(g);
  else
    multiply_codes<Mxfp8>(g);
}

void split_row(Half* packed, const Half* x, int64_t in) {
  for (int64_t k = 0; k < in; k += 64) {
    const int64_t left = min(64, in - k);
    const __mmask32 first = left >= 32 ? 0xffffffffu : (1u << left) - 1;
    const __mmask32 second = left >= 64 ? 0xffffffffu : left > 32 ? (1u << (left - 32)) - 1 : 0;
    const __m512i a = _mm512_maskz_loadu_epi16(first, x + k), b = _mm512_maskz_loadu_epi16(second, x + k + 32);
    const __m512i low = _mm512_set1_epi32(0xffff);
    // Even and odd halves of each 4 bytes, narrowed in order.
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(packed + k), _mm512_cvtepi32_epi16(_mm512_and_si512(a, low)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(packed + k + 16), _mm512_cvtepi32_epi16(_mm512_and_si512(b, low)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(packed + k + 32), _mm512_cvtepi32_epi16(_mm512_srli_epi32(a, 16)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(packed + k + 48), _mm512_cvtepi32_epi16(_mm512_srli_epi32(b, 16)));
  }
}

}  // namespace nib::cpu::avx512
