// Lends each sequence the blocks of every cache group that its positions need.
//   BlockManager blocks(network.cache_specs(), {1000, 300, 128});
//   if (blocks.grow(seq.cache, 40)) ...          // positions 0..39 have a place, or nothing changed
//   blocks.trim(seq.cache, 40);                  // window blocks that no position >= 40 reads go back
//   blocks.release(seq.cache);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/block_pool.h"
#include "model/cache.h"

namespace nib {

// The blocks of one sequence in one group, by position / block_size. The first num_gone went back: -1.
struct BlockTable {
  std::vector<int32_t> blocks;
  int64_t num_gone = 0;
};

// Everything one sequence has borrowed. A new lease number whenever it starts from nothing.
struct SequenceCache {
  std::vector<BlockTable> tables;  // one per group; kConv: one entry, the slot
  uint64_t lease = 0;
};

struct BlockCopy {
  int32_t group, from, to;
};

// Owned by the engine thread.
class BlockManager {
 public:
  BlockManager(std::vector<CacheSpec> specs, std::span<const int64_t> num_blocks);

  bool grow(SequenceCache& cache, int64_t positions);
  void trim(SequenceCache& cache, int64_t next_position);
  void release(SequenceCache& cache);
  // `to` (REQUIRES: empty) gets the first `positions` of `from`: whole blocks are shared, a partial last block and the
  // convolution slot are to be copied. False: too few free blocks, nothing changed.
  bool fork(const SequenceCache& from, SequenceCache& to, int64_t positions, std::vector<BlockCopy>& copies);
  // Whether a sequence of so many positions, run in chunks, could take all its blocks from what is free now.
  bool has_room(int64_t positions, int64_t chunk) const;

  const std::vector<CacheSpec>& specs() const { return specs_; }
  const BlockPool& pool(int64_t group) const { return pools_[group]; }
  double usage() const;  // of the fullest pool of positions, 0..1

 private:
  int64_t missing(const SequenceCache& cache, size_t group, int64_t positions) const;

  std::vector<CacheSpec> specs_;
  std::vector<BlockPool> pools_;
  uint64_t leases_ = 0;
};

// Most blocks of a group that one sequence of `positions`, run in chunks, holds at a time.
int64_t blocks_of_sequence(const CacheSpec& spec, int64_t positions, int64_t chunk);

}  // namespace nib
