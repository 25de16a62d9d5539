// Products with bf16 activations: every output is one vector of 16 partial sums over K in one order, then one tree.
// Tiles share loads only, so their shape cannot change a bit.
#include <immintrin.h>

#include "compute/cpu/codes_avx512.h"
#include "compute/cpu/sums_avx512.h"

namespace nib::cpu::avx512 {

namespace {

constexpr int kOutputs = 4;            // of one tile
constexpr int kMaxRows = 6;            // of one tile: with as many outputs what the registers hold
constexpr int kMaxCodesRows = 8;       // more rows for fewer outputs: unpacking is dear
constexpr int kStored = 16;            // outputs that are summed up and stored together: four tiles
constexpr int64_t kBlockOutputs = 64;  // whose weights stay in the L2 cache while the tokens pass
constexpr int64_t kColumns = 1024;     // of which a tile stays in the L1 cache
// Weights are asked for so many elements ahead: rows may be too short for the hardware to see a stream, but they lie
// one after the other.
constexpr int64_t kAhead = 2048;
constexpr int64_t kTokens = 48;  // rows of x that stay in the L2 cache while the weights pass

__m512bh load(const Half* p) { return (__m512bh)_mm512_loadu_si512(p); }
__m512bh load(const Half* p, int64_t n) {
  return (__m512bh)_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << n) - 1), p);
}

void store(const GemmBlock& g, int64_t token, int64_t output, __m512 y) {
  const __mmask16 mask = static_cast<__mmask16>((1u << min(kStored, g.end - output)) - 1);
  const int64_t offset = token * g.y_stride + output;
  y = _mm512_mul_ps(y, _mm512_set1_ps(g.outer));
  if (g.y_half)
    _mm256_mask_storeu_epi16(static_cast<Half*>(g.y) + offset, mask, (__m256i)_mm512_cvtneps_pbh(y));
  else
    _mm512_mask_storeu_ps(static_cast<float*>(g.y) + offset, mask, y);
}

// Calls tile.run<rows>(token) for all tokens of [begin, end), in as few pieces of about one size as at most kMost rows
// allow.
template <int kMost, int kRows = kMost, class Tile>
void for_tokens(int64_t begin, int64_t end, const Tile& tile) {
  const int64_t left = end - begin, pieces = (left + kMost - 1) / kMost;
  if constexpr (kRows > 0) {
    if (left < kRows * pieces) return for_tokens<kMost, kRows - 1>(begin, end, tile);
    tile.template run<kRows>(begin);
    if (left > kRows) for_tokens<kMost>(begin + kRows, end, tile);
  }
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
    for (int64_t n = begin; n < end; n += kStored) {
      __m512 folds[kRows][kStored / kOutputs];
      for (int q = 0; q < kStored / kOutputs; ++q) {
        __m512 acc[kRows][kOutputs];
        add<kRows>(acc, token, n + q * kOutputs);
        for (int i = 0; i < kRows; ++i) folds[i][q] = fold(acc[i]);
      }
      if (k_end == g.in)
        for (int i = 0; i < kRows; ++i) store(g, token + i, n, sum_folds(folds[i]));
    }
  }

  template <int kRows>
  [[gnu::always_inline]] void add(__m512 (&acc)[kRows][kOutputs], int64_t token, int64_t output) const {
    const Half* w[kOutputs];
    for (int j = 0; j < kOutputs; ++j) w[j] = reinterpret_cast<const Half*>(g.data) + min(output + j, g.end - 1) * g.in;
    const Half* x = static_cast<const Half*>(g.x) + token * g.x_stride;
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kOutputs; ++j)
        acc[i][j] = k_begin == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(waiting(token + i, output + j));
    int64_t k = k_begin;
    for (; k + 32 <= k_end; k += 32) {
      __m512bh b[kOutputs];
      for (int j = 0; j < kOutputs; ++j) {
        b[j] = load(w[j] + k);
        _mm_prefetch(reinterpret_cast<const char*>(w[j] + k + kAhead), _MM_HINT_T0);
      }
      for (int i = 0; i < kRows; ++i) {
        const __m512bh a = load(x + i * g.x_stride + k);
        for (int j = 0; j < kOutputs; ++j) acc[i][j] = _mm512_dpbf16_ps(acc[i][j], a, b[j]);
      }
    }
    if (k < k_end)
      for (int i = 0; i < kRows; ++i)
        for (int j = 0; j < kOutputs; ++j)
          acc[i][j] = _mm512_dpbf16_ps(acc[i][j], load(x + i * g.x_stride + k), load(w[j] + k, g.in - k));
    if (k_end < g.in)
      for (int i = 0; i < kRows; ++i)
        for (int j = 0; j < kOutputs; ++j) _mm512_storeu_ps(waiting(token + i, output + j), acc[i][j]);
  }
};

