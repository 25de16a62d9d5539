// Matrix product with a weight in the layout of its checkpoint: y = x . W^T.
//   Weight w = Weight::plain(data, out, in);
//   ops::gemm(cx, y, x, w);                     // y: [tokens, out]  x: [tokens, in]
#pragma once

#include <cstdint>
#include <span>

#include "compute/tensor/context.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/view.h"

namespace nib {

// How the elements of a weight matrix are stored (spec: NVFP4 block 16 + E4M3 scale + FP32 outer; MXFP8 block 32 +
// E8M0).
enum class WeightFormat : uint8_t { kF32, kBF16, kNvfp4, kMxfp8 };

// A read-only weight matrix [out, in], row-major, as it lies in the checkpoint; owns nothing.
//   kF32, kBF16: data [out, in]
//   kNvfp4: data U8 [out, in/2], element 2i in the low nibble of byte i; scales E4M3 [out, in/16];
//           value = e2m1(code) * e4m3(scale) * outer
//   kMxfp8: data E4M3 [out, in]; scales E8M0 [out, in/32]; value = e4m3 * 2^(scale-127); outer is 1
struct Weight {
  WeightFormat format = WeightFormat::kBF16;
  int64_t out = 0, in = 0;
  const void* data = nullptr;
  const uint8_t* scales = nullptr;
  float outer = 1.0f;

  static Weight plain(const float* data, int64_t out, int64_t in);
  static Weight plain(const bf16* data, int64_t out, int64_t in);
  bool empty() const { return data == nullptr; }
  // Rows [begin, end).
  Weight slice(int64_t begin, int64_t end) const;
};

int64_t row_bytes(WeightFormat format, int64_t in);        // of data
int64_t row_scale_bytes(WeightFormat format, int64_t in);  // of scales

namespace ops {

// y[t, n] = round_Y( sum_k x[t, k] * W[n, k] )       sums in FP32; Y is T or float (router, head)
// x: [tokens, in] in T (float or bf16)   y: [tokens, out]   rows may be strided, the last axis is contiguous
// Law: y[t, :] is a function of x[t, :] and W alone, bit for bit, for any number of tokens and any place of t.
// NVFP4: outer multiplies the finished sum (code * scale is exact in bf16, outer is not).
template <class T, class Y>
void gemm(Context& cx, View<Y, 2> y, View<const T, 2> x, const Weight& w);

// One product of several that need not wait for each other.
template <class T>
struct Product {
  View<T, 2> y;
  View<const T, 2> x;
  const Weight* w;
};
// Each as gemm alone would compute it, bit for bit. Where all have few rows, one loop over all of them is much faster
// than a loop for each; inputs that are the same rows are laid out for the kernels once.
template <class T>
void gemm_all(Context& cx, std::span<const Product<T>> products);
inline constexpr int64_t kMaxProducts = 8;

// Workspace that a gemm over so many inputs takes at most, whatever the format and the instruction set;
// gemm_all takes as much as one over the rows of all its different inputs, of which the widest counts.
int64_t gemm_workspace_bytes(int64_t tokens, int64_t in, int64_t num_threads);

}  // namespace ops
}  // namespace nib
