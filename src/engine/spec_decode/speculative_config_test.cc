#include "engine/spec_decode/speculative_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nib {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Method = SpeculativeConfig::Method;
using Coupling = SpeculativeConfig::Coupling;

Result<SpeculativeConfig> read(const char* text) { return SpeculativeConfig::from_json(*parse_json(text)); }

TEST(SpeculativeConfigTest, ReadsWhatUsersOfVllmWrite) {
  const Result<SpeculativeConfig> c =
      read(R"({"method":"dspark","model":"d","num_speculative_tokens":7,"draft_sample_method":"probabilistic"})");
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->method, Method::kDspark);
  EXPECT_EQ(c->model, "d");
  EXPECT_EQ(c->num_speculative_tokens, 7);
  EXPECT_TRUE(c->probabilistic_drafts);
  EXPECT_FALSE(c->adaptive_verification);
  EXPECT_THAT(c->warnings, IsEmpty());
}

TEST(SpeculativeConfigTest, IsOffUntilAMethodIsGiven) {
  EXPECT_FALSE(SpeculativeConfig().enabled());
  EXPECT_TRUE(read(R"({"method":"dspark"})")->enabled());
}

TEST(SpeculativeConfigTest, DsparkLeavesTheBlockToTheDrafterAndCopiesBesideIt) {
  const SpeculativeConfig c = *read(R"({"method":"dspark"})");
  EXPECT_EQ(c.num_speculative_tokens, 0);
  EXPECT_TRUE(c.copy_drafts);
  EXPECT_EQ(c.max_copy_tokens, 15);
  EXPECT_FALSE(c.probabilistic_drafts);
  EXPECT_EQ(c.coupling, Coupling::kSeeded);
}

TEST(SpeculativeConfigTest, ReadsItsOwnKeys) {
  const SpeculativeConfig c = *read(
      R"({"method":"dspark","copy_drafts":true,"max_copy_tokens":4,"enable_adaptive_verification":true,
          "verification_cost_table":"costs.json"})");
  EXPECT_EQ(c.max_copy_tokens, 4);
  EXPECT_TRUE(c.adaptive_verification);
  EXPECT_EQ(c.cost_table_file, "costs.json");
  EXPECT_EQ(read(R"({"method":"dspark","copy_drafts":false})")->max_copy_tokens, 0);
}

TEST(SpeculativeConfigTest, NgramIsCopyingAlone) {
  for (const char* text :
       {R"({"method":"ngram","num_speculative_tokens":5})", R"({"model":"ngram","num_speculative_tokens":5})",
        R"({"model":"[ngram]","method":null,"num_speculative_tokens":5})"}) {
    const Result<SpeculativeConfig> c = read(text);
    ASSERT_TRUE(c.ok()) << text << ": " << c.status().message();
    EXPECT_EQ(c->method, Method::kNgram) << text;
    EXPECT_TRUE(c->copy_drafts) << text;
    EXPECT_EQ(c->max_copy_tokens, 5) << text;
    EXPECT_EQ(c->num_speculative_tokens, 0) << text;
    EXPECT_EQ(c->model, "") << text;
  }
  EXPECT_EQ(read(R"({"method":"ngram"})")->max_copy_tokens, 15);
}

TEST(SpeculativeConfigTest, OneLookupBoundStandsForBoth) {
  struct Case {
    const char* keys;
    int64_t least, most;
  };
  constexpr Case kCases[] = {{R"()", 3, 24},
                             {R"(,"prompt_lookup_max":4)", 4, 4},
                             {R"(,"prompt_lookup_min":6)", 6, 6},
                             {R"(,"prompt_lookup_min":2,"prompt_lookup_max":9)", 2, 9},
                             {R"(,"prompt_lookup_min":null,"prompt_lookup_max":64)", 64, 64}};
  for (const Case& k : kCases) {
    const Result<SpeculativeConfig> c = read(fmt::format(R"({{"method":"ngram"{}}})", k.keys).c_str());
    ASSERT_TRUE(c.ok()) << k.keys << c.status().message();
    EXPECT_EQ(c->prompt_lookup_min, k.least) << k.keys;
    EXPECT_EQ(c->prompt_lookup_max, k.most) << k.keys;
  }
}

