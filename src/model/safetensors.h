// The safetensors container: its header read from bytes that nobody trusts, and a writer.
//   Result<std::vector<TensorInfo>> t = read_safetensors_header("model.safetensors");
//   NIB_TRY(write_safetensors(file, tensors));
// Layout: u64 header length (little endian), JSON header, tensor bytes; offsets count from the end of the header.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "compute/tensor/dtype.h"

namespace nib {

struct TensorInfo {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  int shard = 0;       // index into Checkpoint::shards()
  int64_t offset = 0;  // bytes from the start of the file
  int64_t bytes = 0;
};

// "[96, 64]"
std::string shape_text(std::span<const int64_t> shape);

inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

// The tensors that a header declares, in the order of their bytes. Checked: JSON, dtype, shape x dtype = bytes, bounds
// (data_bytes follow the header), overlap, duplicate names. `file` names the file in errors; data_begin is added to the
// offsets.
Result<std::vector<TensorInfo>> parse_safetensors_header(std::string_view header, int64_t data_begin,
                                                         int64_t data_bytes, const std::string& file);

// The same for a file on disk; also checks the header length against the file's size, and that nothing follows the
// last tensor.
Result<std::vector<TensorInfo>> read_safetensors_header(const std::filesystem::path& file);

// One tensor to write: debug outputs, tests.
struct OutTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

// Writes one file, wide elements first so that every tensor is aligned. Nothing is left behind on failure.
Status write_safetensors(const std::filesystem::path& file, std::span<const OutTensor> tensors);

}  // namespace nib
