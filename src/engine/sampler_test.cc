#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "engine/noise.h"

namespace nib {
namespace {

using ::testing::HasSubstr;

std::vector<float> random_logits(int64_t vocab, uint64_t seed, double width = 3) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0, static_cast<float>(width));
  std::vector<float> x(vocab);
  for (float& f : x) f = normal(rng);
  return x;
}

class Draws {
 public:
  explicit Draws(std::vector<float> logits) : logits_(std::move(logits)), pool_(1), sampler_(vocab(), pool_) {}

  int64_t vocab() const { return static_cast<int64_t>(logits_.size()); }

  Sample one(const SamplingParams& p, uint64_t seed = 1, int64_t position = 0, const std::vector<int32_t>& prompt = {},
             const std::vector<int32_t>& output = {}) {
    SamplingState state(p, seed, prompt);
    for (int32_t t : output) state.append(t);
    const SampleRow row{0, position, &state, output};
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

// The distribution by definition, in double precision, with full sorts.
std::vector<double> slow_distribution(const std::vector<float>& logits, const SamplingParams& p) {
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  const auto weight = [&](int32_t id) {
    return std::exp((static_cast<double>(logits[id]) - logits[order[0]]) / p.temperature);
  };
  std::erase_if(order, [&](int32_t id) { return weight(id) < p.min_p; });
  if (p.top_k > 0 && static_cast<int64_t>(order.size()) > p.top_k) order.resize(p.top_k);
  double total = 0, mass = 0;
  for (int32_t id : order) total += weight(id);
  for (size_t i = 0; i < order.size(); ++i) {
    mass += weight(order[i]);
    if (mass >= p.top_p * total) order.resize(i + 1);
  }
  std::vector<double> out(logits.size(), 0.0);
  double kept = 0;
  for (int32_t id : order) kept += weight(id);
  for (int32_t id : order) out[id] = weight(id) / kept;
  return out;
}

struct Setting {
  std::string name;
  double temperature, top_p, min_p;
  int64_t top_k;
};

const std::vector<Setting> kSettings = {
    {"plain", 1, 1, 0, 0},
    {"cold", 0.3, 1, 0, -1},
    {"hot", 2.5, 1, 0, 0},
    {"top_k", 1, 1, 0, 5},
    {"top_k of 1", 1, 1, 0, 1},
    {"top_p", 1, 0.8, 0, 0},
    {"tiny top_p", 1, 1e-6, 0, 0},
    {"min_p", 1, 1, 0.1, 0},
    {"min_p of 1", 1, 1, 1, 0},
    {"all", 0.8, 0.9, 0.02, 9},
    {"top_k beyond", 1, 0.95, 0, 1000},
};

SamplingParams params_of(const Setting& s) {
  SamplingParams p;
  p.temperature = s.temperature, p.top_p = s.top_p, p.min_p = s.min_p, p.top_k = s.top_k;
  return p;
}

// Upper 1e-6 point of the chi-square distribution (Wilson-Hilferty).
double chi_square_limit(double degrees) {
  const double z = 4.75, a = 2 / (9 * degrees);
  return degrees * std::pow(1 - a + z * std::sqrt(a), 3);
}

TEST(Sampler, DrawsTheDistributionOfItsDefinition) {
  const std::vector<float> logits = random_logits(24, 5, 1.5);
  constexpr int64_t kDraws = 40000;
  for (const Setting& s : kSettings) {
    const std::vector<double> expected = slow_distribution(logits, params_of(s));
    const std::vector<int64_t> seen = Draws(logits).histogram(params_of(s), kDraws);
    double chi_square = 0, degrees = -1, rest = 0, rest_seen = 0;
    for (size_t id = 0; id < logits.size(); ++id) {
      const double e = expected[id] * kDraws;
      if (e == 0) {
        EXPECT_EQ(seen[id], 0) << s.name << ": id " << id << " is cut off";
      }
      if (e < 8) {
        rest += e, rest_seen += static_cast<double>(seen[id]);
        continue;
      }
      chi_square += (static_cast<double>(seen[id]) - e) * (static_cast<double>(seen[id]) - e) / e;
      ++degrees;
    }
    if (rest > 8) chi_square += (rest_seen - rest) * (rest_seen - rest) / rest, ++degrees;
    if (degrees > 0) {
      EXPECT_LT(chi_square, chi_square_limit(degrees)) << s.name;
    }
  }
}

// The bound that skips ids, the candidate lists and the pieces of the sort may not change the winner.
TEST(Sampler, EqualsTheSlowArgmaxOfNoisyLogits) {
  for (const int64_t vocab : {1, 2, 61, 5000}) {
    for (uint64_t trial = 0; trial < (vocab > 100 ? 20u : 200u); ++trial) {
      const std::vector<float> logits = random_logits(vocab, trial);
      Draws draws(logits);
      for (const Setting& s : kSettings) {
        const std::vector<double> allowed = slow_distribution(logits, params_of(s));
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
    const std::vector<double> expected = slow_distribution(logits, p);
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

}  // namespace
}  // namespace nib
