#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/testing/step_loop.h"

namespace nib {
namespace {

using testing::Answer;
using ::testing::ElementsAre;
using testing::FakeLoop;
using testing::StepLoopConfig;

Request request(int64_t prompt, int64_t max_tokens, int64_t priority = 0) {
  Request r;
  for (int64_t i = 0; i < prompt; ++i) r.prompt.push_back(static_cast<int32_t>(1 + (i * 7 + prompt) % 50));
  r.sampling.max_tokens = max_tokens;
  r.sampling.temperature = 0;
  r.priority = priority;
  return r;
}

// A scheduler on its own: every step draws token 9.
class PlanTest : public ::testing::Test {
 protected:
  void make(const std::vector<int64_t>& pools, int64_t rows, bool priority = false) {
    std::vector<CacheSpec> specs = testing::FakeNetwork().cache_specs();
    scheduler_ =
        std::make_unique<Scheduler>(SchedulerConfig{pools[2], rows, 5, 64, testing::FakeNetwork::kVocab, priority},
                                    BlockManager(std::move(specs), pools));
  }

  void add(Request r) {
    r.id = ++last_id_;
    scheduler_->add(std::make_unique<RequestState>(std::move(r), nullptr, 1, 0));
  }

  // One step as "id:start+count" for each sequence in the batch.
  std::vector<std::string> step() {
    const StepPlan& plan = scheduler_->plan(0);
    std::vector<std::string> out;
    for (size_t i = 0; i < plan.sequences.size(); ++i)
      out.push_back(
          fmt::format("{}:{}+{}", plan.sequences[i]->request.request.id, plan.rows[i].start, plan.rows[i].count));
    StepOutput output;
    output.samples.assign(plan.sample_rows.size(), Sample{9, std::nullopt, {}});
    output.prompt_logprobs.assign(plan.prompt_rows.size(), Sample{-1, Logprobs{}, {}});
    scheduler_->commit(output, 0);
    return out;
  }

