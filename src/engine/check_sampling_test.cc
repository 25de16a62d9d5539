#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "engine/engine.h"

namespace nib {
namespace {

using ::testing::HasSubstr;

struct Case {
  std::string name;
  std::function<void(SamplingParams&)> set;
  std::string param;  // of the 400; empty: accepted
};

const double kNan = std::nan(""), kInf = HUGE_VAL;

const std::vector<Case> kCases = {
    {"defaults", [](auto&) {}, ""},
    {"temperature 0", [](auto& p) { p.temperature = 0; }, ""},
    {"temperature tiny", [](auto& p) { p.temperature = 1e-9; }, ""},
    {"temperature negative", [](auto& p) { p.temperature = -0.1; }, "temperature"},
    {"temperature NaN", [](auto& p) { p.temperature = kNan; }, "temperature"},
    {"temperature infinite", [](auto& p) { p.temperature = kInf; }, "temperature"},
    {"top_p 0", [](auto& p) { p.top_p = 0; }, "top_p"},
    {"top_p small", [](auto& p) { p.top_p = 1e-12; }, ""},
    {"top_p above 1", [](auto& p) { p.top_p = 1.01; }, "top_p"},
    {"top_p NaN", [](auto& p) { p.top_p = kNan; }, "top_p"},
    {"top_k -1", [](auto& p) { p.top_k = -1; }, ""},
    {"top_k -2", [](auto& p) { p.top_k = -2; }, "top_k"},
    {"top_k huge", [](auto& p) { p.top_k = INT64_MAX; }, ""},
    {"min_p 1", [](auto& p) { p.min_p = 1; }, ""},
    {"min_p negative", [](auto& p) { p.min_p = -0.1; }, "min_p"},
    {"min_p above 1", [](auto& p) { p.min_p = 1.1; }, "min_p"},
    {"min_p NaN", [](auto& p) { p.min_p = kNan; }, "min_p"},
    {"repetition 0", [](auto& p) { p.repetition_penalty = 0; }, "repetition_penalty"},
    {"repetition NaN", [](auto& p) { p.repetition_penalty = kNan; }, "repetition_penalty"},
    {"repetition infinite", [](auto& p) { p.repetition_penalty = kInf; }, "repetition_penalty"},
    {"presence -2", [](auto& p) { p.presence_penalty = -2; }, ""},
    {"presence 2.1", [](auto& p) { p.presence_penalty = 2.1; }, "presence_penalty"},
    {"frequency -2.1", [](auto& p) { p.frequency_penalty = -2.1; }, "frequency_penalty"},
    {"frequency NaN", [](auto& p) { p.frequency_penalty = kNan; }, "frequency_penalty"},
    {"n 0", [](auto& p) { p.n = 0; }, "n"},
    {"n 128", [](auto& p) { p.n = 128; }, ""},
    {"n 129", [](auto& p) { p.n = 129; }, "n"},
    {"n 2 greedy", [](auto& p) { p.n = 2, p.temperature = 0; }, "n"},
    {"max_tokens 0", [](auto& p) { p.max_tokens = 0; }, "max_tokens"},
    {"max_tokens negative", [](auto& p) { p.max_tokens = -5; }, "max_tokens"},
    {"max_tokens alone too long", [](auto& p) { p.max_tokens = 101; }, "max_tokens"},
    {"max_tokens huge", [](auto& p) { p.max_tokens = INT64_MAX; }, "max_tokens"},
    {"prompt and output just fit", [](auto& p) { p.max_tokens = 90; }, ""},
    {"prompt and output too long", [](auto& p) { p.max_tokens = 91; }, "input_tokens"},
    {"min_tokens negative", [](auto& p) { p.min_tokens = -1; }, "min_tokens"},
    {"min_tokens above max_tokens", [](auto& p) { p.min_tokens = 17; }, "min_tokens"},
    {"bias outside",
     [](auto& p) {
       p.logit_bias = {{50, 1.0f}};
     },
     "logit_bias"},
    {"bias of a negative id",
     [](auto& p) {
       p.logit_bias = {{-1, 1.0f}};
     },
     "logit_bias"},
    {"bias large",
     [](auto& p) {
       p.logit_bias = {{49, 1e6f}};
     },
     ""},
    {"bias NaN",
     [](auto& p) {
       p.logit_bias = {{4, std::nanf("")}};
     },
     "logit_bias"},
    {"allowed outside",
     [](auto& p) {
       p.allowed_token_ids = {1, 50};
     },
     "allowed_token_ids"},
    {"stop outside", [](auto& p) { p.stop_token_ids = {50}; }, "stop_token_ids"},
    {"bad word empty", [](auto& p) { p.bad_words = {{}}; }, "bad_words"},
    {"bad word outside",
     [](auto& p) {
       p.bad_words = {{1, 99}};
     },
     "bad_words"},
    {"logprobs 5", [](auto& p) { p.num_logprobs = 5; }, ""},
    {"logprobs 6", [](auto& p) { p.num_logprobs = 6; }, "logprobs"},
    {"logprobs -2", [](auto& p) { p.num_logprobs = -2; }, "logprobs"},
    {"prompt_logprobs 6", [](auto& p) { p.num_prompt_logprobs = 6; }, "prompt_logprobs"},
    {"logprob ids outside", [](auto& p) { p.logprob_token_ids = {50}; }, "logprob_token_ids"},
};

TEST(CheckSampling, NamesTheParameterAtFault) {
  for (const Case& c : kCases) {
    SamplingParams p;
    c.set(p);
    const Status s = check_sampling(p, 10, 50, 100, 5);
    EXPECT_EQ(s.ok(), c.param.empty()) << c.name << ": " << s.message();
    EXPECT_EQ(s.param(), c.param) << c.name;
    if (!s.ok()) {
      EXPECT_EQ(s.code(), Code::kInvalidArgument) << c.name;
      EXPECT_THAT(s.message(), ::testing::EndsWith(".")) << c.name;
    }
  }
}

TEST(CheckSampling, TheContextLengthMessageHasAllThreeNumbers) {
  SamplingParams p;
  p.max_tokens = 95;
  EXPECT_EQ(check_sampling(p, 10, 50, 100, 5).message(),
            "This model's maximum context length is 100 tokens. However, you requested 95 output tokens and your "
            "prompt contains 10 input tokens, for a total of 105. Please reduce the length of the input prompt.");
}

TEST(CheckSampling, AllLogprobsMayBeAskedForWhereTheLimitIsOff) {
  SamplingParams p;
  p.num_logprobs = 50;
  EXPECT_TRUE(check_sampling(p, 10, 50, 100, -1).ok());
  p.num_logprobs = 51;
  EXPECT_EQ(check_sampling(p, 10, 50, 100, -1).param(), "logprobs");
}

TEST(CheckSampling, AnEmptyPromptIsRefused) { EXPECT_EQ(check_sampling({}, 0, 50, 100, 5).param(), "prompt"); }

}  // namespace
}  // namespace nib
