#include "engine/spec_decode/draft_sampler.h"

#include <gtest/gtest.h>

#include <limits>

#include "engine/sampler.h"
#include "engine/testing/distribution.h"

namespace nib {
namespace {

using namespace testing;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

TEST(DraftSampler, TakesTheLargestAtTemperatureZeroAndRefusesWhatIsNoDistribution) {
  struct Case {
    std::vector<float> logits;
    int32_t greedy;
    bool is_distribution;
  };
  const std::vector<Case> cases = {
      {{1, 3, 2}, 1, true},          {{1, 3, 3}, 1, true},         // the lowest among equals
      {{-kInf, -5, -kInf}, 1, true},                               // -inf is a masked id
      {{1, kNan, 2}, -1, false},     {{kNan}, -1, false},          //
      {{1, kInf, 2}, -1, false},     {{-kInf, -kInf}, -1, false},  //
  };
  for (const Case& c : cases) {
    EXPECT_EQ(sample_draft(c.logits, 0, Noise(1, 2)), c.greedy);
    EXPECT_EQ(sample_draft(c.logits, 1, Noise(1, 2)) >= 0, c.is_distribution);
  }
}

TEST(DraftSampler, DrawsTheSoftmaxAtTheTemperature) {
  std::vector<float> logits = random_logits(12, 2, 1.5);
  logits[4] = -kInf;
  for (const double temperature : {0.3, 1.0, 2.5}) {
    SamplingParams p;
    p.temperature = temperature;
    std::vector<int64_t> seen(12, 0);
    for (int64_t i = 0; i < 40000; ++i) ++seen[sample_draft(logits, temperature, Noise::draft(7, i, i + 1))];
    const ChiSquare fit = chi_square(distribution_of(logits, p), seen);
    EXPECT_LT(fit.value, fit.limit) << temperature;
  }
}

TEST(DraftSampler, WithTheNoiseOfTheTargetItDrawsTheTokenOfTheTarget) {
  constexpr int64_t kVocab = 500;
  ThreadPool pool(1);
  Sampler sampler(kVocab, pool);
  for (const double temperature : {0.0, 1e-5, 0.4, 1.0, 3.0}) {
    SamplingParams p;
    p.temperature = temperature;
    const SamplingState state(p, 11, {});
    for (int64_t position = 0; position < 200; ++position) {
      const std::vector<float> logits = random_logits(kVocab, position, 2);
      const SampleRow row{.position = position, .state = &state};
      std::vector<Sample> out;
      sampler.prepare({&row, 1});
      sampler.sample(View<const float, 2>(logits.data(), {1, kVocab}), out);
      EXPECT_EQ(sample_draft(logits, temperature, Noise(11, position)), out[0].token) << temperature;
    }
  }
}

}  // namespace
}  // namespace nib
