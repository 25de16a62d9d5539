// Generating in this process, and the comparison that nib check --speculation rests on.
#include "cli/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "cli/check_speculation.h"
#include "model/testing/make_checkpoint.h"

namespace nib::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Generated answer(std::vector<int32_t> tokens, float last_logprob, FinishReason finish = FinishReason::kLength) {
  Generated g{std::move(tokens), {}, finish};
  for (const int32_t id : g.tokens) g.logprobs.push_back({{id, -1, 1}, {{id, -1, 1}, {99, -2, 2}}});
  g.logprobs.back().chosen.logprob = last_logprob;
  return g;
}

TEST(FirstDifference, ComparesTokensEndsAndTheBitsOfLogprobs) {
  const Generated base = answer({5, 6, 7}, -0.5f);
  Generated no_logprobs = base, other_rank = base, other_top = base;
  no_logprobs.logprobs.clear();
  other_rank.logprobs[0].chosen.rank = 2;
  other_top.logprobs[1].top[1].id = 98;
  struct Case {
    const char* name;
    Generated other;
    std::optional<size_t> position;
  };
  const Case cases[] = {
      {"the same", base, std::nullopt},
      {"a token", answer({5, 9, 7}, -0.5f), 1},
      {"a logprob in its last bit", answer({5, 6, 7}, std::nextafter(-0.5f, 0.0f)), 2},
      {"no logprobs", no_logprobs, 0},
      {"a rank", other_rank, 0},
      {"a runner-up", other_top, 1},
      {"longer", answer({5, 6, 7, 8}, -0.5f), 2},  // whose third logprob is another one
      {"the end", answer({5, 6, 7}, -0.5f, FinishReason::kStop), 3},
  };
  for (const Case& c : cases) {
    const std::optional<Difference> d = first_difference({base, base}, {base, c.other});
    ASSERT_EQ(d.has_value(), c.position.has_value()) << c.name;
    if (!d) continue;
    EXPECT_EQ(d->prompt, 1u) << c.name;
    EXPECT_EQ(d->position, *c.position) << c.name;
  }
  const Difference d = *first_difference({base}, {answer({5, 9}, -0.5f, FinishReason::kStop)});
  EXPECT_EQ(d.first, "token 6 (logprob -1)");
  EXPECT_EQ(d.second, "token 9 (logprob -0.5)");
}

TEST(Acceptance, IsTheDifferenceOfTwoLooks) {
  EngineStats before, after;
  before.num_drafts = 10, before.num_draft_tokens = 70, before.num_accepted_tokens = 20;
  before.accepted_per_position[0] = 10;
  after = before;
  after.num_drafts = 14, after.num_draft_tokens = 98, after.num_accepted_tokens = 26;
  after.accepted_per_position[0] = 14, after.accepted_per_position[1] = 2;
  const Acceptance a = acceptance(before, after);
  EXPECT_EQ(a.drafts, 4);
  EXPECT_EQ(a.length(), 2.5);
  EXPECT_THAT(a.by_position, ElementsAre(4, 2));
  EXPECT_EQ(a.positions(), "100% 50%");
  EXPECT_EQ(acceptance(after, after).length(), 1);
}

std::string check_output(const std::filesystem::path& folder, const SpeculationCheck& options, Status& status) {
  ::testing::internal::CaptureStdout();
  status = check_speculation(folder, options);
  std::fflush(stdout);
  return ::testing::internal::GetCapturedStdout();
}

TEST(CheckSpeculation, CopiesWhereTheFolderHasNoDrafter) {
  const TempFolder temp;
  ASSERT_TRUE(make_tiny_checkpoint({}, temp.path()).ok());
  Status status;
  EXPECT_THAT(check_output(temp.path(), {.num_prompts = 9}, status),
              AllOf(HasSubstr("no drafter in the folder"), HasSubstr("identical: 9 prompts")));
  EXPECT_TRUE(status.ok()) << status.message();
  check_output(temp.path(), {.num_prompts = 9, .num_speculative_tokens = 4}, status);
  EXPECT_THAT(status.message(), HasSubstr("has no drafter"));
}

TEST(CheckSpeculation, FindsNanoIdenticalWithItsDrafter) {
  Status status;
  const std::filesystem::path nano = std::filesystem::path(NIB_SOURCE_DIR) / "models/nano";
  EXPECT_THAT(check_output(nano, {.num_prompts = 8, .num_speculative_tokens = 5}, status),
              AllOf(HasSubstr("identical: 8 prompts"), HasSubstr("acceptance length")));
  EXPECT_TRUE(status.ok()) << status.message();
}

}  // namespace
}  // namespace nib::cli
