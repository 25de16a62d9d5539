#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "engine/noise.h"
#include "engine/spec_decode/draft_sampler.h"
#include "engine/testing/distribution.h"
#include "engine/token_constraint.h"

namespace nib {
namespace {

using namespace testing;
using ::testing::HasSubstr;

class Draws {
 public:
  explicit Draws(std::vector<float> logits) : logits_(std::move(logits)), pool_(1), sampler_(vocab(), pool_) {}

  int64_t vocab() const { return static_cast<int64_t>(logits_.size()); }

  Sample one(const SamplingParams& p, uint64_t seed = 1, int64_t position = 0, const std::vector<int32_t>& prompt = {},
             const std::vector<int32_t>& output = {}) {
    SamplingState state(p, seed, prompt);
    for (int32_t t : output) state.append(t);
    return one(SampleRow{0, position, &state, output});
  }

  Sample one(const SampleRow& row) {
    std::vector<Sample> out;
    sampler_.prepare({&row, 1});
    sampler_.sample(View<const float, 2>(logits_.data(), {1, vocab()}), out);
    return out[0];
  }

  // How often each id comes in `count` positions.
  std::vector<int64_t> histogram(const SamplingParams& p, int64_t count) {
    std::vector<int64_t> seen(vocab(), 0);
    for (int64_t i = 0; i < count; ++i) ++seen.at(one(p, 7, i).token);
    return seen;
  }

