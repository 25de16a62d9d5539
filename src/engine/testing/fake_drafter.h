// A drafter over the fake network: it finds the history in its own paged context, checks every cell of it, and proposes
// from the logits that the target will have there, from others, or from none that is a number.
//   FakeDrafter drafter({.right = 3, .wrong = 1});     // three drafts of four are drawn from the target's own logits
#pragma once

#include <algorithm>
#include <limits>

#include "engine/testing/fake_network.h"
#include "model/drafter.h"

namespace nib::testing {

struct FakeDraftShape {
  int64_t block_size = 7;            // drafts
  int64_t right = 3, wrong = 1;      // how often, in these proportions
  int64_t nan_every = 0;             // every so many positions the logits are NaN; 0: never
  bool confidence = false;           // a head that knows which drafts are right
  int64_t* num_committed = nullptr;  // counts the rows that its context took
  std::vector<int32_t> ids = {};     // all that it ever proposes; empty: any
};

class FakeDrafter : public Drafter {
 public:
  FakeDrafter(const FakeDraftShape& shape, const FakeShape& target) : shape_(shape), target_(target) {
    config_.block_size = shape.block_size;
    config_.vocab_size = FakeNetwork::kVocab;
    const int64_t array = target.block_size * 4;
    spec_ = {CacheSpec::Kind::kFull, {0}, target.block_size, 0, 2 * array, {array, array}};
  }

  const DrafterConfig& config() const override { return config_; }
  int64_t tap_width() const override { return 2; }
  int64_t vocab_size() const override { return FakeNetwork::kVocab; }
  bool has_confidence() const override { return shape_.confidence; }
  const CacheSpec& cache_spec() const override { return spec_; }
  int64_t workspace_bytes(int64_t, int64_t, int64_t) const override { return 0; }

  void commit(Context&, View<const float, 2> taps, std::span<const SequenceRows> sequences, const DraftStorage& storage,
              View<const int32_t, 2> tables) const override {
    int64_t row = 0;
    for (size_t s = 0; s < sequences.size(); ++s)
      for (int64_t i = 0; i < sequences[s].count; ++i, ++row) {
        const int64_t position = sequences[s].start + i;
        NIB_CHECK_EQ(static_cast<int64_t>(taps(row, 1)), position);
        int32_t* token = cell(storage, tables, s, position);
        token[0] = static_cast<int32_t>(taps(row, 0));
        token[storage.num_blocks * spec_.block_size] = static_cast<int32_t>(position);
      }
    NIB_CHECK_EQ(row, taps.dim(0));
    if (shape_.num_committed) *shape_.num_committed += row;
  }

  void draft(Context&, std::span<const DraftBlock> blocks, const DraftStorage& storage, View<const int32_t, 2> tables,
             const DraftOutput& out, const DraftSampler& sampler) const override {
    for (size_t b = 0; b < blocks.size(); ++b) {
      const DraftBlock& block = blocks[b];
      NIB_CHECK(block.context_end == block.position && block.num_tokens <= shape_.block_size, "context to {} of {}",
                block.context_end, block.position);
      std::vector<int32_t> tokens;
      for (int64_t p = block.context_begin; p < block.context_end; ++p) {
        const int32_t* token = cell(storage, tables, b, p);
        NIB_CHECK_EQ(token[storage.num_blocks * spec_.block_size], p);
        tokens.push_back(token[0]);
      }
      tokens.push_back(block.anchor);
      const auto row = static_cast<int64_t>(b);
      for (int64_t k = 0, token = 0; k < out.tokens.dim(1); ++k) {
        out.tokens(row, k) = -1;
        if (k >= block.num_tokens || token < 0) continue;
        float* logits = out.logits.data() + row * out.logits.stride(0) + k * out.logits.stride(1);
        write_logits(tokens, block.position + k, logits);
        if (!out.confidence.empty()) out.confidence(row, k) = confidence(block.position + k, tokens.back());
        token = sampler(row, k, {logits, FakeNetwork::kVocab});
        if (token < 0) continue;
        out.tokens(row, k) = static_cast<int32_t>(token);
        tokens.push_back(static_cast<int32_t>(token));
      }
    }
  }

 private:
  int32_t* cell(const DraftStorage& storage, View<const int32_t, 2> tables, size_t s, int64_t position) const {
    const int32_t block = tables(s, position / spec_.block_size);
    NIB_CHECK(block >= 0 && block < storage.num_blocks, "block {} at position {}", block, position);
    return reinterpret_cast<int32_t*>(storage.data) + block * spec_.block_size + position % spec_.block_size;
  }

  bool is_right(int64_t position) const {
    return static_cast<int64_t>(mix64(position) % (shape_.right + shape_.wrong)) < shape_.right;
  }

  float confidence(int64_t position, int32_t previous) const {
    return (is_right(position) ? 3.0f : -3.0f) + (previous % 2 ? 1.0f : -1.0f);
  }

  void write_logits(std::span<const int32_t> tokens, int64_t position, float* out) const {
    const std::vector<float> right = target_.reference_logits(tokens);
    for (int64_t id = 0; id < FakeNetwork::kVocab; ++id)
      out[id] = is_right(position) ? right[id] : static_cast<float>(mix64(position * 64 + id) % 1000) / 200;
    for (int32_t id = 0; !shape_.ids.empty() && id < FakeNetwork::kVocab; ++id)
      if (std::ranges::find(shape_.ids, id) == shape_.ids.end()) out[id] = -std::numeric_limits<float>::infinity();
    if (shape_.nan_every > 0 && position % shape_.nan_every == 0) out[3] = std::numeric_limits<float>::quiet_NaN();
  }

  const FakeDraftShape shape_;
  const FakeNetwork target_;
  DrafterConfig config_;
  CacheSpec spec_;
};

}  // namespace nib::testing