// Sixteen outputs; weights are unpacked anew for every few rows, which costs less than to store and read them.
template <class F>
struct CodesTile {
  const GemmBlock& g;
  int64_t output;
  CodesRow<F> weights[kStored];

  CodesTile(const GemmBlock& g, int64_t output) : g(g), output(output) {
    for (int j = 0; j < kStored; ++j) weights[j] = CodesRow<F>(g, min(output + j, g.end - 1));
  }

  // acc[.][0] += products of one block: the sum of four columns a lane, times their scale.
  template <int kRows, int kTogether>
  [[gnu::always_inline]] void add(__m512* acc, const Half* x, const Codes& w) const {
    for (int i = 0; i < kRows; ++i) {
      const Half* p = x + i * g.x_stride;
      const __m512 even = _mm512_dpbf16_ps(_mm512_setzero_ps(), load(p), w.even);
      acc[i * kTogether] = _mm512_fmadd_ps(_mm512_dpbf16_ps(even, load(p + 32), w.odd), w.scale, acc[i * kTogether]);
    }
  }

  // The partial sums of kTogether outputs from `first` on.
  template <int kRows, int kTogether>
  [[gnu::always_inline]] void multiply(__m512 (*sums)[kOutputs], const Half* x, int first) const {
    const CodesRow<F>* w = weights + first;
    const int64_t blocks = g.in / 64;
    __m512 acc[kRows * kTogether];
    for (__m512& v : acc) v = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; ++b)
      for (int j = 0; j < kTogether; ++j) {
        w[j].prefetch(b);
        add<kRows, kTogether>(acc + j, x + b * 64, w[j].load(b));
      }
    if (g.in % 64 != 0)
      for (int j = 0; j < kTogether; ++j)
        add<kRows, kTogether>(acc + j, x + blocks * 64, w[j].load_tail(blocks, g.in % 64));
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kTogether; ++j) sums[i][first % kOutputs + j] = acc[i * kTogether + j];
  }

  template <int kRows>
  void run(int64_t token) const {
    const Half* x = static_cast<const Half*>(g.x) + token * g.x_stride;
    constexpr int kTogether = kRows > kMaxRows ? kOutputs / 2 : kOutputs;
    __m512 folds[kRows][kStored / kOutputs];
    for (int q = 0; q < kStored / kOutputs; ++q) {
      __m512 sums[kRows][kOutputs];
      for (int j = 0; j < kOutputs; j += kTogether) multiply<kRows, kTogether>(sums, x, q * kOutputs + j);
      for (int i = 0; i < kRows; ++i) folds[i][q] = fold(sums[i]);
    }
    for (int i = 0; i < kRows; ++i) store(g, token + i, output, sum_folds(folds[i]));
  }
};

template <class F>
void multiply_codes(const GemmBlock& g) {
  for (int64_t m = 0; m < g.tokens; m += kTokens)
    for (int64_t n = g.begin; n < g.end; n += kStored)
      for_tokens<kMaxCodesRows>(m, min(m + kTokens, g.tokens), CodesTile<F>(g, n));
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