 private:
  std::vector<float> logits_;
  ThreadPool pool_;
  Sampler sampler_;
};

TEST(Sampler, DrawsTheDistributionOfItsDefinition) {
  const std::vector<float> logits = random_logits(24, 5, 1.5);
  constexpr int64_t kDraws = 40000;
  for (const Setting& s : kSettings) {
    const ChiSquare fit =
        chi_square(distribution_of(logits, params_of(s)), Draws(logits).histogram(params_of(s), kDraws));
    EXPECT_LT(fit.value, fit.limit) << s.name;
  }
}

// The bound that skips ids, the candidate lists and the pieces of the sort may not change the winner.
TEST(Sampler, EqualsTheSlowArgmaxOfNoisyLogits) {
  for (const int64_t vocab : {1, 2, 61, 5000}) {
    for (uint64_t trial = 0; trial < (vocab > 100 ? 20u : 200u); ++trial) {
      const std::vector<float> logits = random_logits(vocab, trial);
      Draws draws(logits);
      for (const Setting& s : kSettings) {
        const std::vector<double> allowed = distribution_of(logits, params_of(s));
        const Noise noise(trial, 11);
        int32_t best = -1;
        double best_score = 0;
        for (int32_t id = 0; id < vocab; ++id) {
          if (allowed[id] < 1e-9) continue;
          const double score =
              static_cast<float>(1 / s.temperature) * static_cast<double>(logits[id]) + noise.gumbel(id);
          if (best < 0 || score > best_score) best = id, best_score = score;
        }
        EXPECT_EQ(draws.one(params_of(s), trial, 11).token, best) << s.name << " vocab " << vocab << " trial " << trial;
      }
    }
  }
}

TEST(Noise, TheBoundHoldsAndIsMostlyClose) {
  int64_t close = 0;
  for (int64_t position = 0; position < 100; ++position) {
    const Noise noise(3, position);
    for (int32_t id = 0; id < 1000; ++id) {
      ASSERT_LE(noise.gumbel(id), noise.gumbel_bound(id));
      ASSERT_LE(noise.gumbel(id), Noise::kMax);
      close += noise.gumbel_bound(id) - noise.gumbel(id) < 1.5;
    }
  }
  EXPECT_GT(close, 80000);
}

TEST(Noise, OfTheTargetStaysWhatItWas) {
  EXPECT_DOUBLE_EQ(Noise(1, 2).gumbel(3), 0.11592983479109675);
  EXPECT_DOUBLE_EQ(Noise(77, 1000000).gumbel(200000), -0.50129211530935569);
}

TEST(Noise, StreamsPositionsAndBlocksDiffer) {
  using enum NoiseStream;
  const std::vector<Noise> noises = {
      Noise(1, 5),           Noise(1, 6),           Noise(1, 5, kDraft),   Noise(1, 5, kAccept), Noise(1, 5, kResample),
      Noise::draft(1, 4, 5), Noise::draft(1, 3, 5), Noise::draft(1, 4, 6), Noise::draft(2, 4, 5)};
  for (size_t a = 0; a < noises.size(); ++a) {
    for (size_t b = 0; b < a; ++b) EXPECT_NE(noises[a].uniform(), noises[b].uniform()) << a << " " << b;
  }
}

TEST(Noise, UniformsHaveTheirMeanAndVariance) {
  double sum = 0, squares = 0;
  constexpr int64_t kCount = 100000;
  for (int64_t i = 0; i < kCount; ++i) {
    const double u = Noise(5, i, NoiseStream::kAccept).uniform();
    ASSERT_TRUE(0 < u && u <= 1) << u;
    sum += u, squares += u * u;
  }
  EXPECT_NEAR(sum / kCount, 1.0 / 2, 0.004);
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 0.004);
}

TEST(Noise, DependsOnSeedPositionAndId) {
  EXPECT_EQ(Noise(1, 2).gumbel(3), Noise(1, 2).gumbel(3));
  EXPECT_NE(Noise(1, 2).gumbel(3), Noise(2, 1).gumbel(3));
  EXPECT_NE(Noise(1, 2).gumbel(3), Noise(1, 3).gumbel(2));
  EXPECT_NE(Noise(1, 2).gumbel(3), Noise(1, 2).gumbel(4));
}

// A place found by search where the noise lifts one id over another by more than ln 1e9 = 20.72.
TEST(Sampler, NeverReturnsATokenRarerThanOneInABillion) {
  constexpr uint64_t kSeed = 9;
  constexpr int64_t kPosition = 98841596;
  constexpr int32_t kRare = 28856;
  const Noise noise(kSeed, kPosition);
  ASSERT_GT(noise.gumbel(kRare) - noise.gumbel(0), 21);
  struct Case {
    float rare_logit;
    int32_t token;
  };
  for (const Case& c : {Case{-20.9f, 0}, Case{-20.5f, kRare}}) {  // probabilities 8.4e-10 and 1.25e-9
    for (const int64_t top_k : {0, 100}) {
      std::vector<float> logits(kRare + 1, -200.0f);
      logits[0] = 0;
      logits[kRare] = c.rare_logit;
      SamplingParams p;
      p.top_k = top_k;
      EXPECT_EQ(Draws(logits).one(p, kSeed, kPosition).token, c.token) << c.rare_logit << " top_k " << top_k;
    }
  }
}

TEST(Sampler, TheRuleLooksAtTheDistributionThatIsLeft) {
  std::vector<float> logits(10, -40.0f);
  logits[3] = 10;
  SamplingParams p;
  p.allowed_token_ids = {7, 8};
  std::map<int32_t, int> seen;
  Draws draws(logits);
  for (int64_t i = 0; i < 200; ++i) ++seen[draws.one(p, 1, i).token];
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_GT(seen[7], 50);
  EXPECT_GT(seen[8], 50);
}

TEST(Sampler, GreedyTakesTheLowestIdAmongEquals) {
  SamplingParams p;
  p.temperature = 0;
  EXPECT_EQ(Draws({1, 3, 2, 3}).one(p).token, 1);
  p.temperature = 1, p.top_k = 1;
  EXPECT_EQ(Draws({1, 3, 2, 3}).one(p).token, 1);
}

TEST(Sampler, TinyTemperaturesAreClamped) {
  SamplingParams tiny, clamped;
  tiny.temperature = 1e-300, clamped.temperature = 0.01;
  Draws draws(random_logits(100, 3, 0.01));
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(draws.one(tiny, 1, i).token, draws.one(clamped, 1, i).token);
}

TEST(Sampler, EditsOfTheLogitsDecideTheGreedyToken) {
  struct Case {
    std::string name;
    std::function<void(SamplingParams&)> set;
    std::vector<int32_t> prompt, output;
    int32_t token;
  };
  // Logits: id 0: 4, 1: 3, 2: 2, 3: -1, 4: -3.
  const std::vector<Case> cases = {
      {"none", [](auto&) {}, {}, {}, 0},
      {"bias up",
       [](auto& p) {
         p.logit_bias = {{3, 5.5f}};
       },
       {},
       {},
       3},
      {"bias down",
       [](auto& p) {
         p.logit_bias = {{0, -2.0f}};
       },
       {},
       {},
       1},
      {"bias is clamped at 100",
       [](auto& p) {
         p.logit_bias = {{4, 1e9f}, {3, 100.0f}};
       },
       {},
       {},
       3},
      {"allowed ids",
       [](auto& p) {
         p.allowed_token_ids = {4, 2, 3};
       },
       {},
       {},
       2},
      {"repetition over the prompt", [](auto& p) { p.repetition_penalty = 2; }, {0}, {}, 1},
      {"repetition over the output", [](auto& p) { p.repetition_penalty = 2; }, {0}, {1}, 0},
      {"repetition multiplies negative logits",
       [](auto& p) {
         p.repetition_penalty = 4, p.allowed_token_ids = {3, 4};
       },
       {3},
       {},
       4},
      {"presence ignores the prompt", [](auto& p) { p.presence_penalty = 1.5; }, {0}, {}, 0},
      {"presence over the output", [](auto& p) { p.presence_penalty = 1.5; }, {}, {0, 0, 0}, 1},
      {"frequency counts", [](auto& p) { p.frequency_penalty = 0.6; }, {}, {0, 0}, 1},
      {"frequency once is not enough", [](auto& p) { p.frequency_penalty = 0.6; }, {}, {0}, 0},
      {"negative presence", [](auto& p) { p.presence_penalty = -2; }, {}, {1}, 1},
      {"bad word of one token", [](auto& p) { p.bad_words = {{0}}; }, {}, {}, 1},
      {"bad word about to be completed",
       [](auto& p) {
         p.bad_words = {{2, 1, 0}};
       },
       {},
       {4, 2, 1},
       1},
      {"bad word not begun",
       [](auto& p) {
         p.bad_words = {{2, 1, 0}};
       },
       {},
       {2, 4},
       0},
      {"bad word begun in the prompt does not count",
       [](auto& p) {
         p.bad_words = {{2, 0}};
       },
       {2},
       {},
       0},
      {"min_tokens masks eos and stop ids",
       [](auto& p) { p.min_tokens = 2, p.eos_token_ids = {0}, p.stop_token_ids = {1}; },
       {},
       {4},
       2},
      {"min_tokens reached", [](auto& p) { p.min_tokens = 2, p.eos_token_ids = {0}; }, {}, {4, 4}, 0},
      {"ignored eos is not masked",
       [](auto& p) { p.min_tokens = 2, p.eos_token_ids = {0}, p.ignore_eos = true; },
       {},
       {},
       0},
  };
  for (const Case& c : cases) {
    SamplingParams p;
    p.temperature = 0;
    c.set(p);
    EXPECT_EQ(Draws({4, 3, 2, -1, -3}).one(p, 1, 0, c.prompt, c.output).token, c.token) << c.name;
  }
}

TEST(Sampler, LogprobsAreTheLogSoftmaxWithRanks) {
  const std::vector<float> logits = {1, 3, 2, 3, -5};
  double sum = 0;
  for (float f : logits) sum += std::exp(static_cast<double>(f));
  SamplingParams p;
  p.allowed_token_ids = {2};
  p.num_logprobs = 3;
  p.logprob_token_ids = {4, 0};
  const Sample s = Draws(logits).one(p);
  ASSERT_TRUE(s.logprobs.has_value());
  EXPECT_EQ(s.logprobs->chosen.id, 2);
  EXPECT_EQ(s.logprobs->chosen.rank, 3);
  const std::vector<std::pair<int32_t, int32_t>> id_rank = {{1, 1}, {3, 2}, {2, 3}, {4, 5}, {0, 4}};
  ASSERT_EQ(s.logprobs->top.size(), id_rank.size());
  for (size_t i = 0; i < id_rank.size(); ++i) {
    EXPECT_EQ(s.logprobs->top[i].id, id_rank[i].first);
    EXPECT_EQ(s.logprobs->top[i].rank, id_rank[i].second);
    EXPECT_NEAR(s.logprobs->top[i].logprob, logits[id_rank[i].first] - std::log(sum), 1e-6);
  }
}

TEST(Sampler, ProcessedLogprobsAreOfTheDistributionThatWasDrawnFrom) {
  const std::vector<float> logits = random_logits(40, 8, 1);
  for (const Setting& s : kSettings) {
    SamplingParams p = params_of(s);
    p.processed_logprobs = true;
    p.num_logprobs = 40;
    const std::vector<double> expected = distribution_of(logits, p);
    const Sample sample = Draws(logits).one(p, 4, 4);
    for (const TokenLogprob& t : sample.logprobs->top)
      EXPECT_NEAR(std::exp(static_cast<double>(t.logprob)), expected[t.id], 1e-6) << s.name << " id " << t.id;
  }
}

TEST(Sampler, ARowThatIsNotFiniteIsAnError) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const double temperature : {0.0, 1.0}) {
      SamplingParams p;
      p.temperature = temperature;
      const Sample s = Draws({1, 2, bad, 3}).one(p, 1, 17);
      EXPECT_EQ(s.token, -1);
      EXPECT_THAT(s.error, HasSubstr("position 17"));
    }
  }
}

