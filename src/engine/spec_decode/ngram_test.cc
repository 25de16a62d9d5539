#include "engine/spec_decode/ngram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace nib {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Tokens = std::vector<int32_t>;

CopyDrafter after(const Tokens& tokens, int64_t min_match, int64_t max_match) {
  CopyDrafter d(min_match, max_match);
  for (int32_t t : tokens) d.append(t);
  return d;
}

// The definition, by plain search: the most recent earlier end of the last `length` tokens, or -1.
int64_t last_end_of(const Tokens& t, int64_t length) {
  const int64_t n = static_cast<int64_t>(t.size());
  for (int64_t end = n - 2; end >= length - 1; --end)
    if (std::equal(t.end() - length, t.end(), t.begin() + end + 1 - length)) return end;
  return -1;
}

Tokens searched_proposal(const Tokens& tokens, const std::vector<int64_t>& lengths, int64_t max_tokens) {
  for (int64_t length : lengths) {
    if (length > static_cast<int64_t>(tokens.size())) continue;
    const int64_t end = last_end_of(tokens, length);
    if (end < 0) continue;
    Tokens all = tokens;  // copying one by one lets the copy run into itself
    for (int64_t i = 0; i < max_tokens; ++i) all.push_back(all[end + 1 + i]);
    return Tokens(all.begin() + static_cast<int64_t>(tokens.size()), all.end());
  }
  return {};
}

TEST(CopyDrafterTest, ProposesWhatFollowedTheLastTokensBefore) {
  struct Case {
    Tokens tokens;
    int64_t min_match, max_match;
    Tokens want;
  };
  const Case kCases[] = {
      {{}, 1, 2, {}},                                        // nothing yet
      {{5, 6, 7}, 1, 2, {}},                                 // nothing twice
      {{5, 6, 7, 8, 5, 6}, 2, 4, {7, 8, 5}},                 // a match of two
      {{5, 6, 7, 8, 9, 6}, 2, 4, {}},                        // one token is too short a match
      {{1, 5, 6, 7, 2, 5, 6, 8, 3, 5, 6}, 2, 4, {8, 3, 5}},  // the most recent of equal matches
      {{1, 5, 6, 7, 2, 5, 6, 8, 1, 5, 6}, 2, 4, {7, 2, 5}},  // but a longer one wins
      {{1, 5, 6, 7, 2, 5, 6, 8, 1, 5, 6}, 2, 2, {8, 1, 5}},  // unless it is longer than asked for
      {{4, 4, 4}, 2, 4, {4, 4, 4}},                          // a copy that runs into itself
      {{1, 2, 1, 2}, 2, 4, {1, 2, 1}},
  };
  for (const Case& k : kCases)
    EXPECT_EQ(after(k.tokens, k.min_match, k.max_match).propose(3), k.want) << ::testing::PrintToString(k.tokens);
}

TEST(CopyDrafterTest, NeverProposesMoreThanAskedFor) {
  const CopyDrafter d = after({1, 2, 3, 4, 5, 1, 2}, 2, 4);
  EXPECT_THAT(d.propose(0), IsEmpty());
  EXPECT_THAT(d.propose(2), ElementsAre(3, 4));
}

TEST(CopyDrafterTest, CountsTheTokensThatAgreeBeforeTheProposal) {
  struct Case {
    Tokens tokens;
    int64_t want;
  };
  const Case kCases[] = {
      {{1, 2, 3}, 0},
      {{1, 2, 3, 9, 2, 3}, 2},
      {{1, 2, 3, 4, 9, 8, 2, 3, 4}, 3},
      {{1, 2, 3, 4, 5, 6, 7, 9, 2, 3, 4, 5, 6, 7}, 6},  // between two of the lengths tried
      {{1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2}, 2},
      {Tokens(100, 7), 16},  // up to max_match
  };
  for (const Case& k : kCases)
    EXPECT_EQ(after(k.tokens, 2, 16).match_length(), k.want) << ::testing::PrintToString(k.tokens);
}

TEST(CopyDrafterTest, AgreesWithAPlainSearchAfterEveryToken) {
  struct Case {
    int32_t alphabet;
    int64_t min_match, max_match;
    std::vector<int64_t> lengths;  // tried
  };
  const Case kCases[] = {
      {1, 1, 1, {1}}, {2, 1, 4, {4, 3, 2, 1}}, {2, 3, 24, {24, 12, 6, 3}}, {3, 2, 16, {16, 8, 4, 2}},
      {3, 3, 3, {3}}, {4, 2, 5, {5, 4, 3, 2}}, {8, 1, 8, {8, 4, 2, 1}},    {200, 1, 2, {2, 1}},
  };
  std::mt19937 rng(5);
  for (const Case& k : kCases) {
    for (int round = 0; round < 6; ++round) {
      CopyDrafter d(k.min_match, k.max_match);
      Tokens tokens;
      while (tokens.size() < 300) {
        const bool repeats = !tokens.empty() && rng() % 8 == 0;  // copies long runs, so that long matches occur
        const size_t from = repeats ? rng() % tokens.size() : 0, count = repeats ? 30 : 1;
        for (size_t i = 0; i < count; ++i) {
          tokens.push_back(repeats ? tokens[from + i] : static_cast<int32_t>(rng() % k.alphabet));
          d.append(tokens.back());
          const Tokens want = searched_proposal(tokens, k.lengths, 15);
          ASSERT_EQ(d.propose(15), want) << "alphabet " << k.alphabet << " after " << tokens.size() << " tokens";
          ASSERT_EQ(d.match_length() >= k.min_match, !want.empty());
        }
      }
    }
  }
}

TEST(CopyDrafterTest, MemoryIsBoundedByTheNumberOfTokens) {
  std::mt19937 rng(6);
  CopyDrafter d(3, 24);
  const int64_t empty = d.bytes();
  for (int64_t n = 1; n <= 300'000; ++n) {
    d.append(static_cast<int32_t>(rng()));  // every n-gram is new
    ASSERT_LE(d.bytes(), empty + n * CopyDrafter::kMaxBytesPerToken) << n;
  }
}

// With a search through the context this would take hours.
TEST(CopyDrafterTest, AMillionTokensAreNoLongerWorkAToken) {
  constexpr int64_t kFile = 500'000;
  std::mt19937 rng(7);
  Tokens file(kFile);
  for (int32_t& t : file) t = static_cast<int32_t>(rng() % 200'000);
  CopyDrafter d = after(file, 3, 24);
  int64_t num_right = 0;
  for (int64_t i = 0; i < kFile; ++i) {  // written once more
    num_right += d.propose(1) == Tokens{file[i]};
    d.append(file[i]);
  }
  EXPECT_GE(num_right, kFile - 3);
  EXPECT_LE(num_right, kFile);
  EXPECT_EQ(d.match_length(), 24);
}

TEST(CopyDrafterTest, OneTokenRepeatedAMillionTimesStaysCheap) {
  CopyDrafter d(3, 24);
  for (int64_t i = 0; i < 1'000'000; ++i) {
    d.append(3);
    ASSERT_EQ(d.propose(15).size(), i >= 3 ? 15u : 0u) << i;
  }
  EXPECT_THAT(d.propose(2), ElementsAre(3, 3));
}

}  // namespace
}  // namespace nib