TEST(SpeculativeConfigTest, KeysThatMeanNothingHereAreNamedInAWarning) {
  constexpr const char* kIgnored[] = {R"("attention_backend":"FLASH_ATTN")",
                                      R"("moe_backend":"triton")",
                                      R"("enforce_eager":true)",
                                      R"("max_model_len":4096)",
                                      R"("parallel_drafting":true)",
                                      R"("use_local_argmax_reduction":true)",
                                      R"("disable_eagle_block_drop":true)"};
  for (const std::string key : kIgnored) {
    const Result<SpeculativeConfig> c = read(("{\"method\":\"dspark\"," + key + "}").c_str());
    ASSERT_TRUE(c.ok()) << key << c.status().message();
    const std::string name = key.substr(0, key.find(':'));
    EXPECT_THAT(c->warnings, ElementsAre(HasSubstr("--speculative-config: " + name + " has no effect: "))) << key;
  }
  EXPECT_THAT(read(R"({"method":"ngram","draft_sample_method":"probabilistic"})")->warnings,
              ElementsAre(HasSubstr("a copy is no draw")));
}

TEST(SpeculativeConfigTest, ValuesThatChangeNothingPassInSilence) {
  for (const char* keys : {R"("quantization":null)", R"("dspark_draft_topk":null)", R"("enforce_eager":false)",
                           R"("num_speculative_tokens_per_batch_size":[])", R"("rejection_sample_method":"standard")",
                           R"("draft_tensor_parallel_size":1)", R"("kv_cache_dtype":"auto")", R"("revision":null)"}) {
    const Result<SpeculativeConfig> c = read(fmt::format(R"({{"method":"dspark",{}}})", keys).c_str());
    ASSERT_TRUE(c.ok()) << keys << c.status().message();
    EXPECT_THAT(c->warnings, IsEmpty()) << keys;
  }
}

TEST(SpeculativeConfigTest, RefusesWhatWouldChangeResults) {
  struct Case {
    const char* text;
    const char* sentence;  // part of it
  };
  constexpr Case kCases[] = {
      {R"({"method":"mtp","num_speculative_tokens":8})", "give \"method\": \"dspark\" with a DSpark drafter"},
      {R"({"method":"deepseek_mtp"})", "method deepseek_mtp is not supported"},
      {R"({"method":"eagle3"})", "method eagle3 is not supported, give dspark or ngram"},
      {R"({"method":"draft_model","model":"x"})", "method draft_model is not supported"},
      {R"({"method":"dspark","rejection_sample_method":"block"})", "rejection_sample_method block is not supported"},
      {R"({"method":"dspark","rejection_sample_method":"synthetic"})", "rejection_sample_method synthetic"},
      {R"({"method":"dspark","synthetic_acceptance_length":2.5})", "\"synthetic_acceptance_length\" is not supported"},
      {R"({"method":"dspark","synthetic_acceptance_rates":[0.5]})", "\"synthetic_acceptance_rates\" is not supported"},
      {R"({"method":"dspark","quantization":"fp8"})", "\"quantization\" is not supported"},
      {R"({"method":"dspark","revision":"main"})", "name the folder of that revision"},
      {R"({"method":"dspark","dspark_draft_topk":64})", "\"dspark_draft_topk\" is not supported"},
      {R"({"method":"dspark","num_speculative_tokens_per_batch_size":[[1,4,7]]})", "enable_adaptive_verification"},
  };
  for (const Case& k : kCases) {
    const Result<SpeculativeConfig> c = read(k.text);
    ASSERT_FALSE(c.ok()) << k.text;
    EXPECT_EQ(c.status().code(), Code::kUnimplemented) << k.text;
    EXPECT_THAT(c.status().message(), HasSubstr("--speculative-config: ")) << k.text;
    EXPECT_THAT(c.status().message(), HasSubstr(k.sentence)) << k.text;
  }
}