TEST(Sampler, ARowStandsAlone) {
  constexpr int64_t kRows = 33, kVocab = 300;
  std::vector<float> logits;
  std::vector<SamplingParams> params(kRows);
  std::vector<SamplingState> states;
  std::vector<SampleRow> rows;
  for (int64_t i = 0; i < kRows; ++i) {
    const std::vector<float> x = random_logits(kVocab, i);
    logits.insert(logits.end(), x.begin(), x.end());
    params[i] = params_of(kSettings[i % kSettings.size()]);
    if (i % 3 == 0) params[i].logit_bias = {{5, 2.0f}};
    if (i % 4 == 0) params[i].num_logprobs = 4, params[i].processed_logprobs = i % 8 == 0;
    states.emplace_back(params[i], 1000 + i, std::span<const int32_t>());
  }
  for (int64_t i = 0; i < kRows; ++i) rows.push_back({static_cast<int32_t>(i), 50 + i, &states[i], {}});
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    Sampler sampler(kVocab, pool);
    std::vector<Sample> together;
    sampler.prepare(rows);
    sampler.sample(View<const float, 2>(logits.data(), {kRows, kVocab}), together);
    for (int64_t i = 0; i < kRows; ++i) {
      Draws alone(std::vector<float>(logits.begin() + i * kVocab, logits.begin() + (i + 1) * kVocab));
      const Sample s = alone.one(params[i], 1000 + i, 50 + i);
      EXPECT_EQ(together[i].token, s.token) << i;
      EXPECT_EQ(together[i].logprobs.has_value(), s.logprobs.has_value()) << i;
      if (s.logprobs) {
        EXPECT_EQ(together[i].logprobs->chosen.logprob, s.logprobs->chosen.logprob) << i;
      }
    }
  }
}

