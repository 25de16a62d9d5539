// Encoders of the small number formats: NVFP4 with map-to-6 or Four Over Six, and MXFP8.
//   ops::quantize_nvfp4(out, x, amax, {.rule = Nvfp4Rule::kFourOverSix});
//   ops::quantize_mxfp8(out, x, MxRule::kCeil);
// Formulas: quantisation specification, sections 1.2, 2 and 3.1; every step is FP32, rounded once.
#pragma once

#include <cstdint>

#include "compute/tensor/dtype.h"
#include "compute/tensor/view.h"

namespace nib {

// Nearest, ties to the even mantissa, saturating at 448; the sign of zero is kept; NaN gives 0x7f.
uint8_t e4m3_from_float(float x);
// Nearest, ties to the even mantissa, saturating at 6: a code 0..15; NaN gives +6, as hardware does.
uint8_t e2m1_from_float(float x);

enum class Nvfp4Rule { kSix, kFourOverSix };    // the block's maximum is mapped to 6, or to 4 or 6, what fits better
enum class BlockError { kMae, kMse, kAbsMax };  // how "better" is measured
enum class ScaleScope { kToken, kTensor };      // the maximum behind the outer scale: of a row or of the tensor
enum class MxRule { kCeil, kFloor };            // exponent: nothing saturates, or OCP MX v1.0

struct Nvfp4Params {
  Nvfp4Rule rule = Nvfp4Rule::kFourOverSix;
  float ceiling =
      256;  // largest block scale of map-to-6: 256 leaves room for the 1.5 times larger one of map-to-4; or 448
  BlockError error = BlockError::kMae;
  ScaleScope scope = ScaleScope::kToken;
};

// Where an encoder writes; dequantized may be empty.
struct QuantizedRows {
  View<uint8_t, 2> codes;      // NVFP4 [rows, columns / 2], element 2i in the low nibble; MXFP8 [rows, columns]
  View<uint8_t, 2> scales;     // [rows, columns / 16] E4M3; MXFP8 [rows, columns / 32] E8M0
  View<float, 1> outer;        // NVFP4: the decode factor, [rows] per token, [1] per tensor; MXFP8: not used
  View<float, 2> dequantized;  // [rows, columns]
};

namespace ops {

// value = code * scale * outer;  outer = 1 / (ceiling * 6 / amax)
// x: [rows, columns], columns a multiple of 16   amax: [rows] (token) or [1] (tensor), at least the largest magnitude
void quantize_nvfp4(const QuantizedRows& out, View<const float, 2> x, View<const float, 1> amax, const Nvfp4Params& p);

// value = element * 2^(scale - 127)      x: [rows, columns], columns a multiple of 32
void quantize_mxfp8(const QuantizedRows& out, View<const float, 2> x, MxRule rule);

// The largest magnitudes that quantize_nvfp4 wants: of each row, or of all of x.
void absolute_maxima(View<float, 1> amax, View<const float, 2> x, ScaleScope scope);

}  // namespace ops
}  // namespace nib
