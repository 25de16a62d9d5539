// Drafters against what the authors' own code computed: tests/data/oracle/README.md says which.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/drafter.h"
#include "model/testing/draft_cache.h"
#include "model/testing/tensor_file.h"

namespace nib {
namespace {

using testing::Draft;
using testing::DraftCache;
using testing::read_tensor_file;
using testing::Rows;

struct Case {
  const char* folder;
  Isa isa;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* folder : {"dspark-tiny-rnn", "dspark-tiny-markov"})
    for (int i = 0; i <= static_cast<int>(best_isa()); ++i) all.push_back({folder, static_cast<Isa>(i)});
  return all;
}

// The references come from a model that was cast to BF16 whole, so its rotary frequencies were rounded with its
// weights.
constexpr bool kBf16RopeFrequencies = true;
constexpr double kMaxAbs = 2e-5;  // FP32
// BF16, the first draft of a step, before other tokens may be drawn; 2.03e-2 is the largest measured. The references
// are FP32 throughout, so every rounding of an activation counts.
constexpr double kRelativeL2 = 3e-2;

double max_abs_error(std::span<const float> got, std::span<const float> want) {
  double worst = got.size() == want.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i)
    worst = std::max(worst, std::isnan(got[i]) ? INFINITY : std::abs(static_cast<double>(got[i]) - want[i]));
  return worst;
}

double relative_l2(std::span<const float> got, std::span<const float> want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) error += std::pow(got[i] - want[i], 2), norm += std::pow(want[i], 2);
  return std::sqrt(error / norm);
}

class DrafterOracle : public ::testing::TestWithParam<Case> {
 protected:
  const std::filesystem::path folder_ = std::filesystem::path(NIB_SOURCE_DIR) / "tests/data/oracle" / GetParam().folder;
  const std::map<std::string, Rows> reference_ = read_tensor_file(folder_ / "reference.safetensors");

  // Calls check(prefix of the step's tensors, draft) for every step of steps.json.
  template <class Check>
  void run(bool f32, int64_t num_tokens, const Check& check) {
    Result<std::unique_ptr<Drafter>> drafter =
        load_drafter(folder_, {.f32 = f32, .bf16_rope_frequencies = kBf16RopeFrequencies}, nullptr);
    ASSERT_TRUE(drafter.ok()) << drafter.status().message();
    const Result<Json> steps = read_json_file(folder_ / "steps.json");
    ASSERT_TRUE(steps.ok());
    DraftCache cache(**drafter, GetParam().isa, {});
    int64_t step = 0, end = 0;
    for (const Json& s : *steps) {
      const std::string at = fmt::format("step{}.", step++);
      const Rows& taps = reference_.at(at + "target_hidden");
      cache.commit({{.start = end, .taps = {taps.values.data(), {taps.count(), taps.width}}}});
      end += taps.count();
      ASSERT_EQ(end, s["start"].get<int64_t>());
      const DraftBlock block{s["anchor"].get<int32_t>(), end, 0, end, num_tokens};
      check(at, cache.draft({{.block = block}})[0]);
    }
    ASSERT_EQ(step, 4);
  }
};

TEST_P(DrafterOracle, DraftsAreThoseOfTheAuthorsInF32) {
  run(true, 7, [&](const std::string& at, const Draft& d) {
    EXPECT_EQ(d.tokens, reference_.at(at + "draft_tokens").ids()) << at;
    EXPECT_LT(max_abs_error(d.hidden, reference_.at(at + "block_hidden").values), kMaxAbs) << at;
    EXPECT_LT(max_abs_error(d.logits, reference_.at(at + "draft_logits").values), kMaxAbs) << at;
    EXPECT_LT(max_abs_error(d.confidence, reference_.at(at + "confidence_logits").values), kMaxAbs) << at;
  });
}

TEST_P(DrafterOracle, FewerDraftsAreTheFirstOfTheWholeBlock) {
  run(true, 3, [&](const std::string& at, const Draft& d) {
    const std::vector<int32_t> all = reference_.at(at + "draft_tokens").ids();
    EXPECT_EQ(d.tokens, std::vector<int32_t>(all.begin(), all.begin() + 3)) << at;
    const Rows& logits = reference_.at(at + "draft_logits");
    EXPECT_LT(max_abs_error(d.logits, std::span(logits.values).first(3 * logits.width)), kMaxAbs) << at;
    EXPECT_EQ(d.confidence.size(), 3u);
  });
}

TEST_P(DrafterOracle, Bf16StaysNear) {
  run(false, 1, [&](const std::string& at, const Draft& d) {
    EXPECT_LT(relative_l2(d.hidden, reference_.at(at + "block_hidden").row(0)), kRelativeL2) << at;
    EXPECT_LT(relative_l2(d.logits, reference_.at(at + "draft_logits").row(0)), kRelativeL2) << at;
  });
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  std::string text = fmt::format("{}_{}", info.param.folder, name(info.param.isa));
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}
INSTANTIATE_TEST_SUITE_P(All, DrafterOracle, ::testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace nib
