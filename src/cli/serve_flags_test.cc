#include "cli/serve_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nib::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The options that a command line leads to; the test fails if it is refused.
ServeOptions parsed(std::vector<std::string> args) {
  args.insert(args.begin(), "model");
  ServeOptions o;
  const Status status = parse_serve_flags(args, o);
  EXPECT_TRUE(status.ok()) << status.message();
  return o;
}

TEST(ServeFlags, are_spelled_as_in_vllm) {
  EXPECT_EQ(parsed({"--port", "81"}).server.http.port, 81);
  EXPECT_EQ(parsed({"--port=81"}).server.http.port, 81);
  EXPECT_EQ(parsed({"--max_num_seqs=7"}).engine.max_num_seqs, 7);
  EXPECT_EQ(parsed({"--max-model-len", "64k"}).engine.max_model_len, 64'000);
  EXPECT_EQ(parsed({"--max-model-len", "64K"}).engine.max_model_len, 65'536);
  EXPECT_EQ(parsed({"--max-model-len", "1M"}).engine.max_model_len, 1 << 20);
  EXPECT_EQ(parsed({"--max-model-len", "1.5k"}).engine.max_model_len, 1500);
  EXPECT_EQ(parsed({"--max-model-len", "-1"}).engine.max_model_len, 0);
  EXPECT_EQ(parsed({"--max-model-len", "auto"}).engine.max_model_len, 0);
  EXPECT_EQ(parsed({"--max-logprobs", "-1"}).engine.max_logprobs, -1);
  EXPECT_TRUE(parsed({"--enable-request-id-headers"}).server.api.request_id_headers);
  EXPECT_FALSE(parsed({"--no-enable-prompt-tokens-details"}).server.api.prompt_tokens_details);
  EXPECT_FALSE(parsed({"--enable-prompt-tokens-details=False"}).server.api.prompt_tokens_details);
  EXPECT_THAT(parsed({"--api-key", "a", "b", "--api-key=c"}).server.api.api_keys, ElementsAre("a", "b", "c"));
  EXPECT_THAT(parsed({"--served-model-name", "x", "y"}).server.api.served_model_names, ElementsAre("x", "y"));
  EXPECT_THAT(parsed({}).server.api.served_model_names, ElementsAre("model"));
  EXPECT_EQ(
      parsed({"--default-chat-template-kwargs", R"({"reasoning_effort":"low"})"}).server.api.default_template_kwargs,
      Json({{"reasoning_effort", "low"}}));
  EXPECT_EQ(parsed({"--default-chat-template-kwargs.reasoning_effort", "0.3"}).server.api.default_template_kwargs,
            Json({{"reasoning_effort", 0.3}}));
  EXPECT_EQ(parsed({"--override-generation-config.temperature=0.7"}).override_generation_config,
            Json({{"temperature", 0.7}}));
  EXPECT_TRUE(parsed({"--dtype", "float32"}).f32);
  EXPECT_FALSE(parsed({"--dtype", "bfloat16"}).f32);
  EXPECT_TRUE(parsed({"--scheduling-policy", "priority"}).engine.priority_scheduling);
}

TEST(ServeFlags, without_effect_leave_a_note) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"--enforce-eager"},
                                             {"--gpu-memory-utilization", "0.9"},
                                             {"--trust-remote-code"},
                                             {"--kernel-config.enable_flashinfer_autotune=False"},
                                             {"-O3"},
                                             {"--attention-backend", "fa4"}})
    EXPECT_EQ(parsed(args).notes.size(), 1u) << args[0];
}

TEST(ServeFlags, that_change_nothing_are_taken) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"--no-enable-prefix-caching"},
                                             {"-tp", "1"},
                                             {"--tool-call-parser", "inkling2"},
                                             {"--reasoning-parser", "inkling"},
                                             {"--limit-mm-per-prompt", R"({"image":0})"},
                                             {"--no-enable-lora"},
                                             {"--device", "cpu"},
                                             {"--kv-cache-dtype", "auto"},
                                             {"--enable-chunked-prefill"}})
    EXPECT_TRUE(parsed(args).notes.empty()) << args[0];
}

TEST(ServeFlags, that_cannot_be_kept_are_refused_by_name_with_a_reason) {
  struct Case {
    std::vector<std::string> args;
    const char* says;
  };
  const Case cases[] = {
      {{"--no-such-flag"}, "--no-such-flag: unknown flag"},
      {{"--no-such-flag=5"}, "--no-such-flag: unknown flag"},
      {{"--port"}, "--port: a value is expected"},
      {{"--port", "x"}, "--port x"},
      {{"--port", "70000"}, "--port 70000"},
      {{"--max-num-seqs", "0"}, "--max-num-seqs 0"},
      {{"--max-num-seqs", "1.5"}, "--max-num-seqs 1.5"},
      {{"--max-model-len", "1e999"}, "--max-model-len"},
      {{"--enable-prefix-caching"}, "prefix caching is not there yet"},
      {{"--speculative-config.method", "eagle3"}, "eagle3"},
      {{"--speculation-coupling", "sometimes"}, "sometimes"},
      {{"--speculative-config", R"({"method":"mtp"})"}, "--speculative-config"},
      {{"--speculative-config", "{"}, "a JSON object is expected"},
      {{"--tensor-parallel-size", "4"}, "--tensor-parallel-size 4"},
      {{"-tp", "4"}, "--tensor-parallel-size 4"},
      {{"--device", "cuda"}, "no CUDA backend"},
      {{"--middleware", "x.py"}, "Python"},
      {{"--ssl-keyfile", "k"}, "TLS"},
      {{"--enable-lora"}, "LoRA"},
      {{"--dtype", "half"}, "--dtype half"},
      {{"--kv-cache-dtype", "fp8"}, "--kv-cache-dtype fp8"},
      {{"--limit-mm-per-prompt.image=8"}, "--limit-mm-per-prompt"},
      {{"--host.a", "b"}, "takes no keys"},
      {{"--enable-log-requests=5"}, "true or false"},
      {{"--none-effort-policy", "ban"}, "not there yet"},
      {{"second-model"}, "second-model: the model is given already"},
      {{"--api-key", ""}, "empty key"},
      {{"--served-model-name", ""}, "empty name"},
  };
  for (const Case& c : cases) {
    std::vector<std::string> args = c.args;
    args.insert(args.begin(), "model");
    ServeOptions o;
    EXPECT_THAT(parse_serve_flags(args, o).message(), HasSubstr(c.says)) << c.args[0];
  }
  ServeOptions o;
  EXPECT_THAT(parse_serve_flags({}, o).message(), HasSubstr("MODEL is missing"));
}

}  // namespace
}  // namespace nib::cli
