#include "compute/tensor/dtype.h"

#include <cmath>

namespace nib {

namespace {

struct Entry {
  DType dtype;
  int bytes;
  std::string_view name;
};
constexpr Entry kEntries[] = {{DType::kF32, 4, "F32"},      {DType::kF16, 2, "F16"},      {DType::kBF16, 2, "BF16"},
                              {DType::kE4M3, 1, "F8_E4M3"}, {DType::kE8M0, 1, "F8_E8M0"}, {DType::kU8, 1, "U8"},
                              {DType::kI32, 4, "I32"},      {DType::kI64, 8, "I64"}};

const Entry& entry(DType dtype) { return kEntries[static_cast<int>(dtype)]; }

}  // namespace

float f16_to_float(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? std::nanf("") : sign * INFINITY;
  return sign * (exponent ? std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25)
                          : std::ldexp(static_cast<float>(mantissa), -24));
}

float e4m3_to_float(uint8_t byte) {
  const uint32_t exponent = byte >> 3 & 15, mantissa = byte & 7;
  if ((byte & 127) == 127) return std::nanf("");
  const float value =
      exponent ? std::bit_cast<float>((exponent + 120) << 23 | mantissa << 20) : static_cast<float>(mantissa) * 0x1p-9f;
  return byte & 128 ? -value : value;
}

int64_t size_in_bytes(DType dtype, int64_t count) { return entry(dtype).bytes * count; }

std::string_view name(DType dtype) { return entry(dtype).name; }

Result<DType> dtype_from_name(std::string_view name) {
  for (const Entry& e : kEntries)
    if (e.name == name) return e.dtype;
  return invalid("unknown dtype {}", name);
}

}  // namespace nib