struct Edit {
  std::string name;
  std::function<void(SamplingParams&)> set;
};

const std::vector<Edit> kEdits = {
    {"nothing", [](auto&) {}},
    {"repetition", [](auto& p) { p.repetition_penalty = 1.3; }},
    {"presence", [](auto& p) { p.presence_penalty = 0.7; }},
    {"frequency", [](auto& p) { p.frequency_penalty = -0.3; }},
    {"all penalties", [](auto& p) { p.repetition_penalty = 0.9, p.presence_penalty = 0.4, p.frequency_penalty = 0.2; }},
    {"bad words",
     [](auto& p) {
       p.bad_words = {{3}, {1, 2}, {0, 1, 2}, {2, 2}};
     }},
    {"min_tokens",
     [](auto& p) {
       p.min_tokens = 4, p.eos_token_ids = {0, 1}, p.stop_token_ids = {2};
     }},
    {"bias and penalties",
     [](auto& p) {
       p.logit_bias = {{1, 3.0f}, {5, -2.0f}}, p.repetition_penalty = 1.5;
     }},
    {"allowed ids",
     [](auto& p) {
       p.allowed_token_ids = {0, 2, 3, 5}, p.presence_penalty = 1;
     }},
};

void expect_same(const Sample& a, const Sample& b, const std::string& where) {
  EXPECT_EQ(a.token, b.token) << where;
  EXPECT_EQ(a.error, b.error) << where;
  ASSERT_EQ(a.logprobs.has_value(), b.logprobs.has_value()) << where;
  if (!a.logprobs) return;
  EXPECT_EQ(a.logprobs->chosen.logprob, b.logprobs->chosen.logprob) << where;
  ASSERT_EQ(a.logprobs->top.size(), b.logprobs->top.size()) << where;
  for (size_t i = 0; i < a.logprobs->top.size(); ++i) {
    EXPECT_EQ(a.logprobs->top[i].id, b.logprobs->top[i].id) << where;
    EXPECT_EQ(a.logprobs->top[i].logprob, b.logprobs->top[i].logprob) << where;
  }
}

