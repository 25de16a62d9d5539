// For tests: a small safetensors file read whole, its numbers as floats (I64 ids are exact below 2^24).
//   std::map<std::string, Rows> reference = read_tensor_file(folder / "reference.safetensors");
//   reference.at("logits_40").row(3);
#pragma once

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "model/safetensors.h"

namespace nib::testing {

// The last axis is a row.
struct Rows {
  int64_t width = 1;
  std::vector<float> values;
  int64_t count() const { return static_cast<int64_t>(values.size()) / width; }
  std::span<const float> row(int64_t i) const { return std::span(values).subspan(i * width, width); }
  std::vector<int32_t> ids() const { return {values.begin(), values.end()}; }
};

inline std::map<std::string, Rows> read_tensor_file(const std::filesystem::path& path) {
  const Result<std::vector<TensorInfo>> header = read_safetensors_header(path);
  NIB_CHECK(header.ok(), "{}", header.status().message());
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::map<std::string, Rows> tensors;
  for (const TensorInfo& t : *header) {
    if (t.dtype != DType::kF32 && t.dtype != DType::kI64) continue;
    Rows& rows = tensors[t.name];
    rows.width = t.shape.empty() ? 1 : t.shape.back();
    const int64_t size = t.dtype == DType::kF32 ? 4 : 8;
    for (int64_t at = t.offset; at < t.offset + t.bytes; at += size) {
      float f = 0;
      int64_t i = 0;
      if (t.dtype == DType::kF32)
        std::memcpy(&f, bytes.data() + at, sizeof f);
      else
        std::memcpy(&i, bytes.data() + at, sizeof i), f = static_cast<float>(i);
      rows.values.push_back(f);
    }
  }
  return tensors;
}

}  // namespace nib::testing
