// What a network remembers of each sequence, as plain data for the scheduler, and the memory that holds it.
//   std::vector<CacheSpec> specs = network.cache_specs();
//   KvCache cache(specs, {num_full_blocks, num_window_blocks, num_slots});
//   cache.k(layer);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute/tensor/buffer.h"
#include "compute/tensor/dtype.h"

namespace nib {

// One group of state that is lent in equal pieces.
//   kFull:   a block of block_size positions for every layer of the group; grows with the sequence
//   kWindow: the same, but blocks whose every position is < p - window + 1 go back to the pool (p: the next position to
//   be computed) kConv:   one slot a sequence: a ring of the last inputs of every convolution stream of every layer
struct CacheSpec {
  enum class Kind { kFull, kWindow, kConv } kind = Kind::kFull;
  std::vector<int64_t> layers;  // indices of the layers in the group
  int64_t block_size = 0;       // positions a block; ring length of kConv
  int64_t window = 0;           // kWindow: tokens, the current one included
  int64_t bytes_per_block = 0;  // over all layers of the group
  // The group's storage is a run of arrays [blocks, part_bytes[i]]; their sum is bytes_per_block. What it takes to copy
  // a block from one sequence to another.
  std::vector<int64_t> part_bytes;
};

}  // namespace nib
