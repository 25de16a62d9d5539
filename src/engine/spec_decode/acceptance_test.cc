#include "engine/spec_decode/acceptance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace nib {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

// Steps whose draft k is accepted with probability rates[k] once those before it are.
void run(SequenceAcceptance& s, Proposer p, const std::vector<double>& rates, int steps, uint32_t seed) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<double> uniform;
  for (int i = 0; i < steps; ++i) {
    int64_t accepted = 0;
    while (accepted < static_cast<int64_t>(rates.size()) && uniform(rng) < rates[accepted]) ++accepted;
    s.observe(p, static_cast<int64_t>(rates.size()), accepted);
    s.end_step();
  }
}

TEST(RunningAcceptanceTest, JudgesEachDraftUpToTheFirstRejectedOne) {
  RunningAcceptance r(1e9, 1e9);
  r.observe(3, 3);
  r.observe(3, 1);
  r.observe(2, 0);
  r.observe(0, 0);
  struct Case {
    int64_t index;
    double want;  // accepted / tried
  };
  constexpr Case kCases[] = {{0, 2. / 3}, {1, 1. / 2}, {2, 1. / 1}};
  for (const Case& k : kCases) EXPECT_NEAR(r.conditional(k.index, 0, 1e-12), k.want, 1e-6) << k.index;
  EXPECT_EQ(r.conditional(3, 0.25, 4), 0.25);  // never tried: the prior
}

TEST(RunningAcceptanceTest, RecentObservationsCountMore) {
  RunningAcceptance r(10, 1e9);
  for (int i = 0; i < 50; ++i) r.observe(1, 1);
  for (int i = 0; i < 50; ++i) r.observe(1, 0);
  EXPECT_LT(r.conditional(0, 0, 1e-12), 0.01);
}

TEST(RunningAcceptanceTest, FadesToThePriorWithoutNews) {
  RunningAcceptance r(10, 10);
  for (int i = 0; i < 50; ++i) r.observe(1, 0);
  EXPECT_LT(r.conditional(0, 0.8, 4), 0.3);
  for (int i = 0; i < 100; ++i) r.fade();
  EXPECT_NEAR(r.conditional(0, 0.8, 4), 0.8, 0.01);
}

TEST(SequenceAcceptanceTest, ANewSequenceStartsWithWhatTheEngineHasSeen) {
  EngineAcceptance engine;
  SequenceAcceptance first(engine);
  EXPECT_THAT(first.survival(Proposer::kDspark, 2), ElementsAre(DoubleNear(0.7, 1e-9), DoubleNear(0.49, 1e-9)));
  run(first, Proposer::kDspark, {0.9, 0.5}, 2000, 1);
  const std::vector<double> s = SequenceAcceptance(engine).survival(Proposer::kDspark, 2);
  EXPECT_THAT(s, ElementsAre(DoubleNear(0.9, 0.05), DoubleNear(0.45, 0.07)));
}

TEST(SequenceAcceptanceTest, FollowsItsOwnStepsSoonAndTheEngineSlowly) {
  EngineAcceptance engine;
  SequenceAcceptance good(engine), bad(engine);
  run(good, Proposer::kDspark, {1, 1, 1}, 500, 1);
  run(bad, Proposer::kDspark, {0, 0, 0}, 20, 2);
  EXPECT_GT(good.survival(Proposer::kDspark, 3)[2], 0.9);
  EXPECT_LT(bad.survival(Proposer::kDspark, 1)[0], 0.35);
  EXPECT_GT(SequenceAcceptance(engine).survival(Proposer::kDspark, 1)[0], 0.9);
}

TEST(SequenceAcceptanceTest, EveryProposerIsCountedApart) {
  EngineAcceptance engine;
  SequenceAcceptance s(engine);
  run(s, Proposer::kShortCopy, {0, 0}, 50, 1);
  EXPECT_LT(s.survival(Proposer::kShortCopy, 1)[0], 0.2);
  EXPECT_NEAR(s.survival(Proposer::kLongCopy, 1)[0], 0.9, 1e-9);
  EXPECT_NEAR(s.survival(Proposer::kDspark, 1)[0], 0.7, 1e-9);
}

TEST(SequenceAcceptanceTest, ARejectedProposerIsTriedAgainAfterAWhile) {
  EngineAcceptance engine;
  SequenceAcceptance s(engine);
  run(s, Proposer::kDspark, {0}, 20, 1);
  const double low = s.survival(Proposer::kDspark, 1)[0];
  for (int i = 0; i < 1000; ++i) s.end_step();
  EXPECT_LT(low, 0.2);
  EXPECT_GT(s.survival(Proposer::kDspark, 1)[0], 2 * low);
  for (int i = 0; i < 100'000; ++i) engine.end_step();
  EXPECT_NEAR(s.survival(Proposer::kDspark, 1)[0], 0.7, 0.01);
}

TEST(SequenceAcceptanceTest, SurvivalNeverRises) {
  std::mt19937 rng(3);
  EngineAcceptance engine;
  SequenceAcceptance s(engine);
  for (int i = 0; i < 300; ++i) {
    const int64_t proposed = rng() % 16;
    s.observe(Proposer::kLongCopy, proposed, rng() % (proposed + 1));
    double before = 1;
    for (double a : s.survival(Proposer::kLongCopy, 15)) {
      ASSERT_LE(a, before);
      ASSERT_GE(a, 0);
      before = a;
    }
  }
}

TEST(SequenceAcceptanceTest, AnUnverifiedCopyIsJudgedByWhatCameInstead) {
  struct Case {
    std::vector<int32_t> proposal, emitted;
    int64_t proposed, accepted;  // counts the same as this
  };
  const Case kCases[] = {{{1, 2, 3, 4}, {1, 2}, 2, 2},
                         {{1, 2, 3, 4}, {1, 9, 3}, 3, 1},
                         {{1, 2}, {9}, 1, 0},
                         {{1}, {1, 2, 3}, 1, 1},
                         {{}, {1}, 0, 0}};
  for (const Case& k : kCases) {
    EngineAcceptance a, b;
    SequenceAcceptance judged(a), counted(b);
    judged.observe_unverified(Proposer::kLongCopy, k.proposal, k.emitted);
    counted.observe(Proposer::kLongCopy, k.proposed, k.accepted);
    EXPECT_EQ(judged.survival(Proposer::kLongCopy, 4), counted.survival(Proposer::kLongCopy, 4))
        << ::testing::PrintToString(k.proposal);
  }
}

TEST(CopyProposerTest, LongMatchesAreKeptApartFromShortOnes) {
  EXPECT_EQ(copy_proposer(3), Proposer::kShortCopy);
  EXPECT_EQ(copy_proposer(7), Proposer::kShortCopy);
  EXPECT_EQ(copy_proposer(8), Proposer::kLongCopy);
}

}  // namespace
}  // namespace nib
