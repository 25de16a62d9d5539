// Element types of tensors and the small number formats of the checkpoints.
//   bf16 b = bf16::from(1.5f);
//   float f = float(b);
//   size_in_bytes(DType::kBF16, n);
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace nib {

enum class DType : uint8_t { kF32, kF16, kBF16, kE4M3, kE8M0, kU8, kI32, kI64 };

// bfloat16: the upper half of a float. from() rounds to nearest, ties to even; NaN stays NaN.
struct bf16 {
  uint16_t bits;

  static bf16 from(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40)};
    return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1)) >> 16)};
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// to<T>(f): f rounded once to the activation type; as_float(t): the value, exact.
template <class T>
T to(float f);
template <>
inline float to<float>(float f) {
  return f;
}
template <>
inline bf16 to<bf16>(float f) {
  return bf16::from(f);
}
inline float as_float(float f) { return f; }
inline float as_float(bf16 b) { return float(b); }

float f16_to_float(uint16_t bits);
float e4m3_to_float(uint8_t byte);          // 0x7f and 0xff are NaN
inline float e8m0_to_float(uint8_t byte) {  // 2^(byte-127); 255 is NaN, 0 is 2^-127
  return byte == 255 ? std::bit_cast<float>(0x7fc00000u)
         : byte == 0 ? 0x1p-127f
                     : std::bit_cast<float>(static_cast<uint32_t>(byte) << 23);
}
inline constexpr float kE2M1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

int64_t size_in_bytes(DType dtype, int64_t count);
std::string_view name(DType dtype);  // the spelling of safetensors: "BF16", "F8_E4M3", ...
Result<DType> dtype_from_name(std::string_view name);

}  // namespace nib
