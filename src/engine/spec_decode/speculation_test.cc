#include "engine/spec_decode/speculation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "engine/testing/random_requests.h"

namespace nib {
namespace {

using testing::Answer;
using testing::FakeDraftShape;
using testing::FakeLoop;
using testing::FakeNetwork;
using testing::Random;
using testing::StepLoopConfig;
using Method = SpeculativeConfig::Method;
using Coupling = SpeculativeConfig::Coupling;

struct Drafting {
  std::string name;
  FakeDraftShape shape;
};
const std::vector<Drafting> kDrafters = {
    {"good", {.right = 19, .wrong = 1}},
    {"mixed", {.right = 1, .wrong = 1}},
    {"bad", {.right = 0, .wrong = 1}},
    {"sometimes not a number", {.right = 3, .wrong = 1, .nan_every = 5}},
    {"with a confidence head", {.right = 1, .wrong = 1, .confidence = true}},
};

// Facts that hold at any time: nothing is accepted that was not judged, and nothing judged that no draft was.
void expect_consistent(const EngineStats& s, int64_t max_drafts) {
  const auto& by_position = s.accepted_per_position;
  EXPECT_EQ(std::accumulate(by_position.begin(), by_position.end(), int64_t{0}), s.num_accepted_tokens);
  EXPECT_TRUE(std::ranges::is_sorted(by_position, std::greater()));
  EXPECT_LE(by_position[0], s.num_drafts);
  EXPECT_LE(s.num_accepted_tokens, s.num_draft_tokens);
  EXPECT_LE(s.num_draft_tokens, s.num_drafts * max_drafts);
  EXPECT_GE(s.num_draft_tokens, s.num_drafts);
  // Each verification gives a token of its own, but for those whose answer ended within the drafts.
  EXPECT_GE(s.num_generation_tokens, s.num_accepted_tokens);
}

// What the events say adds up to what the engine says.
void expect_counted(FakeLoop& loop, const std::vector<Request>& requests) {
  int64_t tokens = 0, accepted = 0, rejected = 0;
  for (size_t i = 0; i < requests.size(); ++i)
    for (int32_t k = 0; k < requests[i].sampling.n; ++k) {
      const Answer& a = loop.answer(i + 1, k);
      tokens += static_cast<int64_t>(a.tokens.size());
      accepted += a.num_accepted_drafts, rejected += a.num_rejected_drafts;
      EXPECT_LE(a.num_accepted_drafts, static_cast<int64_t>(a.tokens.size()));
    }
  const EngineStats s = loop.stats();
  EXPECT_EQ(tokens, s.num_generation_tokens);
  EXPECT_EQ(accepted, s.num_accepted_tokens);
  EXPECT_EQ(accepted + rejected, s.num_draft_tokens);
}

// Every parameter of sampling, every depth, copies and drafters, fixed and scheduled, batches of mixed requests, tiny
// pools, budgets of a few rows.
TEST(Speculation, GreedyAndSeededAnswersAreThoseOfARunWithout) {
  for (const Drafting& drafting : kDrafters) {
    int64_t preemptions = 0, accepted = 0;
    for (uint64_t seed = 1; seed <= 60; ++seed) {
      SCOPED_TRACE(fmt::format("{}, seed {}", drafting.name, seed));
      Random random(seed);
      StepLoopConfig c = random_config(random);
      add_speculation(random, c);
      FakeLoop loop(c, drafting.shape);
      std::vector<Request> requests;
      for (int i = 0; i < 12; ++i) {
        requests.push_back(random_request(random, {30, 24, FakeNetwork::kVocab, true}));
        loop.add(requests.back());
        while (random.one_in(2)) loop.step();
      }
      loop.run();
      for (size_t i = 0; i < requests.size(); ++i)
        for (int32_t k = 0; k < requests[i].sampling.n; ++k)
          ASSERT_EQ(loop.answer(i + 1, k), loop.solo(requests[i], k)) << "request " << i << ", sequence " << k;
      ASSERT_TRUE(loop.pools_full());
      expect_consistent(loop.stats(), c.speculation.max_drafts());
      expect_counted(loop, requests);
      preemptions += loop.stats().num_preemptions;
      accepted += loop.stats().num_accepted_tokens;
    }
    EXPECT_GT(preemptions, 50) << drafting.name;
    EXPECT_GT(accepted, 400) << drafting.name;
  }
}

// ---- one thing at a time

enum class Who { kDrafter, kCopies, kBoth };
struct Choice {
  Who who = Who::kDrafter;
  int64_t drafts = 7, copies = 15;
  bool adaptive = false;
  bool expensive = false;  // by its cost table: what is drafted costs twenty times a plain step
};

StepLoopConfig config_of(const Choice& choice, const StepLoopConfig& base = {}) {
  StepLoopConfig c = base;
  SpeculativeConfig& s = c.speculation;
  s.method = choice.who == Who::kCopies ? Method::kNgram : Method::kDspark;
  s.copy_drafts = choice.who != Who::kDrafter;
  s.num_speculative_tokens = choice.who == Who::kCopies ? 0 : choice.drafts;
  s.max_copy_tokens = s.copy_drafts ? choice.copies : 0;
  s.prompt_lookup_min = 2, s.prompt_lookup_max = 8;
  s.probabilistic_drafts = true;
  s.adaptive_verification = choice.adaptive;
  c.costs.verify = CostCurve({{1, 100}, {64, choice.expensive ? 6400.0 : 163.0}});
  c.costs.draft = CostCurve({{1, choice.expensive ? 2000.0 : 20.0}});
  c.shape.max_rejected_rows = s.max_drafts();
  if (s.method == Method::kDspark) c.pools.push_back(c.pools[0]);
  return c;
}

Request request_of(std::vector<int32_t> prompt, int64_t max_tokens, double temperature = 0) {
  Request r;
  r.prompt = std::move(prompt);
  r.sampling.max_tokens = max_tokens;
  r.sampling.temperature = temperature;
  r.sampling.seed = 5;
  return r;
}

std::vector<int32_t> ids_up_to(int32_t n) {
  std::vector<int32_t> ids(n);
  std::iota(ids.begin(), ids.end(), 1);
  return ids;
}

StepLoopConfig roomy(int64_t sequences, int64_t rows) {
  StepLoopConfig c;
  c.pools = {40 * sequences, 40 * sequences, sequences};
  c.max_num_batched_tokens = rows;
  return c;
}

TEST(Speculation, ThirtyTwoMixedSequencesHaveTheirSoloAnswers) {
  for (const bool adaptive : {false, true})
    for (const Who who : {Who::kDrafter, Who::kCopies, Who::kBoth}) {
      StepLoopConfig c = config_of({.who = who, .adaptive = adaptive}, roomy(32, 96));
      c.shape.period = 4;
      FakeLoop loop(c);
      Random random(7);
      std::vector<Request> requests;
      for (int i = 0; i < 32; ++i) {
        requests.push_back(random_request(random, {40, 30, FakeNetwork::kVocab, true}));
        requests.back().sampling.n = 1;
        loop.add(requests.back());
      }
      loop.run();
      for (size_t i = 0; i < requests.size(); ++i) ASSERT_EQ(loop.answer(i + 1, 0), loop.solo(requests[i], 0)) << i;
      EXPECT_GT(loop.stats().num_accepted_tokens, 50);
      EXPECT_EQ(loop.stats().num_preemptions, 0);
    }
}

TEST(Speculation, CopiesOfWhatRepeatsAreAccepted) {
  for (const Choice& choice : {Choice{Who::kCopies}, Choice{Who::kBoth}, Choice{.who = Who::kBoth, .adaptive = true}}) {
    StepLoopConfig c = config_of(choice, roomy(1, 32));
    c.shape.period = 5;
    FakeLoop loop(c, {.right = 0, .wrong = 1});
    Request r = request_of({11, 12, 13, 14, 15, 11, 12, 13, 14, 15, 11}, 60);
    r.sampling.ignore_eos = true;
    loop.add(r);
    loop.run();
    EXPECT_EQ(loop.answer(1, 0), loop.solo(r, 0));
    EXPECT_GT(loop.stats().num_accepted_tokens, 25);
    EXPECT_LT(loop.stats().num_steps, 35);  // of 61 without
  }
}

// Seeded under coupling, and greedy: the drafter draws with the target's noise from the target's logits. Unseeded: its
// distribution is the target's.
TEST(Speculation, AllDraftsOfADrafterThatEqualsTheTargetAreAccepted) {
  struct Case {
    double temperature;
    Coupling coupling;
    bool probabilistic;
  };
  for (const Case& test :
       {Case{0, Coupling::kSeeded, true}, Case{0, Coupling::kNever, false}, Case{0.7, Coupling::kSeeded, true},
        Case{1.5, Coupling::kAlways, true}, Case{1, Coupling::kNever, true}})
    for (int64_t depth = 1; depth <= 7; ++depth) {
      StepLoopConfig c = config_of({.drafts = depth}, roomy(4, 64));
      c.speculation.coupling = test.coupling;
      c.speculation.probabilistic_drafts = test.probabilistic;
      FakeLoop loop(c, {.right = 1, .wrong = 0});
      for (int32_t i = 0; i < 4; ++i) {
        Request r = request_of({1 + i, 2, 3}, 1 + 4 * (1 + depth), test.temperature);
        r.sampling.ignore_eos = true;
        loop.add(r);
      }
      loop.run();
      const EngineStats s = loop.stats();
      EXPECT_EQ(s.num_accepted_tokens, s.num_draft_tokens) << test.temperature << ", " << depth;
      EXPECT_EQ(s.num_steps, 5) << test.temperature << ", " << depth;
      EXPECT_EQ(s.accepted_per_position[depth - 1], 16) << test.temperature << ", " << depth;
    }
}

// The first goes through position 40, where the drafter breaks; the second ends before.
TEST(Speculation, ANaNOfTheDrafterEndsDraftingForThatSequenceOnly) {
  const auto run = [](bool first, bool second) {
    FakeLoop loop(config_of({.drafts = 4}, roomy(2, 64)), {.right = 1, .wrong = 0, .nan_every = 40});
    std::vector<Request> requests;
    if (first) requests.push_back(request_of(ids_up_to(32), 60));
    if (second) requests.push_back(request_of({3, 1}, 31));
    for (Request& r : requests) r.sampling.ignore_eos = true, loop.add(r);
    loop.run();
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(loop.answer(i + 1, 0), loop.solo(requests[i], 0));
    return loop.stats();
  };
  const EngineStats broken = run(true, false), healthy = run(false, true), both = run(true, true);
  EXPECT_EQ(broken.num_draft_failures, 1);
  EXPECT_EQ(broken.num_accepted_tokens, 7);  // positions 34 to 40
  EXPECT_EQ(healthy.num_draft_failures, 0);
  EXPECT_EQ(healthy.num_accepted_tokens, 24);  // 31 tokens: the first, then six of 1 + 4
  EXPECT_EQ(both.num_draft_failures, 1);
  EXPECT_EQ(both.num_accepted_tokens, 7 + 24);
}

// All drafts are right, so the block always reaches beyond the end.
TEST(Speculation, AnswersEndWithinABlock) {
  const Request base = [] {
    Request r = request_of({4, 5, 6}, 40, 0.8);
    r.sampling.ignore_eos = true;
    return r;
  }();
  const std::vector<int32_t> tokens = FakeLoop(config_of({}, roomy(1, 64))).solo(base, 0).tokens;
  struct Case {
    std::string name;
    std::function<void(SamplingParams&)> edit;
    int64_t max_model_len = 128;
  };
  std::vector<Case> cases;
  for (int64_t n = 1; n <= 18; ++n) {
    cases.push_back({"max_tokens", [n](SamplingParams& p) { p.max_tokens = n; }});
    cases.push_back({"max_model_len", [](SamplingParams&) {}, 3 + n});
    cases.push_back({"stop", [&, n](SamplingParams& p) { p.stop_token_ids = {tokens[n - 1]}; }});
    cases.push_back({"eos", [&, n](SamplingParams& p) { p.ignore_eos = false, p.eos_token_ids = {tokens[n - 1]}; }});
    cases.push_back({"min_tokens", [&, n](SamplingParams& p) {
                       p.stop_token_ids = {tokens[n - 1], tokens[n]};
                       p.min_tokens = n + 1;
                     }});
    cases.push_back({"bad words", [&, n](SamplingParams& p) { p.bad_words = {{tokens[n - 1], tokens[n]}}; }});
  }
  for (const Case& test : cases) {
    StepLoopConfig c = config_of({}, roomy(1, 64));
    c.max_model_len = test.max_model_len;
    FakeLoop loop(c, {.right = 1, .wrong = 0});
    Request r = base;
    test.edit(r.sampling);
    loop.add(r);
    loop.run();
    ASSERT_EQ(loop.answer(1, 0), loop.solo(r, 0)) << test.name;
    ASSERT_TRUE(loop.pools_full()) << test.name;
    expect_consistent(loop.stats(), 7);
    ASSERT_EQ(loop.stats().num_generation_tokens, static_cast<int64_t>(loop.answer(1, 0).tokens.size())) << test.name;
  }
}

TEST(Speculation, RejectedRowsNeverReachTheDraftContext) {
  for (const Drafting& drafting : kDrafters) {
    int64_t committed = 0;
    FakeDraftShape shape = drafting.shape;
    shape.nan_every = 0, shape.num_committed = &committed;
    FakeLoop loop(config_of({.who = Who::kBoth}, roomy(1, 16)), shape);
    Request r = request_of(ids_up_to(37), 40);
    r.sampling.ignore_eos = true;
    loop.add(r);
    loop.run();
    EXPECT_EQ(committed, 37 + 40 - 1) << drafting.name;  // the last token is never computed
  }
}

TEST(Speculation, BlocksLongerThanTheCountedPositionsAreFine) {
  FakeLoop loop(config_of({.drafts = 24}, roomy(1, 64)), {.block_size = 24, .right = 1, .wrong = 0});
  Request r = request_of({4, 5, 6}, 51);
  r.sampling.ignore_eos = true;
  loop.add(r);
  loop.run();
  EXPECT_EQ(loop.answer(1, 0), loop.solo(r, 0));
  EXPECT_EQ(loop.stats().num_accepted_tokens, 48);
  EXPECT_EQ(loop.stats().accepted_per_position,
            (decltype(EngineStats::accepted_per_position){2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}));
  EXPECT_EQ(loop.stats().num_draft_pauses, 0);  // what stands behind the positions
}

// A draft behind the end of an answer was not judged: of 7 the third ends it.
TEST(Speculation, DraftsBehindTheEndAreNotCounted) {
  FakeLoop loop(config_of({}, roomy(1, 64)), {.right = 1, .wrong = 0});
  Request r = request_of({4, 5, 6}, 40);
  r.sampling.ignore_eos = true;
  r.sampling.stop_token_ids = {loop.solo(r, 0).tokens[3]};
  loop.add(r);
  loop.run();
  ASSERT_EQ(loop.answer(1, 0).tokens.size(), 4u);
  EXPECT_EQ(loop.stats().num_drafts, 1);
  EXPECT_EQ(loop.stats().num_draft_tokens, 3);
  EXPECT_EQ(loop.stats().num_accepted_tokens, 3);
}

TEST(Speculation, ConstraintsHoldWithinABlock) {
  for (const Who who : {Who::kDrafter, Who::kCopies, Who::kBoth})
    for (const int64_t n : {1, 3}) {
      StepLoopConfig c = config_of({.who = who}, roomy(6, 48));
      c.shape.period = 4;
      FakeLoop loop(c, {.right = 3, .wrong = 1});
      std::vector<Request> requests;
      for (int32_t i = 0; i < 8; ++i) {
        Request r = request_of({1 + i, 2, 3, 4, 1 + i, 2, 3, 4, 1 + i}, 30, n > 1 || i % 2 ? 0.9 : 0);
        r.sampling.n = n, r.sampling.seed = i, r.sampling.num_logprobs = 2, r.sampling.processed_logprobs = i % 3 == 0;
        r.make_constraint = [] { return std::make_unique<testing::TakingTurns>(); };
        requests.push_back(r);
        loop.add(r);
      }
      loop.run();
      for (size_t i = 0; i < requests.size(); ++i)
        for (int32_t k = 0; k < n; ++k) {
          const Answer& answer = loop.answer(i + 1, k);
          ASSERT_EQ(answer, loop.solo(requests[i], k)) << i << ", " << k;
          for (size_t t = 1; t < answer.tokens.size(); ++t)
            ASSERT_NE(answer.tokens[t] % 2, answer.tokens[t - 1] % 2) << i << ", " << k;
        }
      EXPECT_GT(loop.stats().num_accepted_tokens, 20);
    }
}

// The draft context is copied with the blocks of the prompt, so the first drafts of each are as good as those of the
// first sequence.
TEST(Speculation, SequencesThatShareAPromptShareItsDraftContext) {
  for (int32_t prompt = 1; prompt <= 9; ++prompt) {
    FakeLoop loop(config_of({.drafts = 4}, roomy(4, 64)), {.right = 1, .wrong = 0});
    Request r = request_of(ids_up_to(prompt), 11, 1);
    r.sampling.n = 4;
    r.sampling.ignore_eos = true;
    loop.add(r);
    loop.run();
    for (int32_t k = 0; k < 4; ++k) ASSERT_EQ(loop.answer(1, k), loop.solo(r, k)) << prompt << ", " << k;
    EXPECT_EQ(loop.stats().num_steps, 3) << prompt;
    EXPECT_EQ(loop.stats().num_accepted_tokens, 4 * 8) << prompt;
  }
}

TEST(Speculation, ACancelledSequenceHasABeginningOfItsAnswerAndTheOthersAllOfTheirs) {
  for (const Who who : {Who::kDrafter, Who::kCopies, Who::kBoth})
    for (int64_t step = 1; step <= 6; ++step)
      for (const int32_t victim : {-1, 0, 1, 2}) {  // -1: the whole request
        StepLoopConfig c = config_of({.who = who, .adaptive = step % 2 == 0}, roomy(5, 12));
        c.shape.period = 3;
        FakeLoop loop(c);
        Request many = request_of({7, 8, 9, 7, 8, 9, 7}, 30, 0.6), other = request_of({5, 6, 5, 6, 5}, 30);
        many.sampling.n = 3;
        loop.add(many);
        loop.add(other);
        for (int64_t i = 0; i < step; ++i) loop.step();
        victim < 0 ? loop.cancel(1) : loop.cancel(1, victim);
        loop.run();
        EXPECT_EQ(loop.answer(2, 0), loop.solo(other, 0));
        for (int32_t k = 0; k < 3; ++k) {
          const Answer whole = loop.solo(many, k);
          const Answer& got = loop.answer(1, k);
          const bool may_stop = (victim < 0 || victim == k) && got.finish == FinishReason::kAbort;
          if (!may_stop) {
            ASSERT_EQ(got, whole) << step << ", " << victim << ", " << k;
          }
          ASSERT_LE(got.tokens.size(), whole.tokens.size());
          ASSERT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(), whole.tokens.begin()));
        }
        ASSERT_TRUE(loop.pools_full()) << step << ", " << victim;
        expect_consistent(loop.stats(), c.speculation.max_drafts());
      }
}

