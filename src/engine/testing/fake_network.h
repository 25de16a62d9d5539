// A network whose logits are a hash of the history that it finds through its block tables: any slip in scheduling or
// paging changes the tokens, and reading a block that is gone or not one's own stops the test.
//   FakeNetwork network;
//   FakeNetwork::reference_logits(tokens);     // what any correct engine must arrive at after these tokens
#pragma once

#include <cmath>
#include <limits>

#include "engine/noise.h"
#include "model/network.h"

namespace nib::testing {

struct FakeShape {
  int64_t block_size = 4, window = 6, ring = 3, max_position = 512;
  int64_t max_rejected_rows = 0;  // lengthens the ring, not what a row sees of it
  int64_t period = 0;             // the token that stood so far back is likely to come again; 0: nothing repeats
};

class FakeNetwork : public Network {
 public:
  static constexpr int64_t kVocab = 61;
  static constexpr int32_t kEos = 0;
  static constexpr int32_t kPoison = 60;  // as the last token: the logits are NaN; nearly never drawn

  int64_t workspace = 0;  // what it asks for

  explicit FakeNetwork(const FakeShape& shape = {}) : shape_(shape) {
    config_.vocab_size = 64;
    config_.unpadded_vocab_size = kVocab;
    config_.max_position = shape.max_position;
    config_.eos_token_ids = {kEos};
    const int64_t array = shape.block_size * 4, ring = (shape.ring + shape.max_rejected_rows) * 4;
    specs_ = {{CacheSpec::Kind::kFull, {0}, shape.block_size, 0, 2 * array, {array, array}},
              {CacheSpec::Kind::kWindow, {1}, shape.block_size, shape.window, 2 * array, {array, array}},
              {CacheSpec::Kind::kConv, {0, 1}, shape.ring + shape.max_rejected_rows, 0, 2 * ring, {ring, ring}}};
  }

  const ModelConfig& config() const override { return config_; }
  const std::vector<CacheSpec>& cache_specs() const override { return specs_; }
  int64_t workspace_bytes(int64_t, int64_t, int64_t) const override { return workspace; }
  SharedTables shared_tables() const override { return {}; }

  void forward(Context&, const ForwardInput& in, const KvCache& cache, View<float, 2> logits,
               const Trace*) const override {
    NIB_CHECK_EQ(logits.dim(0), static_cast<int64_t>(in.logit_rows.size()));
    size_t next_logits = 0;
    int64_t row = 0;
    for (size_t s = 0; s < in.sequences.size(); ++s) {
      const SequenceRows& rows = in.sequences[s];
      NIB_CHECK_EQ(rows.begin, row);
      for (int64_t i = 0; i < rows.count; ++i, ++row) {
        const int64_t position = rows.start + i;
        for (size_t g = 0; g < specs_.size(); ++g) cell(in, cache, g, s, position).write(in.tokens.data()[row]);
        if (!in.taps.empty()) in.taps(row, 0) = static_cast<float>(in.tokens(row)), in.taps(row, 1) = position;
        if (next_logits == in.logit_rows.size() || in.logit_rows[next_logits] != row) continue;
        write_logits(in, cache, s, position, logits.data() + static_cast<int64_t>(next_logits++) * logits.stride(0));
      }
    }
    NIB_CHECK_EQ(row, in.tokens.dim(0));
    NIB_CHECK_EQ(next_logits, in.logit_rows.size());
  }

  std::vector<float> reference_logits(std::span<const int32_t> tokens) const {
    const auto last = [&](int64_t n) { return tokens.last(std::min<size_t>(n, tokens.size())); };
    std::vector<float> out(kVocab);
    const uint64_t h = hash(hash(hash(0, tokens), last(shape_.window)), last(shape_.ring));
    logits_of(h, tokens.back(), repeated(tokens), out.data());
    return out;
  }

 private:
  // Where a group keeps the token of one position, and the position beside it to catch foreign blocks.
  struct Cell {
    int32_t *token, *position;
    int32_t expected;
    void write(int32_t t) const { *token = t, *position = expected; }
    int32_t read() const {
      NIB_CHECK_EQ(*position, expected);
      return *token;
    }
  };

  Cell cell(const ForwardInput& in, const KvCache& cache, size_t group, size_t sequence, int64_t position) const {
    const bool conv = specs_[group].kind == CacheSpec::Kind::kConv;
    const int64_t size = specs_[group].block_size, blocks = cache.num_blocks(group);
    const int32_t block = in.block_tables[group](sequence, conv ? 0 : position / size);
    NIB_CHECK(block >= 0 && block < blocks, "group {}: block {} of {} at position {}", group, block, blocks, position);
    int32_t* tokens = reinterpret_cast<int32_t*>(cache.data(group)) + block * size + position % size;
    return {tokens, tokens + blocks * size, static_cast<int32_t>(position)};
  }

  void write_logits(const ForwardInput& in, const KvCache& cache, size_t sequence, int64_t position, float* out) const {
    const int64_t visible[] = {position + 1, shape_.window, shape_.ring};
    uint64_t h = 0;
    int32_t again = -1;
    std::vector<int32_t> history;
    for (size_t g = 0; g < specs_.size(); ++g) {
      history.clear();
      for (int64_t p = std::max<int64_t>(0, position + 1 - visible[g]); p <= position; ++p)
        history.push_back(cell(in, cache, g, sequence, p).read());
      h = hash(h, history);
      if (g == 0) again = repeated(history);
    }
    logits_of(h, history.back(), again, out);
  }

  static uint64_t hash(uint64_t h, std::span<const int32_t> tokens) {
    for (int32_t t : tokens) h = mix64(h ^ static_cast<uint64_t>(t));
    return h;
  }

  int32_t repeated(std::span<const int32_t> tokens) const {
    const auto period = static_cast<size_t>(shape_.period);
    return period > 0 && period <= tokens.size() ? tokens[tokens.size() - period] : -1;
  }

  // Between -4 and 4, and up to 11 for the token that comes again.
  static void logits_of(uint64_t h, int32_t last_token, int32_t again, float* out) {
    for (int64_t id = 0; id < kVocab; ++id)
      out[id] = static_cast<float>(mix64(h + static_cast<uint64_t>(id)) >> 40) * 0x1p-21f - 4.0f;
    if (again >= 0) out[again] += 7.0f;
    out[kPoison] = -60.0f;
    if (last_token == kPoison) out[7] = std::numeric_limits<float>::quiet_NaN();
  }

  FakeShape shape_;
  ModelConfig config_;
  std::vector<CacheSpec> specs_;
};

}  // namespace nib::testing
