// For tests: sequences in one cache, as hostile as the engine may be. Blocks are lent in random order, everything that
// was never written or went back holds NaN, and blocks behind a window go back at once.
//   Sequences runs(*network, Isa::kRef, {.count = 2, .positions = 64, .seed = 1});
//   std::vector<float> logits = runs.step({{0, prompt}, {1, next_token}});     // of every row, in order
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "compute/tensor/context.h"
#include "model/network.h"

namespace nib::testing {

// The next tokens of one sequence.
struct Piece {
  int sequence;
  std::span<const int32_t> tokens;
};

class Sequences {
 public:
  struct Options {
    int count = 1;           // sequences
    int64_t positions = 64;  // of each at most
    uint64_t seed = 1;       // of the order of blocks
    int threads = 1;
    int64_t step_rows = 0;  // rows of a step at most; 0: count * positions
  };

  Sequences(const Network& network, Isa isa, const Options& options)
      : network_(network),
        options_(options),
        random_(options.seed),
        step_rows_(options.step_rows > 0 ? options.step_rows : options.count * options.positions),
        pool_(options.threads),
        workspace_(network.workspace_bytes(step_rows_, step_rows_, options.threads)),
        cx_{isa, pool_, workspace_},
        cache_(network.cache_specs(), pool_sizes()),
        lengths_(options.count, 0) {
    for (size_t g = 0; g < specs().size(); ++g) {
      std::memset(cache_.data(g), 0xff, specs()[g].bytes_per_block * cache_.num_blocks(g));
      groups_.push_back(make_group(g));
    }
  }

  // Runs the pieces as one batch and returns the logits of all its rows, in order.
  std::vector<float> step(std::span<const Piece> pieces, const Trace* trace = nullptr) {
    int64_t rows = 0;
    for (const Piece& p : pieces) rows += static_cast<int64_t>(p.tokens.size());
    std::vector<int32_t> all(rows);
    std::iota(all.begin(), all.end(), 0);
    return step_wanting(pieces, all, trace);
  }
  // The same, logits of some rows only.
  std::vector<float> step_wanting(std::span<const Piece> pieces, std::span<const int32_t> logit_rows,
                                  const Trace* trace = nullptr) {
    std::vector<int32_t> tokens;
    std::vector<SequenceRows> batch;
    for (const Piece& p : pieces) {
      give_back_behind_window(p.sequence);
      batch.push_back(
          {static_cast<int64_t>(tokens.size()), static_cast<int64_t>(p.tokens.size()), lengths_[p.sequence]});
      tokens.insert(tokens.end(), p.tokens.begin(), p.tokens.end());
      lengths_[p.sequence] += static_cast<int64_t>(p.tokens.size());
    }
    const int64_t rows = static_cast<int64_t>(tokens.size());

    std::vector<std::vector<int32_t>> tables = lend(pieces);
    std::vector<View<const int32_t, 2>> views;
    for (const auto& table : tables)
      views.emplace_back(table.data(), std::array{static_cast<int64_t>(pieces.size()),
                                                  static_cast<int64_t>(table.size() / pieces.size())});
    const std::array shape = {static_cast<int64_t>(logit_rows.size()), network_.config().unpadded_vocab_size};
    std::vector<float> logits(shape[0] * shape[1]);
    const ForwardInput in{View<const int32_t, 1>(tokens.data(), {rows}), batch, views, logit_rows};
    network_.forward(cx_, in, cache_, View<float, 2>(logits.data(), shape), trace);
    return logits;
  }
  std::vector<float> step(std::initializer_list<Piece> pieces, const Trace* trace = nullptr) {
    return step(std::span(pieces.begin(), pieces.size()), trace);
  }

  // The sequence begins anew; all that it held goes back.
  void restart(int sequence) {
    lengths_[sequence] = 0;
    for (size_t g = 0; g < groups_.size(); ++g)
      for (int32_t& block : groups_[g].blocks[sequence]) give_back(g, block);
  }

