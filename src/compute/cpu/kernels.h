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
//   kPairs: for AMX: tiles of up to 16 rows, [column / 2][row][2]
enum class Packing { kFloat, kHalf, kSplit, kPairs };

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
  std::byte* scratch = nullptr;  // of this thread, kScratchRows * padded columns * 4 bytes
};
constexpr int64_t kScratchRows = 32;

namespace avx2 {
void gemm(const GemmBlock& g);  // kFloat
}
namespace avx512 {
void gemm_half(const GemmBlock& g);   // kHalf, BF16 weights
void gemm_codes(const GemmBlock& g);  // kSplit, NVFP4 and MXFP8 weights
void split_row(Half* packed, const Half* x, int64_t in);
}  // namespace avx512

}  // namespace nib::cpu
