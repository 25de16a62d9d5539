#include "engine/spec_decode/verification_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <random>

#include "engine/noise.h"

namespace nib {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Survivals = std::vector<std::vector<double>>;
using Lengths = std::vector<int64_t>;

CostTable costs(std::vector<CostCurve::Point> draft, std::vector<CostCurve::Point> verify) {
  return {CostCurve(std::move(draft)), CostCurve(std::move(verify))};
}

// ---- budget

TEST(ChooseBudgetTest, DraftsAsMuchAsPays) {
  const BudgetRequest one = {.num_rows = 1,
                             .num_sampling = 1,
                             .num_drafter_sequences = 1,
                             .drafter_survivals = {0.8, 0.6, 0.2},
                             .max_drafts = 99};
  struct Case {
    const char* what;
    CostTable table;
    bool run_drafter;
    int64_t num_drafts;
  };
  const Case kCases[] = {
      {"rows are free", costs({{1, 0}}, {{1, 100}}), true, 3},
      {"a row costs a tenth of a step", costs({{1, 0}}, {{1, 100}, {2, 110}}), true, 2},  // 2.4 / 120, then 2.6 / 130
      {"a row costs a whole step", costs({{1, 0}}, {{1, 100}, {2, 200}}), false, 0},
      {"the drafter is too dear", costs({{1, 170}}, {{1, 100}}), false, 0},  // 2.6 / 270 < 1 / 100
      {"the drafter just pays", costs({{1, 150}}, {{1, 100}}), true, 3},     // 2.6 / 250 > 1 / 100
      {"nothing is known yet", costs({}, {}), true, 3},
  };
  for (const Case& k : kCases) {
    const VerificationBudget b = choose_budget(one, k.table);
    EXPECT_EQ(b.run_drafter, k.run_drafter) << k.what;
    EXPECT_EQ(b.num_drafts, k.num_drafts) << k.what;
  }
}

TEST(ChooseBudgetTest, CopiesDoNotPayForADrafterThatIsNotRun) {
  BudgetRequest r = {.num_rows = 2,
                     .num_sampling = 2,
                     .num_drafter_sequences = 1,
                     .drafter_survivals = {0.3},
                     .copy_survivals = {0.9, 0.8},
                     .max_drafts = 99};
  const CostTable table = costs({{1, 50}}, {{2, 100}});
  VerificationBudget b = choose_budget(r, table);
  EXPECT_FALSE(b.run_drafter);  // 3.7 / 100 > 4.0 / 150
  EXPECT_EQ(b.num_drafts, 2);
  r.drafter_survivals = std::vector<double>(7, 0.9);
  b = choose_budget(r, table);
  EXPECT_TRUE(b.run_drafter);  // 10 / 150
  EXPECT_EQ(b.num_drafts, 9);
}

TEST(ChooseBudgetTest, NoSequenceForTheDrafterAndNoCopiesMeansNoDrafts) {
  const VerificationBudget b =
      choose_budget({.num_rows = 600, .num_sampling = 1, .max_drafts = 99}, costs({{1, 5}}, {{1, 100}}));
  EXPECT_FALSE(b.run_drafter);
  EXPECT_EQ(b.num_drafts, 0);
}

TEST(ChooseBudgetTest, IsTheBestOfAllBudgetsAndKeepsTheLimit) {
  std::mt19937 rng(1);
  const auto uniform = [&] { return static_cast<double>(rng() % 1000) / 1000; };
  int num_none = 0, num_capped = 0, num_inner = 0;
  for (int round = 0; round < 500; ++round) {
    BudgetRequest r = {.num_rows = 1 + static_cast<int64_t>(rng() % 8), .num_drafter_sequences = 2};
    r.num_sampling = 1 + static_cast<int64_t>(rng() % r.num_rows);
    for (int i = 0; i < 6; ++i) r.drafter_survivals.push_back(uniform());
    for (int i = 0; i < 3; ++i) r.copy_survivals.push_back(uniform());
    r.max_drafts = static_cast<int64_t>(rng() % 12);
    std::vector<CostCurve::Point> verify;
    double ns = 100;
    for (int64_t size = 1; size <= 20; ++size) verify.push_back({size, ns += 40 * uniform()});
    const CostTable table = costs({{1, 10 * uniform()}, {2, 60 * uniform()}}, verify);

    std::vector<double> sorted = r.drafter_survivals;
    sorted.insert(sorted.end(), r.copy_survivals.begin(), r.copy_survivals.end());
    std::ranges::sort(sorted, std::greater());
    std::vector<double> copies = r.copy_survivals;
    std::ranges::sort(copies, std::greater());
    const auto rate = [&](bool run, int64_t n) {
      const auto& s = run ? sorted : copies;
      return std::accumulate(s.begin(), s.begin() + n, static_cast<double>(r.num_sampling)) /
             ((run ? table.draft.at(2) : 0) + table.verify.at(r.num_rows + n));
    };
    const VerificationBudget got = choose_budget(r, table);
    ASSERT_LE(got.num_drafts, r.max_drafts);
    const double best = rate(got.run_drafter, got.num_drafts);
    for (int64_t n = 0; n <= std::min<int64_t>(r.max_drafts, 9); ++n) {
      ASSERT_GE(best, rate(true, n) * (1 - 1e-12));
      ASSERT_GE(best, rate(false, std::min<int64_t>(n, 3)) * (1 - 1e-12));
    }
    num_none += got.num_drafts == 0;
    num_capped += got.num_drafts > 0 && got.num_drafts == r.max_drafts;
    num_inner += got.num_drafts > 0 && got.num_drafts < std::min<int64_t>(r.max_drafts, 9);
  }
  EXPECT_GT(num_none, 20);
  EXPECT_GT(num_capped, 20);
  EXPECT_GT(num_inner, 20);
}

// ---- allocation

TEST(AllocateDraftsTest, TakesTheHighestSurvivals) {
  struct Case {
    Survivals survivals;
    int64_t budget;
    Lengths want;
  };
  const Case kCases[] = {
      {{}, 5, {}},
      {{{0.9, 0.5}, {0.8, 0.7, 0.1}}, 0, {0, 0}},
      {{{0.9, 0.5}, {0.8, 0.7, 0.1}}, 1, {1, 0}},
      {{{0.9, 0.5}, {0.8, 0.7, 0.1}}, 3, {1, 2}},
      {{{0.9, 0.5}, {0.8, 0.7, 0.1}}, 4, {2, 2}},
      {{{0.9, 0.5}, {0.8, 0.7, 0.1}}, 99, {2, 3}},
      {{{}, {0.2}, {}}, 2, {0, 1, 0}},        // no drafts is nothing special
      {{{0.5, 0.5}, {0.5, 0.5}}, 3, {2, 1}},  // ties: the earlier sequence, then the earlier draft
      {{{0, 0}, {0.1, 0}}, 2, {1, 1}},
  };
  for (const Case& k : kCases)
    EXPECT_EQ(allocate_drafts(k.survivals, k.budget), k.want) << ::testing::PrintToString(k.survivals) << k.budget;
}

Survivals random_survivals(std::mt19937& rng, size_t num_sequences, size_t most) {
  Survivals out(num_sequences);
  for (auto& s : out) {
    double survives = 1;
    for (size_t i = rng() % (most + 1); i > 0; --i)
      s.push_back(survives *= static_cast<double>(rng() % 1'000'003) / 1'000'003);
  }
  return out;
}

double expected_tokens(const Survivals& s, const Lengths& lengths) {
  double sum = 0;
  for (size_t r = 0; r < s.size(); ++r) sum += std::accumulate(s[r].begin(), s[r].begin() + lengths[r], 0.0);
  return sum;
}

// The most expected tokens of all ways to give away at most `budget` drafts.
double best_expected_tokens(const Survivals& s, int64_t budget, size_t from = 0) {
  if (from == s.size()) return 0;
  double best = 0, sum = 0;
  for (int64_t n = 0; n <= std::min(budget, static_cast<int64_t>(s[from].size())); ++n) {
    if (n > 0) sum += s[from][n - 1];
    best = std::max(best, sum + best_expected_tokens(s, budget - n, from + 1));
  }
  return best;
}

TEST(AllocateDraftsTest, UsesTheBudgetUpAndGivesTheMostExpectedTokens) {
  std::mt19937 rng(2);
  for (int round = 0; round < 300; ++round) {
    const Survivals s = random_survivals(rng, 4, 4);
    size_t num_drafts = 0;
    for (const auto& one : s) num_drafts += one.size();
    for (int64_t budget = 0; budget <= 17; ++budget) {
      const Lengths lengths = allocate_drafts(s, budget);
      ASSERT_EQ(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}), std::min<int64_t>(budget, num_drafts));
      for (size_t r = 0; r < s.size(); ++r) ASSERT_LE(lengths[r], static_cast<int64_t>(s[r].size()));
      ASSERT_NEAR(expected_tokens(s, lengths), best_expected_tokens(s, budget), 1e-12);
    }
  }
}

