// The block tables of a step as one array per group: row i belongs to sequence i of the step.
//   BlockTableRows rows(max_sequences, max_blocks);
//   rows.set(i, lease, table);
//   View<const int32_t, 2> t = rows.view(num_sequences);
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "compute/tensor/view.h"
#include "engine/block_manager.h"

namespace nib {

// Reserved at start. In steady decoding the same sequence stays in the same row, which then is only extended: the cost
// of a step does not grow with the context.
class BlockTableRows {
 public:
  BlockTableRows(int64_t max_sequences, int64_t max_blocks)
      : max_blocks_(max_blocks),
        data_(std::make_unique_for_overwrite<int32_t[]>(max_sequences * max_blocks)),
        state_(max_sequences) {}

  void set(int64_t i, uint64_t lease, const BlockTable& table) {
    State& row = state_[i];
    const auto size = static_cast<int64_t>(table.blocks.size());
    NIB_CHECK(size <= max_blocks_, "{} blocks, at most {}", size, max_blocks_);
    int32_t* out = data_.get() + i * max_blocks_;
    if (row.lease != lease) row = {lease, 0, 0};
    std::copy(table.blocks.begin() + row.size, table.blocks.end(), out + row.size);
    if (row.num_gone < table.num_gone) std::fill(out + row.num_gone, out + table.num_gone, -1);
    row = {lease, size, table.num_gone};
  }

  View<const int32_t, 2> view(int64_t sequences) const { return {data_.get(), {sequences, max_blocks_}}; }

 private:
  struct State {
    uint64_t lease = 0;
    int64_t size = 0, num_gone = 0;
  };
  int64_t max_blocks_;
  std::unique_ptr<int32_t[]> data_;
  std::vector<State> state_;
};

}  // namespace nib
