// The law of drafters: what a sequence is given does not depend on the batch, the paging or the cuts between commits.
#include <gtest/gtest.h>

#include "model/testing/draft_cache.h"
#include "model/testing/drafter_parts.h"

namespace nib {
namespace {

using testing::Draft;
using testing::DraftCache;
using testing::DrafterParts;

constexpr int64_t kSequences = 9;
constexpr int64_t kPositions = 160;

// Of sequence s: tapped rows of its positions, and a block behind them.
struct Recording {
  std::vector<float> taps;
  DraftBlock block;

  Recording(const Drafter& drafter, int64_t s) : taps(kPositions * drafter.tap_width()) {
    constexpr int64_t kLengths[kSequences] = {1, 16, 17, 64, 65, 90, 128, 150, 7};
    for (size_t i = 0; i < taps.size(); ++i) taps[i] = std::sin(static_cast<float>(i * 37 % 1009 + 11 * s));
    block = {static_cast<int32_t>(3 * s + 1), kLengths[s], s % 3 == 2 ? kLengths[s] / 3 : 0, kLengths[s], 7 - s % 4};
  }
  View<const float, 2> rows(int64_t begin, int64_t end) const {
    const int64_t width = static_cast<int64_t>(taps.size()) / kPositions;
    return {taps.data() + begin * width, {end - begin, width}};
  }
};

struct Case {
  const char* folder;
  bool f32;
  int64_t kv_block_size;
};
constexpr Case kCases[] = {{"dspark-tiny-rnn", true, 16},
                           {"dspark-tiny-rnn", false, 1},
                           {"dspark-tiny-rnn", false, 48},
                           {"dspark-tiny-markov", false, 16}};

class DrafterProperty : public ::testing::TestWithParam<Isa> {
 protected:
  // One commit of one sequence at a time, whole, in blocks of 16.
  static Draft alone(const DrafterParts& parts, bool f32, int64_t s) {
    const auto drafter = parts.load({.f32 = f32});
    NIB_CHECK(drafter.ok(), "{}", drafter.status().message());
    const Recording r(**drafter, s);
    DraftCache cache(**drafter, GetParam(), {.positions = kPositions, .threads = 1});
    cache.commit({{.taps = r.rows(0, r.block.context_end)}});
    return cache.draft({{.block = r.block}})[0];
  }
};

TEST_P(DrafterProperty, ABlockAloneIsTheSameBlockInABatchOfNine) {
  for (const Case& c : kCases) {
    const DrafterParts parts(c.folder);
    const auto drafter = parts.load({.f32 = c.f32, .kv_block_size = c.kv_block_size});
    ASSERT_TRUE(drafter.ok());
    DraftCache cache(**drafter, GetParam(), {.sequences = kSequences, .positions = kPositions, .seed = 5});
    std::vector<DraftCache::Block> blocks;
    std::vector<Recording> recordings;
    for (int64_t s = 0; s < kSequences; ++s) recordings.emplace_back(**drafter, s);
    // Chunks of many sequences at once, of other lengths for each.
    for (int64_t step = 0; step < kPositions; ++step) {
      std::vector<DraftCache::Commit> commits;
      for (int64_t s = 0; s < kSequences; ++s) {
        const int64_t chunk = 5 * s + 1, begin = step * chunk;
        const int64_t end = std::min(begin + chunk, recordings[s].block.context_end);
        if (begin < end) commits.push_back({s, begin, recordings[s].rows(begin, end)});
      }
      if (!commits.empty()) cache.commit(commits);
    }
    for (int64_t s = kSequences - 1; s >= 0; --s) blocks.push_back({s, recordings[s].block});
    const std::vector<Draft> together = cache.draft(blocks);
    for (int64_t s = 0; s < kSequences; ++s)
      EXPECT_EQ(together[kSequences - 1 - s], alone(parts, c.f32, s))
          << c.folder << " sequence " << s << " in blocks of " << c.kv_block_size;
  }
}

TEST_P(DrafterProperty, RowsOfRejectedTokensAreReplacedByTheNextCommit) {
  const DrafterParts parts("dspark-tiny-rnn");
  const auto drafter = parts.load({.f32 = false});
  ASSERT_TRUE(drafter.ok());
  const Recording r(**drafter, 4), other(**drafter, 5);
  DraftCache cache(**drafter, GetParam(), {.positions = kPositions});
  cache.commit({{.start = 0, .taps = other.rows(0, 80)}});
  cache.commit({{.start = 0, .taps = r.rows(0, r.block.context_end)}});
  EXPECT_EQ(cache.draft({{.block = r.block}})[0], alone(parts, false, 4));
}

std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (int i = 0; i <= static_cast<int>(best_isa()); ++i) all.push_back(static_cast<Isa>(i));
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, DrafterProperty, ::testing::ValuesIn(isas()),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace nib
