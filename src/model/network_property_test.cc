// The first law: a row stands alone. Whatever the cuts of a prompt, the batch around it, the blocks lent to it and the
// garbage in the rest of the cache, its logits are the same bits as in one prefill alone.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "model/testing/make_checkpoint.h"
#include "model/testing/sequences.h"

namespace nib {
namespace {

using Experts = TinyOptions::Experts;
using testing::Piece;
using testing::Sequences;

constexpr int64_t kPromptLength = 40;

struct Case {
  Generation generation;
  Experts experts;
  bool f32;
  Isa isa;
};

std::string name_of(Experts experts) {
  return experts == Experts::kPlain ? "bf16" : experts == Experts::kNvfp4 ? "nvfp4" : "mxfp8";
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return fmt::format("{}_{}_{}_{}", c.generation == Generation::kInkling ? "inkling" : "inkling2", name_of(c.experts),
                     c.f32 ? "f32" : "bf16", name(c.isa));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (Isa isa : {Isa::kRef, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (!isa_from_name(name(isa)).ok()) continue;
    for (bool f32 : {true, false}) {
      for (Experts experts : {Experts::kPlain, Experts::kNvfp4, Experts::kMxfp8})
        all.push_back({Generation::kInkling2, experts, f32, isa});
      for (Experts experts : {Experts::kPlain, Experts::kNvfp4})
        all.push_back({Generation::kInkling, experts, f32, isa});
    }
  }
  return all;
}

// As small as can be with every kind of layer, a window and an extent shorter than the prompt, and a last depth block
// that is not complete.
TinyOptions tiny(Generation generation, Experts experts) {
  TinyOptions o;
  o.generation = generation;
  o.experts = experts;
  o.num_layers = 3;
  o.layers_per_block = 2;
  o.hidden_size = 32;
  o.num_heads = 4;
  o.head_dim = 8;
  o.num_experts = 5;
  o.top_k = 2;
  o.vocab_size = 72;
  o.unpadded_vocab_size = 67;
  o.window = 9;
  return o;
}

std::vector<int32_t> random_ids(std::mt19937_64& random, int64_t count, int64_t vocab_size) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocab_size);
  return ids;
}

class RowStandsAlone : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Result<std::filesystem::path> folder =
        make_tiny_checkpoint(tiny(GetParam().generation, GetParam().experts), temp_.path());
    ASSERT_TRUE(folder.ok()) << folder.status().message();
    for (int64_t block_size : {4, 16}) {
      LoadOptions options{GetParam().f32, block_size, kMaxRejected};
      Result<std::unique_ptr<Network>> loaded = load_network(*folder, options);
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      networks_.push_back(*std::move(loaded));
    }
    ids_ = random_ids(random_, kPromptLength, vocab());
    whole_ = solo(ids_);
  }

  const Network& network() { return *networks_[random_() % networks_.size()]; }
  int64_t vocab() const { return networks_[0]->config().unpadded_vocab_size; }
  Sequences sequences(int count) {
    return Sequences(network(), GetParam().isa, {count, kPromptLength + 16, random_()});
  }
  std::vector<float> solo(const std::vector<int32_t>& ids) { return sequences(1).step({{0, ids}}); }

  // Logits of the prompt when its chunks end at these positions and at its end.
  std::vector<float> in_chunks(Sequences& one, std::vector<int64_t> ends) {
    one.restart(0);
    ends.push_back(kPromptLength);
    std::vector<float> all;
    for (int64_t end : ends) {
      const int64_t begin = one.length(0);
      const std::vector<float> part = one.step({{0, std::span(ids_).subspan(begin, end - begin)}});
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  static constexpr int64_t kMaxRejected = 7;
  TempFolder temp_;
  std::vector<std::unique_ptr<Network>> networks_;
  std::mt19937_64 random_{7};
  std::vector<int32_t> ids_;
  std::vector<float> whole_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_P(RowStandsAlone, TheReferenceIsFinite) {
  EXPECT_TRUE(std::all_of(whole_.begin(), whole_.end(), [](float x) { return std::isfinite(x); }));
  EXPECT_NE(whole_.front(), whole_.back());
}

TEST_P(RowStandsAlone, InEveryTwoWayCut) {
  Sequences one = sequences(1);
  for (int64_t cut = 1; cut < kPromptLength; ++cut) EXPECT_TRUE(same_bits(in_chunks(one, {cut}), whole_)) << cut;
}

// Chunks of one row are decoding step by step.
TEST_P(RowStandsAlone, InChunksOfEverySize) {
  Sequences one = sequences(1);
  for (int64_t chunk = 1; chunk <= kPromptLength; ++chunk) {
    std::vector<int64_t> ends;
    for (int64_t end = chunk; end < kPromptLength; end += chunk) ends.push_back(end);
    EXPECT_TRUE(same_bits(in_chunks(one, ends), whole_)) << chunk;
  }
}

TEST_P(RowStandsAlone, InRandomCuts) {
  Sequences one = sequences(1);
  for (int i = 0; i < 200; ++i) {
    std::vector<int64_t> ends;
    for (int64_t end = 1; end < kPromptLength; ++end)
      if (random_() % 8 == 0) ends.push_back(end);
    EXPECT_TRUE(same_bits(in_chunks(one, ends), whole_)) << "cut " << i;
  }
}

// 17 sequences of other prompts, in random order and chunks, so that each step mixes prefill and decode.
TEST_P(RowStandsAlone, InABatchOfMixedSequences) {
  constexpr int kSequences = 17;
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<float>> want;
  for (int s = 0; s < kSequences; ++s) {
    ids.push_back(s == 0 ? ids_ : random_ids(random_, 20 + random_() % 20, vocab()));
    want.push_back(s == 0 ? whole_ : solo(ids[s]));
  }
  for (const auto& network : networks_) {
    Sequences all(*network, GetParam().isa, {kSequences, kPromptLength, random_(), GetParam().f32 ? 1 : 2});
    std::vector<std::vector<float>> got(kSequences);
    for (;;) {
      std::vector<Piece> pieces;
      for (int s = 0; s < kSequences; ++s) {
        const int64_t left = static_cast<int64_t>(ids[s].size()) - all.length(s);
        const int64_t count = std::min<int64_t>(left, random_() % 2 ? 1 : random_() % 7);
        if (count > 0) pieces.push_back({s, std::span(ids[s]).subspan(all.length(s), count)});
      }
      if (pieces.empty()) {
        if (all.length(0) == kPromptLength) break;
        pieces.push_back({0, std::span(ids[0]).subspan(all.length(0), 1)});
      }
      std::shuffle(pieces.begin(), pieces.end(), random_);
      const std::vector<float> logits = all.step(pieces);
      auto row = logits.begin();
      for (const Piece& p : pieces) {
        const auto end = row + static_cast<int64_t>(p.tokens.size()) * vocab();
        got[p.sequence].insert(got[p.sequence].end(), row, end);
        row = end;
      }
    }
    for (int s = 0; s < kSequences; ++s) {
      const std::vector<float> reached(want[s].begin(), want[s].begin() + static_cast<int64_t>(got[s].size()));
      EXPECT_TRUE(same_bits(got[s], reached)) << "sequence " << s;
    }
  }
}

// A draft that is taken back leaves the sequence as it was.
TEST_P(RowStandsAlone, AfterRejectedRows) {
  Sequences one = sequences(1);
  std::vector<float> got;
  for (int64_t at = 0; at < kPromptLength;) {
    one.rewind(0, at);
    const int64_t kept = std::min<int64_t>(1 + random_() % 3, kPromptLength - at);
    std::vector<int32_t> draft(ids_.begin() + at, ids_.begin() + at + kept);
    const std::vector<int32_t> rejected = random_ids(random_, random_() % (kMaxRejected + 1), vocab());
    draft.insert(draft.end(), rejected.begin(), rejected.end());
    const std::vector<float> logits = one.step({{0, draft}});
    got.insert(got.end(), logits.begin(), logits.begin() + kept * vocab());
    at += kept;
  }
  EXPECT_TRUE(same_bits(got, whole_));
}

TEST_P(RowStandsAlone, UnderATrace) {
  int num_calls = 0;
  const Trace trace = [&](std::string_view, View<const float, 2>) { ++num_calls; };
  EXPECT_TRUE(same_bits(sequences(1).step({{0, ids_}}, &trace), whole_));
  EXPECT_GT(num_calls, 0);
}

// Only wanted rows go through the head.
TEST_P(RowStandsAlone, WhicheverRowsAreWanted) {
  Sequences one = sequences(1);
  const std::vector<float> logits = one.step_wanting(std::array{Piece{0, ids_}}, std::array{3, 17, 39});
  std::vector<float> want;
  for (int64_t row : {3, 17, 39})
    want.insert(want.end(), whole_.begin() + row * vocab(), whole_.begin() + (row + 1) * vocab());
  EXPECT_TRUE(same_bits(logits, want));
}

INSTANTIATE_TEST_SUITE_P(All, RowStandsAlone, ::testing::ValuesIn(cases()), case_name);

// The plan of workspace_bytes holds for steps of exactly that size: taking more would stop the process.
TEST(WorkspaceTest, HoldsAStepOfItsSize) {
  for (Generation generation : {Generation::kInkling, Generation::kInkling2})
    for (bool f32 : {true, false}) {
      TempFolder temp;
      const auto folder = make_tiny_checkpoint(tiny(generation, Experts::kNvfp4), temp.path());
      ASSERT_TRUE(folder.ok()) << folder.status().message();
      auto network = load_network(*folder, {.f32 = f32});
      ASSERT_TRUE(network.ok()) << network.status().message();
      std::mt19937_64 random(3);
      for (int64_t rows : {1, 15, 64, 65, 150})
        for (int threads : {1, 2}) {
          const std::vector<int32_t> ids = random_ids(random, rows, 67);
          Sequences one(**network, best_isa(), {1, rows, 1, threads, rows});
          one.step({{0, ids}});
          EXPECT_LE(one.workspace_peak(), one.workspace_capacity());
        }
    }
}

}  // namespace
}  // namespace nib
