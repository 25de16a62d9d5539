// Makes a random tiny checkpoint of either generation for tests: config.json and safetensors in a folder.
//   Result<fs::path> folder = make_tiny_checkpoint({.experts = TinyOptions::Experts::kMxfp8}, temp);
//   load_network(*folder, {});
// The same seed gives the same values whatever the storage: each tensor is drawn from its name and the seed, rounded to
// values that BF16, F16 and F32 all hold. Sizes and spreads follow the oracle: no clip, cap, gate or router is idle.
#pragma once

#include <filesystem>

#include "base/json.h"
#include "base/status.h"
#include "compute/tensor/dtype.h"
#include "model/config.h"

namespace nib {

struct TinyOptions {
  Generation generation = Generation::kInkling2;
  uint64_t seed = 1;

  int64_t num_layers = 12;  // every layers_per_block-th is a full layer
  int64_t layers_per_block = 6;
  int64_t hidden_size = 64, num_heads = 6, num_kv_heads = 2, head_dim = 16, d_rel = 4;
  int64_t window = 8, extent = 16, num_experts = 9, top_k = 3, expert_width = 32;
  int64_t vocab_size = 288, unpadded_vocab_size = 270, max_position = 4096;
  int64_t num_shared_experts = 2, num_dense_layers = 1, dense_width = 96;  // first generation

  DType dtype = DType::kBF16;  // of plain tensors: BF16, F32 or F16
  // kMixed: NVFP4 in the first 5/6 of the layers, MXFP8 in the rest; kPlain: `dtype`
  enum class Experts { kMixed, kNvfp4, kMxfp8, kPlain } experts = Experts::kMixed;
  int64_t denominator = 2688;  // 1536: encoded with Four Over Six
  enum class DenominatorShape { kScalar, kOne, kPerExpert } denominator_shape = DenominatorShape::kScalar;
  // Names of what goes with a packed weight. kUsual: those of the generation.
  enum class Companions { kUsual, kModelOpt, kCompressedTensors } companions = Companions::kUsual;
  bool u8_scales = false;  // E8M0 scales under the dtype U8

  bool fused_qkvr = false;
  enum class Gate { kChannel, kHead, kNone } gate = Gate::kChannel;
  bool clip_scales = false, global_scale = false, stacked_norms = false, plain_tap_names = false;
  bool hf_names = false;  // first generation: names, halves and config keys of transformers
  int num_shards = 1;
  Json text_config = Json::object();  // merged over the text fields of config.json: the switches
};

// Writes into folder (made if needed) and returns it.
Result<std::filesystem::path> make_tiny_checkpoint(const TinyOptions& options, const std::filesystem::path& folder);

// The config.json alone.
Json tiny_config(const TinyOptions& options);

Status write_json_file(const std::filesystem::path& file, const Json& json);

// A fresh folder under the system's temporary directory, removed with everything in it at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace nib