// Blocks for one sequence and a half: somebody is always sent back, often with drafts in hand.
TEST(Speculation, PreemptionStormsChangeNothing) {
  for (const bool adaptive : {false, true}) {
    StepLoopConfig c = config_of({.who = Who::kBoth, .adaptive = adaptive});
    c.shape.block_size = 2, c.shape.period = 3;
    c.max_model_len = 48;
    c.pools = {36, 36, 6, 30};
    c.max_num_batched_tokens = 24;
    FakeLoop loop(c, {.right = 3, .wrong = 1});
    std::vector<Request> requests;
    for (int32_t i = 0; i < 24; ++i) {
      requests.push_back(request_of({1 + i, 2, 3, 1 + i, 2}, 30, i % 2 ? 0.8 : 0));
      requests.back().sampling.ignore_eos = true;
      loop.add(requests.back());
    }
    loop.run();
    for (size_t i = 0; i < requests.size(); ++i) ASSERT_EQ(loop.answer(i + 1, 0), loop.solo(requests[i], 0)) << i;
    EXPECT_GT(loop.stats().num_preemptions, 20);
    EXPECT_GT(loop.stats().num_accepted_tokens, 200);
    EXPECT_TRUE(loop.pools_full());
  }
}

TEST(Speculation, WithARowForEachSequenceNobodyIsDraftedFor) {
  for (const int64_t rows : {1, 2, 5}) {
    StepLoopConfig c = config_of({.who = Who::kBoth}, roomy(rows, rows));
    c.shape.period = 2;
    FakeLoop loop(c);
    std::vector<Request> requests;
    for (int32_t i = 0; i < rows; ++i) requests.push_back(request_of({1 + i, 2, 1 + i, 2}, 12));
    for (Request& r : requests) r.sampling.ignore_eos = true, loop.add(r);
    // Until the last prompt is through, those that decode may use what is left.
    while (loop.answer(rows, 0).tokens.empty()) ASSERT_TRUE(loop.step());
    const int64_t before = loop.stats().num_draft_tokens;
    while (loop.answer(1, 0).tokens.size() < 12) ASSERT_TRUE(loop.step());
    EXPECT_EQ(loop.stats().num_draft_tokens, before) << rows;
    loop.run();
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(loop.answer(i + 1, 0), loop.solo(requests[i], 0));
  }
}

