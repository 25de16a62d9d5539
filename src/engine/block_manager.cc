#include "engine/block_manager.h"

#include <algorithm>

namespace nib {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t size(const BlockTable& table) { return static_cast<int64_t>(table.blocks.size()); }

// Entries of the table once positions 0 .. positions-1 have a place.
int64_t table_size(const CacheSpec& spec, int64_t positions) {
  return spec.kind == CacheSpec::Kind::kConv ? 1 : ceil_div(positions, spec.block_size);
}

}  // namespace

int64_t blocks_of_sequence(const CacheSpec& spec, int64_t positions, int64_t chunk) {
  const int64_t all = table_size(spec, positions);
  if (spec.kind != CacheSpec::Kind::kWindow) return all;
  return std::min(all, ceil_div(spec.window - 1 + chunk, spec.block_size) + 1);
}

BlockManager::BlockManager(std::vector<CacheSpec> specs, std::span<const int64_t> num_blocks)
    : specs_(std::move(specs)), pools_(num_blocks.begin(), num_blocks.end()) {
  NIB_CHECK_EQ(specs_.size(), pools_.size());
}

int64_t BlockManager::missing(const SequenceCache& cache, size_t group, int64_t positions) const {
  const int64_t held = cache.tables.empty() ? 0 : size(cache.tables[group]);
  return std::max<int64_t>(0, table_size(specs_[group], positions) - held);
}

bool BlockManager::grow(SequenceCache& cache, int64_t positions) {
  for (size_t g = 0; g < specs_.size(); ++g)
    if (missing(cache, g, positions) > pools_[g].num_free()) return false;
  if (cache.tables.empty()) {
    cache.tables.resize(specs_.size());
    cache.lease = ++leases_;
  }
  for (size_t g = 0; g < specs_.size(); ++g)
    for (int64_t n = missing(cache, g, positions); n > 0; --n) cache.tables[g].blocks.push_back(pools_[g].take());
  return true;
}

void BlockManager::trim(SequenceCache& cache, int64_t next_position) {
  for (size_t g = 0; g < specs_.size(); ++g) {
    if (specs_[g].kind != CacheSpec::Kind::kWindow) continue;
    BlockTable& table = cache.tables[g];
    const int64_t first_read = std::max<int64_t>(0, next_position - specs_[g].window + 1);
    for (const int64_t gone = std::min(first_read / specs_[g].block_size, size(table)); table.num_gone < gone;) {
      int32_t& block = table.blocks[table.num_gone++];
      pools_[g].give_back(block);
      block = -1;
    }
  }
}

void BlockManager::release(SequenceCache& cache) {
  for (size_t g = 0; g < cache.tables.size(); ++g)
    for (int32_t block : cache.tables[g].blocks)
      if (block >= 0) pools_[g].give_back(block);
  cache = {};
}

bool BlockManager::fork(const SequenceCache& from, SequenceCache& to, int64_t positions,
                        std::vector<BlockCopy>& copies) {
  NIB_CHECK(to.tables.empty());
  const auto copied = [&](size_t g) {
    return specs_[g].kind == CacheSpec::Kind::kConv || positions % specs_[g].block_size != 0;
  };
  for (size_t g = 0; g < specs_.size(); ++g)
    if (copied(g) && pools_[g].num_free() == 0) return false;
  to = {from.tables, ++leases_};
  for (size_t g = 0; g < specs_.size(); ++g) {
    std::vector<int32_t>& blocks = to.tables[g].blocks;
    NIB_CHECK_EQ(static_cast<int64_t>(blocks.size()), table_size(specs_[g], positions));
    const size_t shared = blocks.size() - copied(g);
    for (size_t b = to.tables[g].num_gone; b < shared; ++b) pools_[g].share(blocks[b]);
    if (!copied(g)) continue;
    const int32_t own = pools_[g].take();
    copies.push_back({static_cast<int32_t>(g), blocks.back(), own});
    blocks.back() = own;
  }
  return true;
}

bool BlockManager::has_room(int64_t positions, int64_t chunk) const {
  for (size_t g = 0; g < specs_.size(); ++g)
    if (blocks_of_sequence(specs_[g], positions, chunk) > pools_[g].num_free()) return false;
  return true;
}

double BlockManager::usage() const {
  double fullest = 0;
  for (size_t g = 0; g < specs_.size(); ++g) {
    if (specs_[g].kind == CacheSpec::Kind::kConv || pools_[g].num_blocks() == 0) continue;
    fullest = std::max(fullest, 1.0 - static_cast<double>(pools_[g].num_free()) / pools_[g].num_blocks());
  }
  return fullest;
}

}  // namespace nib
