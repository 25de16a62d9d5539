#include "compute/ops/quantize.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>

namespace nib {

namespace {

constexpr int kNvfp4Block = 16, kMxBlock = 32;

// One way to encode a block: the scale byte, its codes, and the values they stand for.
struct Block {
  uint8_t scale = 0;
  std::array<uint8_t, kNvfp4Block> codes{};
  std::array<float, kNvfp4Block> values{};
};

float largest_magnitude(const float* x, int64_t n) {
  float m = 0;
  for (int64_t i = 0; i < n; ++i) m = std::max(m, std::fabs(x[i]));
  return m;
}

float encode_scale(float amax, float ceiling) {
  if (amax == 0) return 1;
  const float s = std::min(ceiling * 6.0f / amax, FLT_MAX);
  return s != 0 ? s : 1;
}

Block encode_block(const float* x, uint8_t scale, float outer) {
  Block b{.scale = scale};
  if (scale == 0) return b;  // decodes to zero whatever the codes
  const float sf = e4m3_to_float(scale);
  const float inverse = std::min(1.0f / (sf * outer), FLT_MAX);
  for (int i = 0; i < kNvfp4Block; ++i) {
    b.codes[i] = e2m1_from_float(x[i] * inverse);
    b.values[i] = kE2M1[b.codes[i]] * sf * outer;
  }
  return b;
}

// What the choice between two encodings is judged by. Per token the values are formed with amax itself, not with its
// rounded quotient: near-ties notice.
float block_error(const float* x, const Block& b, float amax, const Nvfp4Params& p) {
  const float sf = e4m3_to_float(b.scale), divisor = 6.0f * p.ceiling;
  float total = 0;
  for (int i = 0; i < kNvfp4Block; ++i) {
    const float value = p.scope == ScaleScope::kToken ? kE2M1[b.codes[i]] * sf * amax / divisor : b.values[i];
    const float d = std::fabs(value - x[i]);
    if (p.error == BlockError::kMae) total += d;
    if (p.error == BlockError::kMse) total += d * d;
    if (p.error == BlockError::kAbsMax) total = std::max(total, d);
  }
  return total;
}

Block choose_block(const float* x, float amax, float encode, float outer, const Nvfp4Params& p) {
  const float largest = largest_magnitude(x, kNvfp4Block);
  if (largest == 0) return {};
  const float scale6 = largest / 6.0f * encode;
  const Block six = encode_block(x, e4m3_from_float(std::min(scale6, 448.0f)), outer);
  if (p.rule == Nvfp4Rule::kSix) return six;
  const Block four = encode_block(x, e4m3_from_float(std::min(scale6 * 1.5f, 448.0f)), outer);
  return block_error(x, four, amax, p) < block_error(x, six, amax, p) ? four : six;  // a tie stays with 6
}

// Smallest e with amax <= 448 * 2^e, or floor(log2 amax) - 8.
int mx_exponent(float amax, MxRule rule) {
  int e = 0;
  if (rule == MxRule::kFloor) {
    std::frexp(amax, &e);
    return amax == 0 ? -127 : std::clamp(e - 9, -127, 127);
  }
  const float ratio = amax / 448.0f;
  const float mantissa = std::frexp(ratio, &e);
  return ratio == 0 ? -127 : std::clamp(mantissa == 0.5f ? e - 1 : e, -127, 127);
}

}  // namespace

uint8_t e4m3_from_float(float x) {
  if (std::isnan(x)) return 0x7f;
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float a = std::fabs(x);
  if (a > 448.0f) return sign | 0x7e;
  if (a < 0x1p-6f) return sign | static_cast<uint8_t>(std::nearbyint(a * 512.0f));  // 8 of them are 2^-6
  int e = 0;
  std::frexp(a, &e);                                                     // a = 1.f * 2^(e-1)
  const int m = static_cast<int>(std::nearbyint(std::ldexp(a, 4 - e)));  // 8..16
  return sign | static_cast<uint8_t>(((e + 6) << 3) + (m - 8));          // 16 carries into the exponent
}

uint8_t e2m1_from_float(float x) {
  if (std::isnan(x)) return 7;
  const uint8_t sign = std::signbit(x) ? 8 : 0;
  const float a = std::min(std::fabs(x), 6.0f);
  // Steps of 1/2 below 2, of 1 below 4, of 2 above; the codes of each stretch follow the one before.
  const float code = a < 2 ? std::nearbyint(2 * a) : a < 4 ? std::nearbyint(a) + 2 : std::nearbyint(a / 2) + 4;
  return sign | static_cast<uint8_t>(code);
}

namespace ops {

void quantize_nvfp4(const QuantizedRows& out, View<const float, 2> x, View<const float, 1> amax, const Nvfp4Params& p) {
  const int64_t columns = x.dim(1);
  NIB_CHECK_EQ(columns % kNvfp4Block, 0);
  NIB_CHECK_EQ(amax.dim(0), p.scope == ScaleScope::kToken ? x.dim(0) : 1);
  NIB_CHECK_EQ(out.outer.dim(0), amax.dim(0));
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const int64_t s = p.scope == ScaleScope::kToken ? t : 0;
    const float encode = encode_scale(amax(s), p.ceiling), outer = 1.0f / encode;
    out.outer(s) = outer;
    for (int64_t k = 0; k < columns; k += kNvfp4Block) {
      const Block b = choose_block(x.row(t) + k, amax(s), encode, outer, p);
      out.scales(t, k / kNvfp4Block) = b.scale;
      for (int i = 0; i < kNvfp4Block; i += 2)
        out.codes(t, (k + i) / 2) = static_cast<uint8_t>(b.codes[i] | b.codes[i + 1] << 4);
      if (!out.dequantized.empty()) std::copy(b.values.begin(), b.values.end(), out.dequantized.row(t) + k);
    }
  }
}

void quantize_mxfp8(const QuantizedRows& out, View<const float, 2> x, MxRule rule) {
  const int64_t columns = x.dim(1);
  NIB_CHECK_EQ(columns % kMxBlock, 0);
  for (int64_t t = 0; t < x.dim(0); ++t) {
    for (int64_t k = 0; k < columns; k += kMxBlock) {
      const int e = mx_exponent(largest_magnitude(x.row(t) + k, kMxBlock), rule);
      out.scales(t, k / kMxBlock) = static_cast<uint8_t>(e + 127);
      for (int64_t i = k; i < k + kMxBlock; ++i) {
        const uint8_t element = e4m3_from_float(std::ldexp(x(t, i), -e));
        out.codes(t, i) = element;
        if (!out.dequantized.empty()) out.dequantized(t, i) = std::ldexp(e4m3_to_float(element), e);
      }
    }
  }
}

void absolute_maxima(View<float, 1> amax, View<const float, 2> x, ScaleScope scope) {
  NIB_CHECK_EQ(amax.dim(0), scope == ScaleScope::kToken ? x.dim(0) : 1);
  if (scope == ScaleScope::kTensor) amax(0) = 0;
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const float m = largest_magnitude(x.row(t), x.dim(1));
    if (scope == ScaleScope::kToken)
      amax(t) = m;
    else
      amax(0) = std::max(amax(0), m);
  }
}

}  // namespace ops
}  // namespace nib
