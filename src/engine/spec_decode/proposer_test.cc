#include "engine/spec_decode/proposer.h"

#include <gtest/gtest.h>

namespace nib {
namespace {

std::vector<double> survival(double conditional, int64_t num_drafts) {
  std::vector<double> out;
  double survives = 1;
  for (int64_t k = 0; k < num_drafts; ++k) out.push_back(survives *= conditional);
  return out;
}

CostTable costs(double draft_ns, double step_ns, double row_ns) {
  return {CostCurve({{1, draft_ns}}), CostCurve({{1, step_ns}, {2, step_ns + row_ns}})};
}

TEST(ChooseProposerTest, TakesTheMostTokensPerNanosecond) {
  struct Case {
    const char* what;
    std::vector<double> copy, drafter;
    CostTable table;
    Proposer want;
    int64_t num_drafts;
  };
  const Case kCases[] = {
      {"nobody proposes", {}, {}, costs(10, 100, 1), Proposer::kNone, 0},
      {"a good copy needs no drafter", survival(0.95, 15), survival(0.7, 7), costs(30, 100, 1), Proposer::kLongCopy,
       15},
      {"a bad copy loses to the drafter", survival(0.2, 15), survival(0.7, 7), costs(30, 100, 1), Proposer::kDspark, 7},
      {"the drafter costs more than it gives", {}, survival(0.7, 7), costs(300, 100, 1), Proposer::kNone, 0},
      {"then a poor copy is still worth it", survival(0.2, 15), survival(0.7, 7), costs(300, 100, 1),
       Proposer::kLongCopy, 2},
      {"rows are dear", survival(0.9, 15), {}, costs(30, 100, 95), Proposer::kNone, 0},
      {"the last drafts do not pay", survival(0.5, 15), {}, costs(30, 100, 10), Proposer::kLongCopy, 2},
      {"a copy wins a tie", survival(0.7, 7), survival(0.7, 7), costs(0, 100, 1), Proposer::kLongCopy, 7},
      {"nothing is known yet", survival(0.5, 15), survival(0.7, 7), {}, Proposer::kDspark, 7},
  };
  for (const Case& k : kCases) {
    const Proposal p = choose_proposer({.num_rows = 1,
                                        .num_sequences = 1,
                                        .num_drafter_sequences = 1,
                                        .copy = k.copy.empty() ? Proposer::kNone : Proposer::kLongCopy,
                                        .copy_survival = k.copy,
                                        .drafter_survival = k.drafter},
                                       k.table);
    EXPECT_EQ(p.proposer, k.want) << k.what;
    EXPECT_EQ(p.num_drafts, k.num_drafts) << k.what;
  }
}

TEST(ChooseProposerTest, NamesTheKindOfCopyThatWasProposed) {
  const Proposal p = choose_proposer(
      {.num_rows = 1, .num_sequences = 1, .copy = Proposer::kShortCopy, .copy_survival = {0.9}}, costs(1, 100, 1));
  EXPECT_EQ(p.proposer, Proposer::kShortCopy);
}

// 100 ns a step for 1 sequence or for 10: with ten of them a sequence has 10 ns of it, and a row has to earn more.
TEST(ChooseProposerTest, UnderLoadARowHasToEarnMore) {
  struct Case {
    int64_t num_sequences;
    Proposer want;
  };
  constexpr Case kCases[] = {{1, Proposer::kDspark}, {10, Proposer::kNone}};
  const CostTable table = {CostCurve({{1, 5}}), CostCurve({{1, 100}, {10, 100}, {11, 108}})};
  for (const Case& k : kCases)
    EXPECT_EQ(choose_proposer({.num_rows = k.num_sequences,
                               .num_sequences = k.num_sequences,
                               .num_drafter_sequences = 1,
                               .drafter_survival = survival(0.7, 7)},
                              table)
                  .proposer,
              k.want)
        << k.num_sequences;
}

TEST(ChooseProposerTest, SequencesShareARunOfTheDrafter) {
  const CostTable table = {CostCurve({{1, 160}, {8, 160}}), CostCurve({{1, 100}, {8, 107}})};
  for (const auto& [sharing, want] : {std::pair{1, Proposer::kNone}, std::pair{8, Proposer::kDspark}})
    EXPECT_EQ(
        choose_proposer(
            {.num_rows = 8, .num_sequences = 8, .num_drafter_sequences = sharing, .drafter_survival = survival(0.9, 4)},
            table)
            .proposer,
        want)
        << sharing;
}

}  // namespace
}  // namespace nib
