// Divides the memory for caches among the groups of a network, before anything is reserved.
//   Result<CachePlan> plan = plan_caches(network.cache_specs(), config, available_memory_bytes());
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "model/cache.h"

namespace nib {

struct CachePlan {
  std::vector<int64_t> num_blocks;  // of each group
  int64_t bytes = 0;
};

// config.kv_cache_memory_bytes, or by default a quarter of `available_bytes`, never more than max_num_seqs sequences of
// max_model_len tokens can use. Convolution slots: one a sequence. Window blocks: what max_num_seqs sequences hold, but
// at most half of what is left beyond one full sequence. Full-attention blocks: the rest. Fails, naming the largest
// --max-model-len that fits, if not even one sequence of max_model_len tokens does.
Result<CachePlan> plan_caches(std::span<const CacheSpec> specs, const EngineConfig& config, int64_t available_bytes);

int64_t available_memory_bytes();  // without swapping, and at most the limit of this process

}  // namespace nib
