// A drafter over a paged cache of a few sequences: what its tests need of an engine.
//   DraftCache cache(drafter, isa, {.sequences = 3, .positions = 64});
//   cache.commit({{.sequence = 1, .start = 0, .taps = rows}});
//   std::vector<Draft> drafts = cache.draft({{1, {.anchor = 5, .position = 4, .context_end = 4, .num_tokens = 7}}});
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "model/drafter.h"

namespace nib::testing {

// What one block was given.
struct Draft {
  std::vector<int32_t> tokens;                    // up to where the block stopped
  std::vector<float> logits, confidence, hidden;  // [num_tokens, ...]
  bool operator==(const Draft&) const = default;
};

class DraftCache {
 public:
  struct Size {
    int64_t sequences = 1, positions = 64;  // positions of each
    int threads = 2;
    unsigned seed = 1;  // of the order of the blocks
  };
  struct Commit {
    int64_t sequence = 0, start = 0;
    View<const float, 2> taps;
  };
  struct Block {
    int64_t sequence = 0;
    DraftBlock block;
  };

  // Blocks lie in any order; memory that nothing was committed to is NaN.
  DraftCache(const Drafter& drafter, Isa isa, const Size& size)
      : drafter_(drafter),
        width_((size.positions + drafter.cache_spec().block_size - 1) / drafter.cache_spec().block_size),
        tables_(size.sequences * width_),
        memory_(drafter.cache_spec().bytes_per_block * size.sequences * width_),
        pool_(size.threads),
        workspace_(drafter.workspace_bytes(size.sequences * size.positions, size.sequences, size.threads)),
        cx_{isa, pool_, workspace_} {
    std::iota(tables_.begin(), tables_.end(), 0);
    std::shuffle(tables_.begin(), tables_.end(), std::mt19937(size.seed));
    std::memset(memory_.data(), 0xff, memory_.size());
  }

  void commit(const std::vector<Commit>& commits) {
    std::vector<float> taps;
    std::vector<SequenceRows> sequences;
    std::vector<int32_t> tables;
    int64_t row = 0;
    for (const Commit& c : commits) {
      taps.insert(taps.end(), c.taps.data(), c.taps.data() + c.taps.size());
      sequences.push_back({row, c.taps.dim(0), c.start});
      row += c.taps.dim(0);
      add_table(tables, c.sequence);
    }
    drafter_.commit(cx_, {taps.data(), {row, drafter_.tap_width()}}, sequences, storage(), view(tables));
  }

  std::vector<Draft> draft(const std::vector<Block>& batch, const DraftSampler& sampler = greedy_draft) {
    std::vector<DraftBlock> blocks;
    std::vector<int32_t> tables;
    for (const Block& b : batch) {
      blocks.push_back(b.block);
      add_table(tables, b.sequence);
    }
    const int64_t n = static_cast<int64_t>(blocks.size()), most = drafter_.config().max_draft_tokens();
    const int64_t vocab = drafter_.vocab_size(), hidden = drafter_.config().hidden_size;
    std::vector<int32_t> tokens(n * most);
    std::vector<float> logits(n * most * vocab), confidence(n * most), rows(n * most * hidden);
    DraftOutput out{
        {tokens.data(), {n, most}}, {logits.data(), {n, most, vocab}}, {}, {rows.data(), {n, most, hidden}}};
    if (drafter_.has_confidence()) out.confidence = {confidence.data(), {n, most}};
    drafter_.draft(cx_, blocks, storage(), view(tables), out, sampler);

    std::vector<Draft> drafts(n);
    for (int64_t b = 0; b < n; ++b) {
      const int32_t* ids = out.tokens.row(b);
      drafts[b].tokens.assign(ids, std::find(ids, ids + most, -1));
      drafts[b].logits.assign(&out.logits(b, 0, 0), &out.logits(b, 0, 0) + blocks[b].num_tokens * vocab);
      drafts[b].hidden.assign(&out.hidden(b, 0, 0), &out.hidden(b, 0, 0) + blocks[b].num_tokens * hidden);
      if (drafter_.has_confidence())
        drafts[b].confidence.assign(out.confidence.row(b), out.confidence.row(b) + blocks[b].num_tokens);
    }
    return drafts;
  }

 private:
  DraftStorage storage() const { return {memory_.data(), static_cast<int64_t>(tables_.size())}; }
  void add_table(std::vector<int32_t>& tables, int64_t sequence) const {
    tables.insert(tables.end(), tables_.begin() + sequence * width_, tables_.begin() + (sequence + 1) * width_);
  }
  View<const int32_t, 2> view(const std::vector<int32_t>& tables) const {
    return {tables.data(), {static_cast<int64_t>(tables.size()) / width_, width_}};
  }

  const Drafter& drafter_;
  int64_t width_;  // blocks a sequence
  std::vector<int32_t> tables_;
  Buffer memory_;
  ThreadPool pool_;
  Workspace workspace_;
  Context cx_;
};

}  // namespace nib::testing
