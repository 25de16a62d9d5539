#include "engine/token_constraint.h"

#include <gtest/gtest.h>

#include "engine/sequence.h"

namespace nib {
namespace {

constexpr int64_t kVocab = 40;

// After token t may come t + 1 or t + 2; at first 0 or 1.
class Climb : public TokenConstraint {
 public:
  void fill_mask(std::span<uint32_t> words) const override {
    std::fill(words.begin(), words.end(), 0u);
    for (int32_t id = next(); id < std::min<int64_t>(next() + 2, kVocab); ++id) words[id / 32] |= 1u << (id % 32);
  }
  bool accept(int32_t token) override {
    if (token != next() && token != next() + 1) return false;
    accepted.push_back(token);
    return true;
  }
  void rewind(int64_t num_tokens) override { accepted.resize(accepted.size() - num_tokens); }

  std::vector<int32_t> accepted;

 private:
  int32_t next() const { return accepted.empty() ? 0 : accepted.back() + 1; }
};

std::vector<int32_t> ids_of(std::span<const uint32_t> words) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < static_cast<int32_t>(words.size()) * 32; ++id)
    if (is_allowed(words, id)) ids.push_back(id);
  return ids;
}

TEST(TokenConstraint, MasksFollowTheDraftsUpToTheFirstIllegalOne) {
  struct Case {
    std::vector<int32_t> committed, drafts;
    std::vector<std::vector<int32_t>> masks;
  };
  const std::vector<Case> cases = {
      {{}, {}, {{0, 1}}},                                 // no draft: the row of the next token
      {{}, {0, 2, 3}, {{0, 1}, {1, 2}, {3, 4}, {4, 5}}},  // all are legal: a mask for the bonus row too
      {{}, {0, 5, 6}, {{0, 1}, {1, 2}}},                  // the second is illegal: its row still judges it
      {{}, {7, 8}, {{0, 1}}},                             // the first is illegal
      {{0, 1}, {2, -1}, {{2, 3}, {3, 4}}},                // after committed tokens; no id at all is illegal too
      {{30}, {}, {{31, 32}}},                             // across a word
      {{}, {1}, {{0, 1}, {2, 3}}},
  };
  constexpr uint32_t kUntouched = 0xdeadbeef;
  for (const Case& c : cases) {
    Climb climb;
    climb.accepted = c.committed;
    std::vector<uint32_t> words(5 * mask_words(kVocab), kUntouched);
    const View<uint32_t, 2> masks(words.data(), {5, mask_words(kVocab)});
    const int64_t n = fill_masks(climb, c.drafts, masks);
    ASSERT_EQ(n, static_cast<int64_t>(c.masks.size()));
    for (int64_t r = 0; r < n; ++r) EXPECT_EQ(ids_of({masks.row(r), 2}), c.masks[r]) << "row " << r;
    for (int64_t i = n * 2; i < 10; ++i) EXPECT_EQ(words[i], kUntouched);
    EXPECT_EQ(climb.accepted, c.committed);
  }
}

TEST(TokenConstraint, EachSequenceOfARequestHasItsOwn) {
  Request r;
  r.prompt = {1};
  r.sampling.n = 3;
  int made = 0;
  r.make_constraint = [&] { return ++made, std::make_unique<Climb>(); };
  const RequestState state(std::move(r), nullptr, 1, 0);
  EXPECT_EQ(made, 3);
  ASSERT_TRUE(state.sequences[0]->constraint->accept(1));
  EXPECT_FALSE(state.sequences[1]->constraint->accept(2));
}

TEST(TokenConstraint, ASequenceWithoutAFactoryHasNone) {
  const RequestState state({}, nullptr, 1, 0);
  EXPECT_EQ(state.sequences[0]->constraint, nullptr);
}

}  // namespace
}  // namespace nib
