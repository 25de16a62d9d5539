#include "engine/spec_decode/watchdog.h"

#include <gtest/gtest.h>

namespace nib {
namespace {

using Dog = DraftWatchdog;

// A step of `ns` with `tokens`, as the cost table expects it, against `plain_ns` and `plain_tokens` without the drafts.
constexpr DraftedStep step(double ns, int64_t tokens, double plain_ns, int64_t plain_tokens) {
  return {.ns = ns, .table_ns = ns, .plain_table_ns = plain_ns, .tokens = tokens, .plain_tokens = plain_tokens};
}
constexpr DraftedStep kGain = step(150, 3, 100, 1), kLoss = step(150, 1, 100, 1);

void draft(Dog& d, const DraftedStep& step, int64_t times = Dog::kWindow) {
  for (int64_t i = 0; i < times; ++i) d.drafted(step);
}

int64_t rest(Dog& d) {
  int64_t steps = 0;
  for (; !d.may_draft(); ++steps) d.rested();
  return steps;
}

TEST(DraftWatchdogTest, PausesWhereATokenTakesLongerWithDraftsThanWithout) {
  struct Case {
    DraftedStep step;
    bool pauses;
  };
  constexpr Case kCases[] = {
      {step(150, 3, 100, 1), false},  // 50 against 100 a token
      {step(150, 1, 100, 1), true},   // all rejected
      {step(200, 2, 100, 1), false},  // equal
      {step(201, 2, 100, 1), true},
      {step(110, 34, 100, 32), true},  // two tokens more, but 31 users wait
      {step(105, 34, 100, 32), false},
      {{.ns = 900, .table_ns = 150, .plain_table_ns = 100, .tokens = 2, .plain_tokens = 1}, false},  // a slow moment
      {{.ns = 90, .table_ns = 150, .plain_table_ns = 100, .tokens = 1, .plain_tokens = 1}, true},    // a fast one
      {{.ns = 900, .table_ns = 0, .plain_table_ns = 0, .tokens = 1, .plain_tokens = 1}, false},      // cost unknown
  };
  for (const Case& k : kCases) {
    Dog d;
    draft(d, k.step);
    EXPECT_EQ(!d.may_draft(), k.pauses) << k.step.ns << " ns, " << k.step.tokens << " tokens";
    EXPECT_EQ(d.num_pauses(), k.pauses ? 1 : 0);
  }
}

TEST(DraftWatchdogTest, JudgesAWholeWindowAndNotOneStep) {
  Dog d;
  draft(d, kLoss, Dog::kWindow - 1);
  EXPECT_TRUE(d.may_draft());
  draft(d, kLoss, 1);
  EXPECT_FALSE(d.may_draft());
  Dog mixed;
  draft(mixed, kLoss, Dog::kWindow / 2);
  draft(mixed, kGain, Dog::kWindow / 2);
  EXPECT_TRUE(mixed.may_draft());
}

TEST(DraftWatchdogTest, PausesDoubleUpToALimitAndAProbeFollowsEach) {
  Dog d;
  for (int64_t want : {16, 32, 64, 128, 256, 512, 1024, 1024}) {
    draft(d, kLoss);
    EXPECT_EQ(rest(d), want);
  }
  EXPECT_EQ(d.num_pauses(), 8);
}

TEST(DraftWatchdogTest, AGoodWindowMakesTheNextPauseShortAgain) {
  Dog d;
  for (int i = 0; i < 3; ++i) draft(d, kLoss), rest(d);
  draft(d, kGain);
  EXPECT_TRUE(d.may_draft());
  draft(d, kLoss);
  EXPECT_EQ(rest(d), Dog::kWindow);
}

}  // namespace
}  // namespace nib