TEST(Speculation, ATableThatMakesDraftsExpensiveStopsThem) {
  for (const Who who : {Who::kDrafter, Who::kCopies, Who::kBoth}) {
    StepLoopConfig c = config_of({.who = who, .adaptive = true, .expensive = true}, roomy(2, 64));
    c.shape.period = 3;
    FakeLoop loop(c, {.right = 0, .wrong = 1});
    const Request r = request_of({4, 5, 6, 4, 5, 6, 4}, 40);
    loop.add(r);
    loop.run();
    EXPECT_EQ(loop.answer(1, 0), loop.solo(r, 0));
    EXPECT_LE(loop.stats().num_draft_tokens, 3);
  }
}

TEST(Speculation, DraftsLeaveRowsToANewPrompt) {
  StepLoopConfig c;
  c.max_num_batched_tokens = 16;  // two sequences with seven drafts each could use all of them
  c.speculation.method = Method::kDspark;
  c.speculation.num_speculative_tokens = 7;
  c.shape.max_rejected_rows = 7;
  c.pools = {64, 64, 4, 64};
  FakeLoop loop(c, {.right = 1, .wrong = 0});
  Request decoding, late;
  decoding.prompt = {1, 2, 3};
  decoding.sampling.max_tokens = 100;
  decoding.sampling.temperature = 0;
  late = decoding;
  late.prompt.assign(30, 4);
  late.sampling.max_tokens = 1;
  for (int i = 0; i < 2; ++i) loop.add(decoding);
  for (int i = 0; i < 2; ++i) loop.step();
  loop.add(late);
  int64_t steps = 0;
  while (loop.answer(3, 0).finish == FinishReason::kNone && steps < 20) ++steps, loop.step();
  EXPECT_LE(steps, 5) << "thirty tokens at seven or more a step";
}

}  // namespace
}  // namespace nib
