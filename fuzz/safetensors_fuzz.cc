// A hostile safetensors header: an error, or tensors that lie inside the file, apart, with bytes that fit their shape.
#include <algorithm>

#include "base/check.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const int64_t data_bytes = data[0] + 256 * data[1];
  const std::string_view header(reinterpret_cast<const char*>(data) + 2, size - 2);
  const int64_t begin = 8 + static_cast<int64_t>(header.size());
  const nib::Result<std::vector<nib::TensorInfo>> tensors =
      nib::parse_safetensors_header(header, begin, data_bytes, "fuzz");
  if (!tensors.ok()) {
    NIB_CHECK(!tensors.status().message().empty());
    return 0;
  }
  int64_t end = begin;
  for (const nib::TensorInfo& t : *tensors) {
    int64_t elements = 1;
    for (int64_t d : t.shape) elements *= d;
    NIB_CHECK_EQ(t.bytes, nib::size_in_bytes(t.dtype, elements));
    NIB_CHECK(t.bytes == 0 || t.offset >= end);
    end = std::max(end, t.offset + t.bytes);
    NIB_CHECK(end <= begin + data_bytes);
  }
  return 0;
}
