#include "compute/ops/gemm.h"

namespace nib {

int64_t row_bytes(WeightFormat format, int64_t in) {
  switch (format) {
    case WeightFormat::kF32:
      return in * 4;
    case WeightFormat::kBF16:
      return in * 2;
    case WeightFormat::kNvfp4:
      return in / 2;
    case WeightFormat::kMxfp8:
      return in;
  }
  return 0;
}

int64_t row_scale_bytes(WeightFormat format, int64_t in) {
  if (format == WeightFormat::kNvfp4) return in / 16;
  if (format == WeightFormat::kMxfp8) return in / 32;
  return 0;
}

Weight Weight::plain(const float* data, int64_t out, int64_t in) { return {WeightFormat::kF32, out, in, data}; }
Weight Weight::plain(const bf16* data, int64_t out, int64_t in) { return {WeightFormat::kBF16, out, in, data}; }

Weight Weight::slice(int64_t begin, int64_t end) const {
  NIB_CHECK(0 <= begin && begin <= end && end <= out, "rows {} to {} of {}", begin, end, out);
  Weight part = *this;
  part.out = end - begin;
  part.data = static_cast<const uint8_t*>(data) + begin * row_bytes(format, in);
  if (scales != nullptr) part.scales = scales + begin * row_scale_bytes(format, in);
  return part;
}

}  // namespace nib