// Processed logprobs of all ids show every bit that an edit could change.
TEST(Sampler, AssumedDraftsCountAsIfTheyHadBeenAppended) {
  constexpr int64_t kVocab = 6;
  const std::vector<int32_t> prompt = {4, 0};
  std::mt19937_64 rng(3);
  for (const Edit& edit : kEdits) {
    for (uint64_t trial = 0; trial < 40; ++trial) {
      SamplingParams p;
      edit.set(p);
      p.temperature = trial % 4 == 0 ? 0 : 0.8;
      p.num_logprobs = kVocab, p.processed_logprobs = true;
      std::vector<int32_t> output(5);
      for (int32_t& t : output) t = static_cast<int32_t>(rng() % kVocab);
      Draws draws(random_logits(kVocab, trial));
      const Sample appended = draws.one(p, trial, 7, prompt, output);
      for (int64_t num_assumed = 0; num_assumed <= 5; ++num_assumed) {
        SamplingState state(p, trial, prompt);
        for (int64_t i = 0; i < 5 - num_assumed; ++i) state.append(output[i]);
        const SampleRow row{.position = 7, .state = &state, .output = output, .num_assumed = num_assumed};
        expect_same(draws.one(row), appended, edit.name + ", " + std::to_string(num_assumed) + " assumed");
      }
    }
  }
}

TEST(Sampler, ACoupledRowDrawsTheTokenItWouldDrawWithoutItsDraft) {
  const std::vector<float> draft_logits = random_logits(30, 99);
  for (const Setting& s : kSettings) {
    const SamplingParams p = params_of(s);
    Draws draws(random_logits(30, 5, 1));
    for (int64_t position = 0; position < 100; ++position) {
      const SamplingState state(p, 3, {});
      SampleRow row{.position = position, .state = &state};
      const Sample alone = draws.one(row);
      row.draft = static_cast<int32_t>(position % 30);
      expect_same(draws.one(row), alone, s.name);
      row.draft_logits = draft_logits;
      expect_same(draws.one(row), alone, s.name + " with draft logits");
    }
  }
}

TEST(Sampler, AGreedyRowIgnoresHowItsDraftIsJudged) {
  SamplingParams p;
  p.temperature = 0;
  const SamplingState state(p, 3, {});
  for (int32_t draft = -1; draft < 4; ++draft)
    EXPECT_EQ(Draws({1, 3, 2, 3}).one(SampleRow{.state = &state, .draft = draft, .coupled = false}).token, 1);
}

TEST(Sampler, OnlyIdsOfTheMaskAreDrawn) {
  constexpr int64_t kVocab = 70;  // not a whole number of words
  const std::vector<float> logits = random_logits(kVocab, 4);
  for (const double temperature : {0.0, 1.0}) {
    for (const std::vector<int32_t>& allowed : std::vector<std::vector<int32_t>>{{0}, {69}, {31, 32, 33}, {3, 64}}) {
      std::vector<uint32_t> mask(mask_words(kVocab), 0);
      for (int32_t id : allowed) mask[id / 32] |= 1u << (id % 32);
      SamplingParams by_ids, by_mask;
      by_ids.temperature = by_mask.temperature = temperature;
      by_ids.presence_penalty = by_mask.presence_penalty = 0.5;
      by_ids.logit_bias = by_mask.logit_bias = {{7, 100.0f}, {64, 1.0f}};
      by_ids.allowed_token_ids = allowed;
      Draws draws(logits);
      for (int64_t position = 0; position < 50; ++position) {
        const SamplingState state(by_mask, 1, {});
        const Sample s = draws.one(SampleRow{.position = position, .state = &state, .allowed = mask});
        EXPECT_EQ(s.token, draws.one(by_ids, 1, position).token);
      }
    }
  }
}

TEST(Sampler, AnEmptyMaskIntersectionIsAnError) {
  SamplingParams p;
  p.allowed_token_ids = {1};
  const SamplingState state(p, 1, {});
  const std::vector<uint32_t> mask = {0b101};
  EXPECT_THAT(Draws({1, 2, 3}).one(SampleRow{.state = &state, .allowed = mask}).error, HasSubstr("No token is left"));
}

}  // namespace
}  // namespace nib
