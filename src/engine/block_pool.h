// A fixed number of equal blocks that are lent, shared and given back.
//   BlockPool pool(1024);
//   int32_t b = pool.take();      // REQUIRES num_free() > 0
//   pool.share(b);  pool.give_back(b);  pool.give_back(b);
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"

namespace nib {

// Owned by the engine thread. A block is free again when every holder has given it back.
class BlockPool {
 public:
  explicit BlockPool(int64_t num_blocks) : holders_(num_blocks, 0) {
    free_.reserve(num_blocks);
    for (int64_t b = num_blocks; b-- > 0;) free_.push_back(static_cast<int32_t>(b));
  }

  int64_t num_blocks() const { return static_cast<int64_t>(holders_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }

  int32_t take() {
    NIB_CHECK(!free_.empty(), "all {} blocks are lent", num_blocks());
    const int32_t b = free_.back();
    free_.pop_back();
    holders_[b] = 1;
    return b;
  }

  void share(int32_t block) {
    NIB_CHECK(holders_.at(block) > 0, "block {} is free", block);
    ++holders_[block];
  }

  void give_back(int32_t block) {
    NIB_CHECK(holders_.at(block) > 0, "block {} is free", block);
    if (--holders_[block] == 0) free_.push_back(block);
  }

 private:
  std::vector<int32_t> free_, holders_;
};

}  // namespace nib