TEST(AllocateDraftsTest, TheOrderOfSequencesDoesNotMatter) {
  std::mt19937 rng(3);
  for (int round = 0; round < 200; ++round) {
    const Survivals s = random_survivals(rng, 6, 5);
    std::vector<size_t> order(s.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, rng);
    Survivals shuffled;
    for (size_t r : order) shuffled.push_back(s[r]);
    const int64_t budget = rng() % 20;
    const Lengths straight = allocate_drafts(s, budget), other = allocate_drafts(shuffled, budget);
    for (size_t i = 0; i < order.size(); ++i) ASSERT_EQ(other[i], straight[order[i]]);
  }
}

// Later survivals may depend on draft k, so they must not decide about it.
TEST(AllocateDraftsTest, WhatComesAfterADraftDoesNotDecideAboutIt) {
  std::mt19937 rng(4);
  int num_admitted = 0, num_refused = 0;
  for (int round = 0; round < 2000; ++round) {
    Survivals s = random_survivals(rng, 3, 5);
    const size_t r = rng() % s.size();
    if (s[r].empty()) continue;
    const size_t k = rng() % s[r].size();
    const int64_t budget = rng() % 12;
    const bool admitted = allocate_drafts(s, budget)[r] > static_cast<int64_t>(k);
    for (double scale : {1.0, 0.5, 0.0}) {  // 1: equal to draft k, the highest there can be
      s[r].resize(k + 1);
      while (s[r].size() < 5) s[r].push_back(s[r].back() * scale);
      ASSERT_EQ(allocate_drafts(s, budget)[r] > static_cast<int64_t>(k), admitted);
    }
    ++(admitted ? num_admitted : num_refused);
  }
  EXPECT_GT(num_admitted, 200);
  EXPECT_GT(num_refused, 200);
}

