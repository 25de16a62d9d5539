// What the files of one instruction set offer: functions over plain pointers.
//   avx512::gemm(block);
// Those files include this header and immintrin.h only, and keep every helper in an anonymous namespace: an inline
// function shared with the rest of the program could be emitted there with instructions that other machines lack, and
// the linker may pick that copy.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nib::cpu {

// A bfloat16 as its bits.
using Half = uint16_t;

// Columns of packed rows are padded with zeros to a multiple of this.
constexpr int64_t kPadding = 64;

// How a kernel wants the rows of x.
//   kFloat: FP32 in order
//   kHalf: bf16 in order
//   kSplit: bf16, in every 64 columns the 32 even ones first, then the 32 odd ones: the order in which 4- and 8-bit
//           codes unpack
//   kPairs: kHalf for AMX: in tiles of up to 16 rows, [column / 2][row][2]
//   kSplitPairs: kSplit in such tiles
enum class Packing { kFloat, kHalf, kSplit, kPairs, kSplitPairs };
constexpr int64_t kTileRows = 16;

// The same numbers as WeightFormat.
enum class Format : uint8_t { kF32, kBF16, kNvfp4, kMxfp8 };

// The outputs [begin, end) of a product for all tokens.
struct GemmBlock {
  const void* x = nullptr;  // packed rows
  int64_t x_stride = 0;     // elements
  int64_t tokens = 0;
  Format format = Format::kBF16;
  const uint8_t* data = nullptr;    // of output 0
  const uint8_t* scales = nullptr;  // of output 0
  int64_t in = 0;
  float outer = 1.0f;
  void* y = nullptr;  // of output 0
  int64_t y_stride = 0;
  bool y_half = false;  // y is bf16, else FP32
  int64_t begin = 0, end = 0;
  std::byte* scratch = nullptr;  // of this thread, gemm_scratch(in) bytes
};
constexpr int64_t kWaitingBytes = 48 * 64 * 64;  // partial sums between two parts of K
// 32 rows of weights as bf16 (or fewer as floats), or the partial sums.
constexpr int64_t gemm_scratch(int64_t in) { return (in + kPadding - 1) / kPadding * kPadding * 64 + kWaitingBytes; }

// Four taps or any other width of a convolution at one row.
template <class E>
struct ConvRow {
  E* y = nullptr;
  const E* const* inputs = nullptr;  // [width], oldest first; null reads as zero; the last is the row itself
  const E* fixed = nullptr;          // [channels, width] or null
  const E* generated = nullptr;      // [channels / head_dim, width] or null
  const E* residual = nullptr;       // or null
  int64_t channels = 0, head_dim = 0, width = 0;
  bool skip = true;
};

// One token of a depth mixture; see ops/depth_mix.h.
template <class E>
struct DepthMixRow {
  E* const* outputs = nullptr;
  const E* const* sources = nullptr;
  const float* const* queries = nullptr;  // null: the only source unmixed
  const E* const* gains = nullptr;        // null: the mixture without its norm
  int num_outputs = 0, num_sources = 0;
  int64_t hidden = 0;
  float logit_scale = 1, source_eps = 0, norm_eps = 0;
  float* scratch = nullptr;  // [hidden]
};

enum class Gate { kSigmoid, kSilu, kTanh, kNone };

// The same numbers as Activation.
struct ActivationRow {
  bool situ = false;
  float beta = 0, linear_beta = 0, weight = 1;
};

