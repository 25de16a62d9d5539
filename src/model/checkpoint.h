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
#include "model/safetensors.h"

namespace nib {

class Checkpoint {
 public:
  // Reads and checks every header: size, JSON, dtype, shape x dtype = bytes, bounds, overlap, duplicates, and that
  // index and shards agree. Maps nothing yet.
  static Result<Checkpoint> open(const std::filesystem::path& folder);
  // The files STEM-00001-of-0000N.safetensors of a folder, which no index lists: all N, or none is found.
  static Result<Checkpoint> open_numbered(const std::filesystem::path& folder, const std::string& stem);
  static bool has_numbered(const std::filesystem::path& folder, const std::string& stem);
  // One safetensors file on its own, mapped: debug inputs, references.
  static Result<Checkpoint> open_file(const std::filesystem::path& file);

  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const std::vector<std::filesystem::path>& shards() const { return shards_; }
  const TensorInfo* find(const std::string& name) const;  // null if absent
  std::string shard_name(const TensorInfo& t) const { return shards_[t.shard].filename().string(); }
  int64_t total_bytes() const;                                 // of all tensors
  Status map();                                                // memory-maps all shards read-only; again is harmless
  std::span<const std::byte> data(const TensorInfo& t) const;  // REQUIRES map() was ok

 private:
  struct Mapping;
  Status add_shard(const std::filesystem::path& file);
  Status check_index(const Json& weight_map) const;

  std::map<std::string, TensorInfo> tensors_;
  std::vector<std::filesystem::path> shards_;
  std::vector<std::shared_ptr<const Mapping>> mappings_;
};

// A JSON file read whole. Errors name the file.
Result<Json> read_json_file(const std::filesystem::path& file);

// MODEL as given on the command line: a folder, or a hub id found in the local Hugging Face cache (hf_home: $HF_HOME or
// ~/.cache/huggingface, read by main). Else one sentence says what to download where.
Result<std::filesystem::path> find_model(const std::string& model, const std::filesystem::path& hf_home);

}  // namespace nib
