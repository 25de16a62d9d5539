#include "engine/cache_plan.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "engine/block_manager.h"
#include "model/memory_limit.h"

namespace nib {

namespace {

using Kind = CacheSpec::Kind;

// Blocks that so many sequences of so many positions hold at most; a chunk is shared by all rows of a step.
int64_t blocks_for(const CacheSpec& spec, int64_t sequences, int64_t positions, const EngineConfig& c) {
  if (spec.kind != Kind::kWindow) return sequences * blocks_of_sequence(spec, positions, c.max_num_batched_tokens);
  return blocks_of_sequence(spec, positions, c.max_num_batched_tokens) +
         (sequences - 1) * blocks_of_sequence(spec, positions, 1);
}

// One sequence of so many positions; and a convolution slot for each that may run.
int64_t least_blocks(const CacheSpec& spec, int64_t positions, const EngineConfig& c) {
  return blocks_for(spec, spec.kind == Kind::kConv ? c.max_num_seqs : 1, positions, c);
}

int64_t least_bytes(std::span<const CacheSpec> specs, int64_t positions, const EngineConfig& c) {
  int64_t bytes = 0;
  for (const CacheSpec& s : specs) bytes += least_blocks(s, positions, c) * s.bytes_per_block;
  return bytes;
}

int64_t largest_model_len(std::span<const CacheSpec> specs, const EngineConfig& c, int64_t bytes) {
  int64_t fits = 0, too_many = c.max_model_len;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (least_bytes(specs, middle, c) <= bytes ? fits : too_many) = middle;
  }
  return fits;
}

Status too_small(std::span<const CacheSpec> specs, const EngineConfig& c, int64_t bytes) {
  const int64_t needed = least_bytes(specs, c.max_model_len, c), fits = largest_model_len(specs, c, bytes);
  const std::string what = c.kv_cache_memory_bytes > 0
                               ? fmt::format("--kv-cache-memory-bytes {}", c.kv_cache_memory_bytes)
                               : fmt::format("The {} bytes of free memory", bytes);
  const std::string remedy =
      fits > 0 ? fmt::format("the largest --max-model-len that fits is {}", fits)
               : fmt::format("not even the states of --max-num-seqs {} sequences fit, lower it", c.max_num_seqs);
  return invalid("{} cannot hold one sequence of --max-model-len {} tokens, which takes {} bytes of cache: {}.", what,
                 c.max_model_len, needed, remedy);
}

}  // namespace

Result<CachePlan> plan_caches(std::span<const CacheSpec> specs, const EngineConfig& c, int64_t available_bytes) {
  const int64_t least = least_bytes(specs, c.max_model_len, c);
  const bool given = c.kv_cache_memory_bytes > 0;
  const int64_t limit = given ? c.kv_cache_memory_bytes : available_bytes;
  if (least > limit) return too_small(specs, c, limit);
  int64_t left = (given ? limit : std::max(least, available_bytes / 4)) - least;

  CachePlan plan;
  for (const CacheSpec& s : specs) plan.num_blocks.push_back(least_blocks(s, c.max_model_len, c));
  for (Kind kind : {Kind::kWindow, Kind::kFull}) {
    int64_t share = kind == Kind::kWindow ? left / 2 : left;
    for (size_t g = 0; g < specs.size(); ++g) {
      if (specs[g].kind != kind) continue;
      const int64_t useful = blocks_for(specs[g], c.max_num_seqs, c.max_model_len, c) - plan.num_blocks[g];
      const int64_t more = std::min(useful, share / specs[g].bytes_per_block);
      plan.num_blocks[g] += more;
      share -= more * specs[g].bytes_per_block;
      left -= more * specs[g].bytes_per_block;
    }
  }
  for (size_t g = 0; g < specs.size(); ++g) plan.bytes += plan.num_blocks[g] * specs[g].bytes_per_block;
  if (plan.bytes > available_bytes)
    return invalid("--kv-cache-memory-bytes {}: the cache would take {} bytes, and {} are free.",
                   c.kv_cache_memory_bytes, plan.bytes, available_bytes);
  return plan;
}

int64_t available_memory_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  for (int64_t kib = 0; meminfo >> key >> kib; meminfo.ignore(256, '\n'))
    if (key == "MemAvailable:") return std::min(kib * 1024, memory_limit_bytes());
  return 0;
}

}  // namespace nib