// The query heads of one row that share a key head.
template <class E>
struct AttentionRow {
  E* out = nullptr;                          // [group, head_dim]
  const E* q = nullptr;                      // [group, head_dim]
  const E *k = nullptr, *v = nullptr;        // the cache at this key head
  int64_t block_stride = 0, key_stride = 0;  // elements
  const int32_t* block_table = nullptr;      // of the sequence
  int64_t block_size = 0;                    // keys
  const E* profile = nullptr;                // [group, ...]
  int64_t profile_stride = 0;
  const float* sink = nullptr;      // [group] or null
  int64_t first = 0, position = 0;  // keys first .. position are visible
  int64_t extent = 0;
  bool clamp_beyond_extent = false;
  float scale = 1;
  int64_t group = 0, head_dim = 0;
  float* scratch = nullptr;  // attention_scratch(group, head_dim) floats
};
constexpr int64_t kKeyBlock = 64;  // keys of one step of the online softmax, at absolute positions
constexpr int64_t attention_scratch(int64_t group, int64_t head_dim) {
  return group * (2 * ((head_dim + 31) / 32 * 32) + kKeyBlock + 17) + 64;
}

struct ProfileShape {
  int64_t heads = 0, d_rel = 0, columns = 0;
  int64_t table_stride = 0;  // between rows of the table
};

// The operations on one row; E is float or Half.
template <class E>
struct RowKernels {
  void (*rms_norm)(E* y, const E* x, const E* weight, int64_t n, float eps);  // weight may be null
  void (*rms_norm_floats)(E* y, const float* x, const E* weight, int64_t n, float eps);
  void (*rms_norm_halves)(E* y, const Half* x, const E* weight, int64_t n, float eps);
  void (*add)(E* y, const E* x, const E* delta, int64_t n);
  void (*scale)(E* x, int64_t n, float factor);
  void (*clip)(E* x, const E* scale, int64_t n, float limit);  // scale may be null
  void (*gate)(E* y, const E* gate, int64_t n, Gate act);
  void (*gate_head)(E* y, E gate, int64_t n, Gate act);
  void (*activation)(E* y, const E* h, int64_t n, const ActivationRow& a);
  void (*conv)(const ConvRow<E>& c);
  void (*depth_mix)(const DepthMixRow<E>& m);
  // profile: [heads, columns]   r: [heads, d_rel]   table: [d_rel, columns]
  void (*profile)(E* profile, const E* r, const E* table, const ProfileShape& p);
  // y = round( (accumulate ? y : 0) + sum_j factors[j] * parts[slots[j] * n ...] ), j in order, FP32; factors may be
  // null (1)
  void (*combine)(E* y, const E* parts, const int32_t* slots, const float* factors, int64_t count, int64_t n,
                  bool accumulate);
  void (*combine_floats)(E* y, const float* parts, const int32_t* slots, const float* factors, int64_t count, int64_t n,
                         bool accumulate);
  void (*soft_cap)(float* x, int64_t n, float mup, float cap);
  void (*sigmoid)(float* y, const float* x, int64_t n);
};

namespace avx2 {
template <class E>
void attention_row(const AttentionRow<E>& a);
void gemm(const GemmBlock& g);                              // kFloat
int64_t multiply_registers(int64_t rounds);                 // at full rate; the operations done
int64_t read_memory(const std::byte* data, int64_t bytes);  // every byte once; a value that depends on them

extern const RowKernels<float> kFloatRows;
extern const RowKernels<Half> kHalfRows;
}  // namespace avx2
namespace avx512 {
void gemm_half(const GemmBlock& g);   // kHalf, BF16 weights
void gemm_codes(const GemmBlock& g);  // kSplit, NVFP4 and MXFP8 weights
template <class E>
void attention_row(const AttentionRow<E>& a);
void split_row(Half* packed, const Half* x, int64_t in);
extern const RowKernels<float> kFloatRows;
extern const RowKernels<Half> kHalfRows;
int64_t multiply_registers(int64_t rounds);
}  // namespace avx512

namespace amx {
void gemm_half(const GemmBlock& g);   // kPairs, BF16 weights
void gemm_codes(const GemmBlock& g);  // kSplitPairs, NVFP4 and MXFP8 weights
int64_t multiply_registers(int64_t rounds);
}  // namespace amx

}  // namespace nib::cpu