TEST(SpeculativeConfigTest, RefusesWhatIsWrongByKeyAndValue) {
  struct Case {
    const char* text;
    const char* sentence;  // part of it
  };
  constexpr Case kCases[] = {
      {R"([7])", "a JSON object is expected, got array"},
      {R"({})", "\"method\" is missing"},
      {R"({"model":"drafter"})", "\"method\" is missing"},
      {R"({"method":"dsprak"})", "unknown method \"dsprak\", give dspark or ngram"},
      {R"({"method":7})", "method must be a string, got 7"},
      {R"({"method":"dspark","num_speculative_token":7})", "the nearest known one is \"num_speculative_tokens\""},
      {R"({"method":"dspark","adaptive_verification":true})", "is \"enable_adaptive_verification\""},
      {R"({"method":"dspark","num_speculative_tokens":0})", "num_speculative_tokens must be an integer from 1 to 1024"},
      {R"({"method":"dspark","num_speculative_tokens":"7"})", "num_speculative_tokens must be an integer"},
      {R"({"method":"dspark","num_speculative_tokens":7.5})", "num_speculative_tokens must be an integer"},
      {R"({"method":"ngram","num_speculative_tokens":16})", "num_speculative_tokens must be an integer from 1 to 15"},
      {R"({"method":"dspark","max_copy_tokens":16})", "max_copy_tokens must be an integer from 1 to 15"},
      {R"({"method":"ngram","max_copy_tokens":5})", "give \"num_speculative_tokens\" instead"},
      {R"({"method":"ngram","copy_drafts":false})", "\"copy_drafts\" is what method ngram does"},
      {R"({"method":"ngram","model":"drafter"})", "leave \"model\" out"},
      {R"({"method":"ngram","prompt_lookup_max":0})", "prompt_lookup_max must be an integer from 1 to 64, got 0"},
      {R"({"method":"ngram","prompt_lookup_min":6,"prompt_lookup_max":4})", "is greater than prompt_lookup_max 4"},
      {R"({"method":"dspark","draft_sample_method":"best"})",
       "draft_sample_method must be one of greedy, probabilistic"},
      {R"({"method":"dspark","rejection_sample_method":"fast"})", "rejection_sample_method must be one of standard"},
      {R"({"method":"dspark","enable_adaptive_verification":1})", "enable_adaptive_verification must be true or false"},
      {R"({"method":"dspark","verification_cost_table":{}})", "verification_cost_table must be a string"},
      {R"({"method":"dspark","draft_tensor_parallel_size":4})",
       "draft_tensor_parallel_size must be 1, there is one rank, got 4"},
      {R"({"method":"dspark","kv_cache_dtype":"fp8"})", "kv_cache_dtype must be one of auto, bfloat16"},
      {R"({"method":"dspark","enforce_eager":"yes"})", "enforce_eager must be true or false"},
      {R"({"method":"dspark","max_model_len":-1})", "max_model_len must be an integer"},
  };
  for (const Case& k : kCases) {
    const Result<SpeculativeConfig> c = read(k.text);
    ASSERT_FALSE(c.ok()) << k.text;
    EXPECT_EQ(c.status().code(), Code::kInvalidArgument) << k.text;
    EXPECT_THAT(c.status().message(), HasSubstr("--speculative-config: ")) << k.text;
    EXPECT_THAT(c.status().message(), HasSubstr(k.sentence)) << k.text;
  }
}

TEST(SpeculativeConfigTest, CouplingHasThreeValues) {
  EXPECT_EQ(*SpeculativeConfig::parse_coupling("always"), Coupling::kAlways);
  EXPECT_EQ(*SpeculativeConfig::parse_coupling("seeded"), Coupling::kSeeded);
  EXPECT_EQ(*SpeculativeConfig::parse_coupling("never"), Coupling::kNever);
  EXPECT_THAT(SpeculativeConfig::parse_coupling("Always").status().message(),
              HasSubstr("--speculation-coupling: always, seeded or never is expected, got \"Always\""));
}

}  // namespace
}  // namespace nib
