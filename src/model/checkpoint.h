// The tensors of a checkpoint folder: sharded safetensors by index, checked before anything is mapped, then read in
// place.
//   Result<Checkpoint> c = Checkpoint::open(folder);
//   const TensorInfo* t = c->find("model.llm.embed.weight");
//   c->data(*t);
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "compute/tensor/dtype.h"

namespace nib {

struct TensorInfo {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  int shard = 0;       // index into shards()
  int64_t offset = 0;  // bytes from the start of the file
  int64_t bytes = 0;
};

class Checkpoint {
 public:
  // Reads and checks every header: size, JSON, dtype, shape x dtype = bytes, bounds, overlap, duplicates, and that
  // index and shards agree. Maps nothing yet.
  static Result<Checkpoint> open(const std::filesystem::path& folder);

  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const std::vector<std::filesystem::path>& shards() const { return shards_; }
  const TensorInfo* find(const std::string& name) const;       // null if absent
  Status map();                                                // memory-maps all shards read-only
  std::span<const std::byte> data(const TensorInfo& t) const;  // REQUIRES map() was ok

 private:
  struct Mapping;
  std::map<std::string, TensorInfo> tensors_;
  std::vector<std::filesystem::path> shards_;
  std::vector<std::shared_ptr<const Mapping>> mappings_;
};

// Writes one safetensors file (debug outputs, tests). Each tensor: name, dtype, shape, bytes.
struct OutTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};
Status write_safetensors(const std::filesystem::path& file, std::span<const OutTensor> tensors);

// MODEL as given on the command line: a folder, or a hub id found in the local Hugging Face cache (hf_home: $HF_HOME or
// ~/.cache/huggingface, read by main). Else one sentence says what to download where.
Result<std::filesystem::path> find_model(const std::string& model, const std::filesystem::path& hf_home);

}  // namespace nib
