// What a model needs before anything of it is loaded: memory by purpose, and the bytes that one token touches.
//   Result<ModelShape> shape = ModelShape::load(folder_or_config);
//   Result<MemoryPlan> plan = plan_memory(*shape, {.tensor_parallel_size = 4});
//   NIB_TRY(check_fits(*plan, memory_limit_bytes()));
// GB are 10^9 bytes. Sharding over tensor-parallel ranks follows the tensor table.
#pragma once

#include <array>
#include <filesystem>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "model/config.h"
#include "model/memory_limit.h"
#include "model/network.h"
#include "model/tensor_table.h"

namespace nib {

// One tensor of the network as it is or would be stored.
struct WeightItem {
  TensorSpec spec;
  WeightFormat format = WeightFormat::kBF16;
  int64_t sharded_bytes = 0;     // what ranks share; of replicated tensors nothing
  int64_t replicated_bytes = 0;  // what every rank holds
  int64_t converted_bytes = 0;   // copies that loading makes beside the mapped file
};

// Constants and weights of a model: of a checkpoint, or of a config alone (the usual tensors in the declared
// precision).
struct ModelShape {
  ModelConfig config;
  std::vector<WeightItem> weights;
  bool from_checkpoint = false;

  static Result<ModelShape> load(const std::filesystem::path& folder_or_config);
};

struct PlanOptions {
  int64_t tensor_parallel_size = 1;
  int64_t max_model_len = 0;  // tokens of a sequence; 0: the model's limit
  int64_t max_num_seqs = 1;   // sequences at once, all of full length
  int64_t max_num_batched_tokens = 2048;
  int64_t num_threads = 1;  // of the CPU backend; its workspace grows with them
  LoadOptions load = {};
  double bandwidth_gb_s = 0;  // of one rank; 0: no time is given
};

// Bytes of one rank, if not said otherwise.
struct MemoryPlan {
  PlanOptions options;                                                  // with max_model_len resolved
  std::array<int64_t, kNumTensorKinds> weights{}, weights_all_ranks{};  // by TensorKind; all ranks: each tensor once
  int64_t nvfp4_experts_all_ranks = 0, mxfp8_experts_all_ranks = 0;
  int64_t converted = 0;  // copies made while loading

  int64_t full_per_token = 0;       // K and V of all full layers
  int64_t window_per_sequence = 0;  // K and V of all sliding layers, one window
  int64_t conv_per_sequence = 0;
  int64_t bank_per_token = 0;                       // depth blocks and the current state, Inkling 2
  int64_t kv_full = 0, kv_window = 0, kv_conv = 0;  // reserved, in whole blocks
  int64_t activations = 0;

  // One token at batch 1: each chosen expert, every other matrix, one row of the embedding.
  std::array<int64_t, kNumTensorKinds> touched{}, touched_all_ranks{};
  int64_t touched_cache = 0;  // with max_model_len tokens in the cache

  int64_t weight_bytes() const;
  int64_t cache_bytes() const { return kv_full + kv_window + kv_conv; }
  int64_t total_bytes() const { return weight_bytes() + converted + cache_bytes() + activations; }
  int64_t touched_bytes() const;
  double token_ms() const;  // at the given bandwidth, with a full cache; 0 without one

  std::string text() const;  // as `nib plan` prints it
  Json json() const;
};

// Fails where the sizes do not divide among the ranks.
Result<MemoryPlan> plan_memory(const ModelShape& shape, const PlanOptions& options);

// A sentence with the plan's figures if it does not fit.
Status check_fits(const MemoryPlan& plan, int64_t limit_bytes);

}  // namespace nib
