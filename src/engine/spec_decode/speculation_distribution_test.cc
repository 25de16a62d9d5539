// Unseeded sampling under speculation, through the whole loop: the first tokens of thousands of answers against their
// exact probabilities.
#include <gtest/gtest.h>

#include "engine/testing/distribution.h"
#include "engine/testing/step_loop.h"

namespace nib {
namespace {

using testing::chi_square;
using testing::ChiSquare;
using testing::distribution_of;
using testing::FakeDraftShape;
using testing::FakeLoop;
using testing::FakeNetwork;
using testing::FakeShape;
using testing::Setting;
using testing::StepLoopConfig;
using Method = SpeculativeConfig::Method;
using Coupling = SpeculativeConfig::Coupling;

const std::vector<int32_t> kAllowed = {4, 17, 30, 33};
const std::vector<int32_t> kImpossible4 = {5, 18, 31, 34};
const std::vector<int32_t> kPrompt = {4, 33, 17, 4, 33, 17, 4, 33};
constexpr int64_t kCounted = 4, kCells = 256;  // tokens of an answer; 4 ids to the fourth

// By definition, of each sequence of kCounted tokens.
std::vector<double> exact_probabilities(const FakeNetwork& network, const SamplingParams& p) {
  std::vector<double> out(kCells);
  for (int64_t cell = 0; cell < kCells; ++cell) {
    std::vector<int32_t> tokens = kPrompt;
    double probability = 1;
    for (int64_t i = 0, rest = cell; i < kCounted; ++i, rest /= 4) {
      std::vector<float> masked(FakeNetwork::kVocab, kMasked);
      const std::vector<float> logits = network.reference_logits(tokens);
      for (int32_t id : kAllowed) masked[id] = logits[id];
      tokens.push_back(kAllowed[rest % 4]);
      probability *= distribution_of(masked, p)[tokens.back()];
    }
    out[cell] = probability;
  }
  return out;
}

int64_t cell_of(std::span<const int32_t> tokens) {
  int64_t cell = 0;
  for (int64_t i = kCounted - 1; i >= 0; --i)
    cell = cell * 4 + (std::ranges::find(kAllowed, tokens[i]) - kAllowed.begin());
  return cell;
}

struct Case {
  std::string name;
  FakeDraftShape drafter = {.right = 3, .wrong = 1, .ids = kAllowed};
  bool probabilistic = true, copies = false, adaptive = false, seeded_but_never_coupled = false;
  int64_t rows = 160;         // of a step; 32 sequences share them
  bool accepts_all = false;   // nothing is cut off, and the drafter is the target
  bool accepts_none = false;  // what it proposes cannot come
};

const std::vector<Case> kCases = {
    {.name = "good"},
    {.name = "good, with seeds", .seeded_but_never_coupled = true},
    {.name = "good, greedy drafts", .probabilistic = false},
    {.name = "bad", .drafter = {.right = 0, .wrong = 1, .ids = kAllowed}},
    {.name = "over all ids", .drafter = {.right = 1, .wrong = 0}},
    {.name = "adversarial", .drafter = {.right = 1, .wrong = 1, .ids = kImpossible4}, .accepts_none = true},
    {.name = "equal", .drafter = {.right = 1, .wrong = 0, .ids = kAllowed}, .accepts_all = true},
    {.name = "scheduled", .adaptive = true, .rows = 48},
    {.name = "scheduled by confidence",
     .drafter = {.right = 1, .wrong = 1, .confidence = true, .ids = kAllowed},
     .adaptive = true,
     .rows = 48},
    {.name = "with copies", .copies = true, .adaptive = true, .rows = 80},
};

const std::vector<Setting> kVariants = {
    {"plain", 1.5, 1, 0, 0}, {"top_k", 2, 1, 0, 3}, {"top_p", 1.5, 0.8, 0, 0}, {"min_p", 1.5, 1, 0.2, 0}};

StepLoopConfig config_of(const Case& test) {
  StepLoopConfig c;
  c.pools = {200, 200, 32, 200};
  c.max_num_batched_tokens = test.rows;
  c.shape.period = 3;
  SpeculativeConfig& s = c.speculation;
  s.method = Method::kDspark;
  s.num_speculative_tokens = 4;
  s.probabilistic_drafts = test.probabilistic;
  s.coupling = test.seeded_but_never_coupled ? Coupling::kNever : Coupling::kSeeded;
  s.copy_drafts = test.copies;
  s.max_copy_tokens = test.copies ? 5 : 0;
  s.prompt_lookup_min = 1, s.prompt_lookup_max = 4;
  s.adaptive_verification = test.adaptive;
  c.costs.verify = CostCurve({{1, 100}, {200, 300}});
  c.costs.draft = CostCurve({{1, 10}});
  c.shape.max_rejected_rows = s.max_drafts();
  return c;
}

TEST(SpeculationDistribution, UnseededAnswersHaveTheProbabilitiesOfTheTarget) {
  constexpr int64_t kAnswers = 2000;
  uint64_t seed = 0;
  for (size_t i = 0; i < kCases.size(); ++i)
    for (const size_t v : {size_t{0}, 1 + i % 3}) {
      const Case& test = kCases[i];
      const Setting& variant = kVariants[v];
      SCOPED_TRACE(test.name + ", " + variant.name);
      Request r;
      r.prompt = kPrompt;
      r.sampling = params_of(variant);
      r.sampling.allowed_token_ids = kAllowed;
      r.sampling.max_tokens = 6;
      const StepLoopConfig c = config_of(test);
      FakeLoop loop(c, test.drafter);
      for (int64_t n = 0; n < kAnswers; ++n) {
        const uint64_t s = mix64(++seed);
        if (test.seeded_but_never_coupled) r.sampling.seed = static_cast<int64_t>(s >> 1);
        test.seeded_but_never_coupled ? loop.add(r) : loop.add(r, s);
      }
      loop.run();
      std::vector<int64_t> seen(kCells, 0);
      for (int64_t n = 1; n <= kAnswers; ++n) ++seen.at(cell_of(loop.answer(n, 0).tokens));
      const ChiSquare fit = chi_square(exact_probabilities(FakeNetwork(c.shape), r.sampling), seen);
      EXPECT_LT(fit.value, fit.limit);
      const EngineStats stats = loop.stats();
      EXPECT_GT(stats.num_draft_tokens, kAnswers);
      const bool accepts_all = test.accepts_all && variant.name == "plain";
      EXPECT_GE(stats.num_accepted_tokens, accepts_all ? stats.num_draft_tokens : test.accepts_none ? 0 : kAnswers / 8);
      EXPECT_LE(stats.num_accepted_tokens, test.accepts_none ? 0 : stats.num_draft_tokens);
    }
}

}  // namespace
}  // namespace nib