TEST(FixedDraftsTest, EverySequenceGetsItsLengthAndFirstDraftsComeFirst) {
  struct Case {
    Lengths limits;
    int64_t num_drafts, budget;
    Lengths want;
  };
  const Case kCases[] = {
      {{}, 7, 99, {}},
      {{99, 3, 0}, 7, 99, {7, 3, 0}},
      {{99, 99}, 0, 99, {0, 0}},
      {{99, 99, 99}, 7, 8, {3, 3, 2}},  // rows are short
      {{99, 1, 99}, 7, 8, {4, 1, 3}},
      {{99, 99}, 7, 0, {0, 0}},
  };
  for (const Case& k : kCases)
    EXPECT_EQ(fixed_drafts(k.limits, k.num_drafts, k.budget), k.want) << ::testing::PrintToString(k.limits) << k.budget;
}

TEST(SurvivalFromConfidenceTest, IsTheProductOfSigmoids) {
  const std::vector<float> logits = {0, 0, 100, -1};
  EXPECT_THAT(survival_from_confidence(logits),
              ElementsAre(0.5, 0.25, 0.25, DoubleNear(0.25 / (1 + std::exp(1)), 1e-12)));
  EXPECT_THAT(survival_from_confidence({}), IsEmpty());
  const std::vector<float> broken = {0, NAN, 5};
  EXPECT_THAT(survival_from_confidence(broken), ElementsAre(0.5, 0, 0));
}

// ---- the law of the output, by enumeration of a toy model

constexpr int kVocab = 3, kBlock = 3, kNumBlocks = 27, kNumTexts = 81;
using Text = std::vector<int>;
using Law = std::vector<double>;  // of the first kBlock + 1 tokens, by text_index

int text_index(const Text& text) {
  return std::accumulate(text.begin(), text.end(), 0, [](int i, int t) { return i * kVocab + t; });
}

Text block_of(int index) { return {index / 9, index / 3 % 3, index % 3}; }