  std::unique_ptr<Scheduler> scheduler_;
  uint64_t last_id_ = 0;
};

TEST_F(PlanTest, ChunksAPromptByTheTokenBudget) {
  make({64, 64, 4}, 8);
  add(request(19, 2));
  EXPECT_THAT(step(), ElementsAre("1:0+8"));
  EXPECT_THAT(step(), ElementsAre("1:8+8"));
  EXPECT_THAT(step(), ElementsAre("1:16+3"));
  EXPECT_THAT(step(), ElementsAre("1:19+1"));
  EXPECT_THAT(step(), ElementsAre());
}

TEST_F(PlanTest, DecodesComeFirstAndPrefillFillsTheRestOfTheBudget) {
  make({64, 64, 4}, 8);
  add(request(3, 9));
  EXPECT_THAT(step(), ElementsAre("1:0+3"));
  add(request(20, 9));
  add(request(2, 9));
  EXPECT_THAT(step(), ElementsAre("1:3+1", "2:0+7"));
  EXPECT_THAT(step(), ElementsAre("1:4+1", "2:7+7"));
  EXPECT_THAT(step(), ElementsAre("1:5+1", "2:14+6", "3:0+1"));
  EXPECT_THAT(step(), ElementsAre("1:6+1", "2:20+1", "3:1+1"));
}

TEST_F(PlanTest, ServesInOrderOfArrivalUpToMaxNumSeqs) {
  make({64, 64, 2}, 8);
  for (int i = 0; i < 3; ++i) add(request(2, 2));
  EXPECT_THAT(step(), ElementsAre("1:0+2", "2:0+2"));
  EXPECT_THAT(step(), ElementsAre("1:2+1", "2:2+1"));
  EXPECT_THAT(step(), ElementsAre("3:0+2"));
}

TEST_F(PlanTest, LowerPriorityNumbersRunFirstAndTiesByArrival) {
  make({64, 64, 2}, 8, /*priority=*/true);
  add(request(2, 1, 5));
  add(request(3, 1, 1));
  add(request(4, 1, 1));
  EXPECT_THAT(step(), ElementsAre("2:0+3", "3:0+4"));
  EXPECT_THAT(step(), ElementsAre("1:0+2"));
}

TEST_F(PlanTest, PriorityIsIgnoredUnderFirstComeFirstServed) {
  make({64, 64, 1}, 8);
  add(request(2, 1, 5));
  add(request(3, 1, 1));
  EXPECT_THAT(step(), ElementsAre("1:0+2"));
}

TEST_F(PlanTest, WhenBlocksRunOutTheLastIsPreemptedAndComputedAgain) {
  make({3, 8, 4}, 8);  // 12 positions of full attention
  add(request(3, 9));
  add(request(4, 9));
  EXPECT_THAT(step(), ElementsAre("1:0+3", "2:0+4"));
  EXPECT_THAT(step(), ElementsAre("1:3+1", "2:4+1"));  // all three blocks are lent
  EXPECT_THAT(step(), ElementsAre("1:4+1"));           // 2 gives up its blocks
  EXPECT_EQ(scheduler_->blocks().pool(0).num_free(), 1);
  for (int i = 5; i < 11; ++i) EXPECT_THAT(step(), ElementsAre(fmt::format("1:{}+1", i)));
  EXPECT_THAT(step(), ElementsAre("2:0+6"));  // the prompt and the two tokens it had
  EXPECT_THAT(step(), ElementsAre("2:6+1"));
}

TEST_F(PlanTest, UnderPriorityTheLeastUrgentIsPreemptedEvenIfItCameFirst) {
  make({3, 8, 4}, 8, /*priority=*/true);
  add(request(3, 9, 7));
  add(request(4, 9, 1));
  EXPECT_THAT(step(), ElementsAre("2:0+4", "1:0+3"));
  EXPECT_THAT(step(), ElementsAre("2:4+1", "1:3+1"));
  for (int i = 5; i < 8; ++i) EXPECT_THAT(step().front(), fmt::format("2:{}+1", i));
  EXPECT_THAT(step(), ElementsAre("2:8+1"));
}

TEST_F(PlanTest, AWaitingSequenceIsNotAdmittedIfItsTokensWouldNotFit) {
  make({4, 8, 4}, 8);
  add(request(8, 9));
  add(request(12, 9));
  EXPECT_THAT(step(), ElementsAre("1:0+8"));
  EXPECT_THAT(step(), ElementsAre("1:8+1"));
}

TEST_F(PlanTest, PromptLogprobsTakeAtMostTheirLogitRowsAStep) {
  make({64, 64, 4}, 8);
  Request r = request(7, 1);
  r.sampling.num_prompt_logprobs = 0;
  add(r);
  EXPECT_THAT(step(), ElementsAre("1:0+5"));
  EXPECT_THAT(step(), ElementsAre("1:5+2"));
}

TEST_F(PlanTest, SiblingsShareThePrefillAndJoinWithTheirFirstToken) {
  make({64, 64, 4}, 8);
  Request r = request(6, 3);
  r.sampling.temperature = 1;
  r.sampling.n = 3;
  add(r);
  EXPECT_THAT(step(), ElementsAre("1:0+6"));
  EXPECT_EQ(scheduler_->take_events().size(), 3u);
  EXPECT_EQ(scheduler_->blocks().pool(0).num_free(), 64 - 4);  // one shared block, three of their own
  EXPECT_THAT(step(), ElementsAre("1:6+1", "1:6+1", "1:6+1"));
}

TEST_F(PlanTest, SeatsAreKeptForTheSiblingsOfARunningRequest) {
  make({64, 64, 3}, 4);
  Request r = request(6, 3);
  r.sampling.temperature = 1;
  r.sampling.n = 3;
  add(r);
  EXPECT_THAT(step(), ElementsAre("1:0+4"));
  add(request(2, 1));
  EXPECT_THAT(step(), ElementsAre("1:4+2"));
  EXPECT_THAT(step(), ElementsAre("1:6+1", "1:6+1", "1:6+1"));
}

TEST_F(PlanTest, ACancelledSiblingGivesItsSeatToTheNextRequest) {
  make({64, 64, 3}, 8);
  Request r = request(6, 9);
  r.sampling.temperature = 1;
  r.sampling.n = 3;
  add(r);
  add(request(2, 9));
  EXPECT_THAT(step(), ElementsAre("1:0+6"));
  EXPECT_THAT(step(), ElementsAre("1:6+1", "1:6+1", "1:6+1"));
  scheduler_->cancel(1, 1);
  EXPECT_THAT(step(), ElementsAre("1:7+1", "1:7+1", "2:0+2"));
}

// ---- Answers: whatever the schedule, a request gets the tokens of its solo run.

struct Load {
  std::string name;
  StepLoopConfig config;
};

class AnswerTest : public ::testing::TestWithParam<Load> {};

std::vector<Request> mixed_requests() {
  std::vector<Request> out;
  for (int i = 0; i < 9; ++i) {
    Request r = request(1 + i * 5 % 23, 3 + i * 7 % 30, i % 3);
    r.sampling.temperature = i % 3 == 0 ? 0 : 0.7 + 0.1 * i;
    r.sampling.seed = 100 + i;
    r.sampling.n = i % 3 == 1 ? 3 : 1;
    r.sampling.num_logprobs = i % 2 ? 2 : -1;
    r.sampling.num_prompt_logprobs = i % 4 == 1 ? 1 : -1;
    r.sampling.repetition_penalty = i == 4 ? 1.3 : 1;
    r.sampling.frequency_penalty = i == 5 ? 0.8 : 0;
    out.push_back(r);
  }
  return out;
}

TEST_P(AnswerTest, EqualsTheSoloRun) {
  FakeLoop loop(GetParam().config);
  const std::vector<Request> requests = mixed_requests();
  for (const Request& r : requests) loop.add(r);
  loop.run();
  for (size_t i = 0; i < requests.size(); ++i)
    for (int32_t k = 0; k < requests[i].sampling.n; ++k)
      EXPECT_EQ(loop.answer(i + 1, k), loop.solo(requests[i], k)) << "request " << i + 1 << " sequence " << k;
  EXPECT_TRUE(loop.pools_full());
  if (GetParam().name.find("Tiny") != std::string::npos) {
    EXPECT_GT(loop.stats().num_preemptions, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Loads, AnswerTest,
                         ::testing::Values(Load{"Roomy", {}}, Load{"OneSeat", {.pools = {64, 64, 1}}},
                                           Load{"OneRowAStep", {.pools = {64, 64, 1}, .max_num_batched_tokens = 1}},
                                           Load{"WholePrompts", {.pools = {64, 64, 8}, .max_num_batched_tokens = 64}},
                                           Load{"TinyFullPool", {.pools = {15, 64, 6}}},
                                           Load{"TinyWindowPool", {.pools = {64, 7, 6}}},
                                           Load{"TinyPriority", {.pools = {15, 64, 6}, .priority = true}},
                                           Load{"BlocksOfOne", {.pools = {200, 200, 6}, .shape = {.block_size = 1}}},
                                           Load{"WindowOfOne", {.shape = {.window = 1}}},
                                           Load{"TwoThreads", {.num_threads = 2}}),
                         [](const auto& info) { return info.param.name; });

TEST(Cancel, AtEveryMomentReturnsEverythingAndLeavesTheOthersAlone) {
  for (int moment = 0; moment < 40; ++moment) {
    FakeLoop loop({.pools = {12, 12, 3}});
    std::vector<Request> requests = {request(11, 9), request(9, 12), request(3, 6)};
    requests[1].sampling.temperature = 1;
    requests[1].sampling.n = 3;
    for (const Request& r : requests) loop.add(r);
    for (int i = 0; i < moment; ++i) loop.step();
    loop.cancel(2);
    const bool was_over = loop.answer(2, 0).finish != FinishReason::kAbort;
    loop.cancel(2);  // twice does no harm
    loop.run();
    for (uint64_t id : {1, 3}) EXPECT_EQ(loop.answer(id, 0), loop.solo(requests[id - 1], 0)) << moment;
    for (int k = 0; k < 3; ++k) {
      const std::vector<int32_t> got = loop.answer(2, k).tokens, all = loop.solo(requests[1], k).tokens;
      EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin())) << moment;
      EXPECT_NE(loop.answer(2, k).finish, FinishReason::kNone);
    }
    EXPECT_TRUE(loop.pools_full()) << moment << (was_over ? " over" : "");
  }
}

TEST(Cancel, OfOneSequenceAtEveryMomentLeavesItsSiblingsAlone) {
  for (int32_t cancelled = 0; cancelled < 3; ++cancelled)
    for (int moment = 0; moment < 30; ++moment) {
      FakeLoop loop({.pools = {12, 12, 3}});
      std::vector<Request> requests = {request(11, 9), request(9, 12)};
      requests[1].sampling.temperature = 1;
      requests[1].sampling.n = 3;
      for (const Request& r : requests) loop.add(r);
      for (int i = 0; i < moment; ++i) loop.step();
      for (int twice = 0; twice < 2; ++twice) loop.cancel(2, cancelled);
      const bool aborted = loop.answer(2, cancelled).finish == FinishReason::kAbort;
      const size_t tokens = loop.answer(2, cancelled).tokens.size();
      loop.run();
      EXPECT_EQ(loop.answer(1, 0), loop.solo(requests[0], 0));
      EXPECT_EQ(loop.answer(2, cancelled).tokens.size(), tokens) << "it went on after its end";
      for (int32_t k = 0; k < 3; ++k)
        if (k != cancelled || !aborted) {
          EXPECT_EQ(loop.answer(2, k), loop.solo(requests[1], k)) << "at " << moment << " sequence " << k;
        }
      EXPECT_TRUE(loop.pools_full());
    }
}

TEST(Errors, ANotANumberRowEndsItsRequestAndNoOther) {
  FakeLoop loop({});
  Request good = request(6, 10), bad = request(6, 10);
  bad.prompt.back() = testing::FakeNetwork::kPoison;
  bad.sampling.temperature = 1;
  bad.sampling.n = 2;
  loop.add(good);
  loop.add(bad);
  loop.add(good);
  loop.run();
  for (int k = 0; k < 2; ++k) {
    EXPECT_EQ(loop.answer(2, k).finish, FinishReason::kError);
    EXPECT_THAT(loop.answer(2, k).error, ::testing::HasSubstr("The model produced"));
  }
  EXPECT_EQ(loop.answer(1, 0), loop.solo(good, 0));
  EXPECT_EQ(loop.answer(3, 0), loop.solo(good, 0));
  EXPECT_TRUE(loop.pools_full());
}

TEST(Errors, ANotANumberRowInsideThePromptIsAnErrorOnlyForThoseWhoReadIt) {
  for (const int prompt_logprobs : {-1, 0}) {
    FakeLoop loop({});
    Request r = request(6, 4);
    r.prompt[2] = testing::FakeNetwork::kPoison;
    r.sampling.num_prompt_logprobs = prompt_logprobs;
    loop.add(r);
    loop.run();
    EXPECT_EQ(loop.answer(1, 0).finish == FinishReason::kError, prompt_logprobs == 0);
    EXPECT_TRUE(loop.pools_full());
  }
}

TEST(Errors, ARequestWhoseEveryTokenIsExcludedEndsWithASentence) {
  FakeLoop loop({});
  Request r = request(6, 4);
  r.sampling.allowed_token_ids = {5};
  r.sampling.bad_words = {{5}};
  loop.add(r);
  loop.run();
  EXPECT_EQ(loop.answer(1, 0).finish, FinishReason::kError);
  EXPECT_THAT(loop.answer(1, 0).error, ::testing::HasSubstr("No token is left"));
}

TEST(Preemption, PromptLogprobsAreMadeOnceAndCompletely) {
  FakeLoop loop({.pools = {12, 12, 4}, .max_prompt_logit_rows = 3});
  Request first = request(20, 24), second = request(17, 5);
  first.sampling.ignore_eos = true;
  second.sampling.num_prompt_logprobs = 2;
  loop.add(first);
  loop.add(second);
  loop.run();
  EXPECT_GT(loop.stats().num_preemptions, 0);
  EXPECT_EQ(loop.answer(2, 0).prompt_logprobs.size(), 17u);
  EXPECT_EQ(loop.answer(2, 0), loop.solo(second, 0));
}

TEST(Stop, ReasonsAndTheirTokens) {
  using F = FinishReason;
  struct Case {
    std::string name;
    std::function<void(SamplingParams&)> set;
    F finish;
    std::optional<int32_t> stop_token;
    size_t num_tokens;
  };
  // allowed_token_ids makes the next token known.
  const std::vector<Case> cases = {
      {"eos", [](auto& p) { p.allowed_token_ids = {0}; }, F::kStop, {}, 1},
      {"ignored eos", [](auto& p) { p.allowed_token_ids = {0}, p.ignore_eos = true; }, F::kLength, {}, 8},
      {"stop id",
       [](auto& p) {
         p.allowed_token_ids = {5}, p.stop_token_ids = {4, 5};
       },
       F::kStop, 5, 1},
      {"a stop id that is the eos",
       [](auto& p) { p.allowed_token_ids = {0}, p.ignore_eos = true, p.stop_token_ids = {0}; }, F::kStop, 0, 1},
      {"min_tokens masks both",
       [](auto& p) {
         p.allowed_token_ids = {0, 5, 6}, p.stop_token_ids = {5}, p.min_tokens = 8;
       },
       F::kLength,
       {},
       8},
      {"min_tokens then stop",
       [](auto& p) {
         p.allowed_token_ids = {0, 6}, p.min_tokens = 3;
         p.logit_bias = {{0, 100.0f}};
       },
       F::kStop,
       {},
       4},
      {"length", [](auto& p) { p.allowed_token_ids = {6}; }, F::kLength, {}, 8},
  };
  for (const Case& c : cases) {
    FakeLoop loop({});
    Request r = request(5, 8);
    r.sampling.eos_token_ids = {testing::FakeNetwork::kEos};
    c.set(r.sampling);
    loop.add(r);
    loop.run();
    const Answer& a = loop.answer(1, 0);
    EXPECT_EQ(a.finish, c.finish) << c.name;
    EXPECT_EQ(a.stop_token, c.stop_token) << c.name;
    EXPECT_EQ(a.tokens.size(), c.num_tokens) << c.name;
  }
}

}  // namespace
}  // namespace nib