  // Takes back the last rows, as a rejected draft does; their blocks stay.
  void rewind(int sequence, int64_t length) { lengths_[sequence] = length; }

  int64_t length(int sequence) const { return lengths_[sequence]; }
  int64_t workspace_peak() const { return workspace_.peak(); }
  int64_t workspace_capacity() const { return workspace_.capacity(); }

 private:
  struct Group {
    std::vector<int32_t> free;
    std::vector<std::vector<int32_t>> blocks;  // of each sequence, -1: none
  };

  const std::vector<CacheSpec>& specs() const { return network_.cache_specs(); }
  bool ring(size_t g) const { return specs()[g].kind == CacheSpec::Kind::kConv; }
  int64_t blocks_per_sequence(size_t g) const {
    return ring(g) ? 1 : (options_.positions + specs()[g].block_size - 1) / specs()[g].block_size;
  }
  std::vector<int64_t> pool_sizes() const {
    std::vector<int64_t> sizes;
    for (size_t g = 0; g < specs().size(); ++g) sizes.push_back(blocks_per_sequence(g) * options_.count + 1);
    return sizes;
  }
  Group make_group(size_t g) {
    Group group;
    for (int64_t b = 0; b < cache_.num_blocks(g); ++b) group.free.push_back(static_cast<int32_t>(b));
    std::shuffle(group.free.begin(), group.free.end(), random_);
    group.blocks.assign(options_.count, std::vector<int32_t>(blocks_per_sequence(g), -1));
    return group;
  }

  // Block tables of the pieces' sequences with a place for each position that is there now.
  std::vector<std::vector<int32_t>> lend(std::span<const Piece> pieces) {
    std::vector<std::vector<int32_t>> tables;
    for (size_t g = 0; g < groups_.size(); ++g) {
      std::vector<int32_t>& table = tables.emplace_back();
      for (const Piece& p : pieces) {
        std::vector<int32_t>& blocks = groups_[g].blocks[p.sequence];
        const int64_t begin = lengths_[p.sequence] - static_cast<int64_t>(p.tokens.size());
        for (size_t b = ring(g) ? 0 : begin / specs()[g].block_size; b < blocks.size(); ++b) {
          const bool wanted = ring(g) || static_cast<int64_t>(b) * specs()[g].block_size < lengths_[p.sequence];
          if (wanted && blocks[b] < 0) blocks[b] = take(g);
        }
        table.insert(table.end(), blocks.begin(), blocks.end());
      }
    }
    return tables;
  }

  int32_t take(size_t g) {
    std::vector<int32_t>& free = groups_[g].free;
    NIB_CHECK(!free.empty(), "no block in group {}", g);
    std::swap(free.back(), free[random_() % free.size()]);
    const int32_t block = free.back();
    free.pop_back();
    return block;
  }

  void give_back(size_t g, int32_t& block) {
    if (block < 0) return;
    poison(g, block);
    groups_[g].free.push_back(block);
    block = -1;
  }

  void give_back_behind_window(int sequence) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (specs()[g].kind != CacheSpec::Kind::kWindow) continue;
      const int64_t first_seen = lengths_[sequence] - specs()[g].window + 1;
      for (int64_t b = 0; (b + 1) * specs()[g].block_size <= first_seen; ++b)
        give_back(g, groups_[g].blocks[sequence][b]);
    }
  }

  void poison(size_t g, int32_t block) {
    std::byte* array = cache_.data(g);
    for (int64_t bytes : specs()[g].part_bytes) {
      std::memset(array + block * bytes, 0xff, bytes);
      array += bytes * cache_.num_blocks(g);
    }
  }

  const Network& network_;
  const Options options_;
  std::mt19937_64 random_;
  const int64_t step_rows_;
  ThreadPool pool_;
  Workspace workspace_;
  Context cx_;
  KvCache cache_;
  std::vector<Group> groups_;
  std::vector<int64_t> lengths_;
};

}  // namespace nib::testing