// A distribution that depends on everything before, by a hash of it.
std::vector<double> toy_distribution(uint32_t model, const Text& before) {
  uint64_t hash = mix64(model);
  for (int t : before) hash = mix64(hash + static_cast<uint64_t>(t));
  std::vector<double> p;
  for (uint64_t v = 0; v < kVocab; ++v) p.push_back(0.05 + static_cast<double>(mix64(hash ^ v) % 1000) / 1000);
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

Text with(Text text, int token) {
  text.push_back(token);
  return text;
}

constexpr uint32_t kTarget = 11;

// Continues with the target alone.
void add_plain(Law& law, const Text& text, double probability) {
  if (text.size() == kBlock + 1) {
    law[text_index(text)] += probability;
    return;
  }
  const std::vector<double> p = toy_distribution(kTarget, text);
  for (int v = 0; v < kVocab; ++v) add_plain(law, with(text, v), probability * p[v]);
}

// What is emitted when the first `length` drafts are verified by rejection sampling and the target goes on alone.
Law verified_law(uint32_t drafter, const Text& drafts, int64_t length) {
  Law law(kNumTexts, 0);
  Text text;
  double probability = 1;
  for (int64_t k = 0; k < length; ++k) {
    const std::vector<double> p = toy_distribution(kTarget, text), q = toy_distribution(drafter, text);
    std::vector<double> residual;
    for (int v = 0; v < kVocab; ++v) residual.push_back(std::max(p[v] - q[v], 0.0));
    const double mass = std::accumulate(residual.begin(), residual.end(), 0.0);
    const double accept = std::min(1.0, p[drafts[k]] / q[drafts[k]]);
    for (int v = 0; v < kVocab; ++v) add_plain(law, with(text, v), probability * (1 - accept) * residual[v] / mass);
    text.push_back(drafts[k]);
    probability *= accept;
  }
  add_plain(law, text, probability);
  return law;
}

// One of two sequences: for each block that its drafter may draw, the probability, the survivals and the laws by
// length.
struct ToySequence {
  explicit ToySequence(uint32_t drafter, bool looks_at_its_own_token) {
    for (int b = 0; b < kNumBlocks; ++b) {
      const Text drafts = block_of(b);
      double drawn = 1, survives = 1;
      std::vector<double> survival;
      for (int k = 0; k < kBlock; ++k) {
        const Text before(drafts.begin(), drafts.begin() + k);
        drawn *= toy_distribution(drafter, before)[drafts[k]];
        const Text seen = looks_at_its_own_token ? with(before, drafts[k]) : before;
        survival.push_back(survives *= toy_distribution(drafter + 100, seen)[0]);  // any function of what is seen
      }
      probability.push_back(drawn);
      survivals.push_back(survival);
      for (int length = 0; length <= kBlock; ++length) laws[length].push_back(verified_law(drafter, drafts, length));
    }
  }
  std::vector<double> probability;
  Survivals survivals;
  std::array<std::vector<Law>, kBlock + 1> laws;
};

// Two sequences share a budget; the largest error of their joint law.
double largest_error(int64_t budget, bool looks_at_its_own_token) {
  const ToySequence a(21, looks_at_its_own_token), b(22, looks_at_its_own_token);
  std::vector<double> joint(kNumTexts * kNumTexts, 0);
  for (int x = 0; x < kNumBlocks; ++x)
    for (int y = 0; y < kNumBlocks; ++y) {
      const Survivals survivals = {a.survivals[x], b.survivals[y]};
      const Lengths lengths = allocate_drafts(survivals, budget);
      const Law &la = a.laws[lengths[0]][x], &lb = b.laws[lengths[1]][y];
      for (int i = 0; i < kNumTexts * kNumTexts; ++i)
        joint[i] += a.probability[x] * b.probability[y] * la[i / kNumTexts] * lb[i % kNumTexts];
    }
  Law plain(kNumTexts, 0);
  add_plain(plain, {}, 1);
  double worst = 0;
  for (int i = 0; i < kNumTexts * kNumTexts; ++i)
    worst = std::max(worst, std::abs(joint[i] - plain[i / kNumTexts] * plain[i % kNumTexts]));
  return worst;
}

TEST(AllocateDraftsTest, TheLawOfTheOutputIsThatOfTheTarget) {
  for (int64_t budget = 0; budget <= 2 * kBlock; ++budget) EXPECT_LT(largest_error(budget, false), 1e-12) << budget;
}

// So the test above can fail.
TEST(AllocateDraftsTest, ALengthThatLooksAtTheTokenItAdmitsBreaksTheLaw) { EXPECT_GT(largest_error(2, true), 1e-4); }

}  // namespace
}  // namespace nib
