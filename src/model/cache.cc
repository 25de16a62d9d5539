#include "base/check.h"
#include "model/network.h"

namespace nib {

KvCache::KvCache(std::span<const CacheSpec> specs, std::span<const int64_t> num_blocks)
    : num_blocks_(num_blocks.begin(), num_blocks.end()) {
  NIB_CHECK_EQ(specs.size(), num_blocks.size());
  for (size_t g = 0; g < specs.size(); ++g) buffers_.emplace_back(specs[g].bytes_per_block * num_blocks[g]);
}

}  // namespace nib
