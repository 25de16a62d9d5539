#include "server/api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "server/errors.h"
#include "server/metrics.h"
#include "server/server.h"
#include "server/testing/test_server.h"

namespace nib {
namespace {

using ::testing::HasSubstr;

// The endpoints without a connection: a reply, or an answer that would now be made.
class Endpoints : public ::testing::Test {
 protected:
  Endpoints()
      : model_(testing::script_model({})),
        metrics_("script", model_.engine->config().max_model_len, 0, [this] { return model_.engine->stats(); }) {
    service_.config.served_model_names = {"script"};
    service_.tokenizer = model_.tokenizer;
    service_.format = model_.format;
    service_.fallback = model_.fallback;
    service_.engine = model_.engine.get();
    service_.metrics = &metrics_;
  }

  HttpResult ask(const std::string& path, const std::string& body) {
    return Api(service_).handle(
        {.method = "POST", .path = path, .query = {}, .body = body, .headers = {}, .arrival = {}});
  }

  // 200 stands for: accepted, an answer would be made.
  void expect(const std::string& path, const std::string& body, int status, const std::string& param,
              const std::string& says = {}) {
    const HttpResult result = ask(path, body);
    if (std::holds_alternative<std::unique_ptr<ReplySource>>(result)) {
      EXPECT_EQ(status, 200) << body << " was accepted";
      return;
    }
    const HttpReply& reply = std::get<HttpReply>(result);
    const Json json = *parse_json(reply.body);
    EXPECT_EQ(reply.status, status) << body << "\n" << reply.body;
    if (status == 200) return;
    ASSERT_TRUE(json.contains("error")) << reply.body;
    const Json& error = json["error"];
    EXPECT_EQ(error["code"], status);
    EXPECT_EQ(error["param"].is_null() ? "" : error["param"].get<std::string>(), param) << body << "\n" << reply.body;
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(says)) << body;
    EXPECT_LT(error["message"].get<std::string>().size(), 3000u);
  }

  ServedModel model_;
  Metrics metrics_;
  Service service_;
};

// Fields added to a proper chat request, and what becomes of it.
struct FieldCase {
  const char *fields, *param;
  int status;
  const char* says = "";
};

constexpr FieldCase kChatFields[] = {
    {R"("model":"script")", "", 200},
    {R"("model":null)", "", 200},
    {R"("model":"gpt-x")", "model", 404, "The model `gpt-x` does not exist."},
    {R"("model":5)", "body.model", 400},
    {R"("unknown_field":{"a":1})", "", 200},
    // numbers: ranges, types, sizes
    {R"("temperature":0)", "", 200},
    {R"("temperature":-1)", "temperature", 400},
    {R"("temperature":"x")", "body.temperature", 400},
    {R"("temperature":true)", "body.temperature", 400},
    {R"("temperature":1e400)", "body", 400},
    {R"("temperature":NaN)", "body", 400},
    {R"("temperature":null)", "", 200},
    {R"("top_p":0)", "top_p", 400},
    {R"("top_p":1.1)", "top_p", 400},
    {R"("top_k":-1)", "", 200},
    {R"("top_k":-2)", "top_k", 400},
    {R"("top_k":1.5)", "body.top_k", 400},
    {R"("top_k":2.0)", "", 200},
    {R"("top_k":9223372036854775808)", "body.top_k", 400},
    {R"("min_p":1.5)", "min_p", 400},
    {R"("repetition_penalty":0)", "repetition_penalty", 400},
    {R"("presence_penalty":2.5)", "presence_penalty", 400},
    {R"("frequency_penalty":-2.5)", "frequency_penalty", 400},
    {R"("seed":-9223372036854775808)", "", 200},
    {R"("seed":18446744073709551616)", "body.seed", 400},
    {R"("n":3,"temperature":1)", "", 200},
    {R"("n":3,"temperature":0)", "n", 400},
    {R"("n":0)", "body.n", 400},
    {R"("n":1000000)", "body.n", 400},
    {R"("best_of":1)", "", 200},
    {R"("best_of":2)", "best_of", 400},
    {R"("max_tokens":0)", "body.max_tokens", 400},
    {R"("max_tokens":-1)", "body.max_tokens", 400},
    {R"("max_tokens":100000)", "max_tokens", 400, "maximum context length is 4096 tokens"},
    {R"("max_completion_tokens":100000)", "max_completion_tokens", 400, "maximum context length is 4096 tokens"},
    {R"("max_tokens":4096)", "input_tokens", 400, "maximum context length is 4096 tokens"},
    {R"("max_tokens":5,"max_completion_tokens":4097)", "max_completion_tokens", 400},
    {R"("max_tokens":2147483648,"max_completion_tokens":2)", "max_tokens", 400},
    {R"("min_tokens":5,"max_tokens":4)", "min_tokens", 400},
    {R"("min_tokens":-1)", "body.min_tokens", 400},
    // stops and token lists
    {R"("stop":"x")", "", 200},
    {R"("stop":["x","y"],"include_stop_str_in_output":true)", "", 200},
    {R"("stop":"")", "stop", 400},
    {R"("stop":["x",""])", "stop", 400},
    {R"("stop":[1])", "body.stop.0", 400},
    {R"("stop_token_ids":[5])", "", 200},
    {R"("stop_token_ids":[-1])", "body.stop_token_ids.0", 400},
    {R"("stop_token_ids":[99999])", "stop_token_ids", 400},
    {R"("stop_token_ids":[1.5])", "body.stop_token_ids.0", 400},
    {R"("allowed_token_ids":[1,2])", "", 200},
    {R"("allowed_token_ids":[])", "allowed_token_ids", 400},
    {R"("bad_words":["no","never"])", "", 200},
    {R"("bad_words":["no",""])", "body.bad_words", 400, "cannot be empty"},
    {R"("bad_words":[" "])", "body.bad_words", 400, "cannot be empty"},
    {R"("logit_bias":{"5":200})", "", 200},
    {R"("logit_bias":{"x":1})", "body.logit_bias.x", 400},
    {R"("logit_bias":{"5":"y"})", "body.logit_bias.5", 400},
    {R"("logit_bias":{"99999":1})", "logit_bias", 400},
    // logprobs
    {R"("logprobs":true,"top_logprobs":20)", "", 200},
    {R"("logprobs":true,"top_logprobs":21)", "top_logprobs", 400},
    {R"("logprobs":true,"top_logprobs":-1)", "top_logprobs", 400},
    {R"("top_logprobs":2)", "top_logprobs", 400},
    {R"("logprobs":5)", "body.logprobs", 400},
    {R"("logprob_token_ids":[1])", "logprob_token_ids", 400},
    {R"("logprobs":true,"logprob_token_ids":[1])", "", 200},
    {R"("prompt_logprobs":2)", "", 200},
    {R"("prompt_logprobs":21)", "prompt_logprobs", 400, "0 to 20"},
    {R"("prompt_logprobs":-1)", "prompt_logprobs", 400, "0 to 20"},
    {R"("prompt_logprobs":-2)", "body.prompt_logprobs", 400},
    {R"("prompt_logprobs":2,"stream":true)", "prompt_logprobs", 400},
    // stream
    {R"("stream":"yes")", "body.stream", 400},
    {R"("stream_options":{"include_usage":true})", "stream_options", 400},
    {R"("stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true})", "", 200},
    {R"("stream":true,"stream_options":5)", "body.stream_options", 400},
    {R"("stream":true,"stream_options":{"include_usage":5})", "body.stream_options", 400},
    {R"("stream_interval":0)", "body.stream_interval", 400},
    // what is not there
    {R"("response_format":{"type":"text"})", "", 200},
    {R"("response_format":{"type":"json_object"})", "response_format", 501},
    {R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{}}})", "response_format", 501},
    {R"("response_format":{"type":"structural_tag"})", "response_format", 501},
    {R"("response_format":{"type":"xml"})", "response_format", 400, "none of text"},
    {R"("response_format":{})", "response_format", 400},
    {R"("response_format":"text")", "body.response_format", 400},
    {R"("structured_outputs":{"regex":"a"})", "structured_outputs", 501},
    {R"("guided_regex":"a")", "guided_regex", 501},
    {R"("thinking_token_budget":5)", "thinking_token_budget", 501},
    {R"("use_beam_search":true)", "use_beam_search", 400},
    {R"("length_penalty":2)", "length_penalty", 400},
    {R"("mm_processor_kwargs":{})", "mm_processor_kwargs", 400},
    {R"("continue_final_message":true,"add_generation_prompt":false)", "continue_final_message", 400},
    // tools
    {R"("tools":[{"type":"function","function":{"name":"f"}}])", "", 200},
    {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"auto")", "", 200},
    {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")", "", 200},
    {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required")", "tool_choice", 501},
    {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"}}})",
     "body", 400},
    {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"}})",
     "tool_choice", 501},
    {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"g"}})",
     "tool_choice", 400},
    {R"("tools":[{"type":"function","function":{"name":"f","strict":true}}])", "tools", 501},
    {R"("tools":[])", "tools", 400},
    {R"("tool_choice":"auto")", "tool_choice", 400},
    // effort and rest
    {R"("reasoning_effort":"low","include_reasoning":false)", "", 200},
    {R"("reasoning_effort":0.5)", "", 200},
    {R"("reasoning_effort":"often")", "reasoning_effort", 400},
    {R"("reasoning_effort":1.0)", "reasoning_effort", 400},
    {R"("priority":0)", "", 200},
    {R"("priority":1)", "priority", 400},
    {R"("cache_salt":"pepper")", "", 200},
    {R"("cache_salt":"a/b")", "body.cache_salt", 400},
    {R"("request_id":"abc-1")", "", 200},
    {R"("request_id":"a\nb")", "body.request_id", 400},
    {R"("truncate_prompt_tokens":5)", "", 200},
    {R"("truncate_prompt_tokens":-1)", "", 200},
    {R"("truncate_prompt_tokens":-2)", "body.truncate_prompt_tokens", 400},
    {R"("return_token_ids":true,"echo":true,"user":"me","session_id":"s")", "", 200},
};

TEST_F(Endpoints, every_chat_field_is_checked) {
  for (const FieldCase& c : kChatFields)
    expect("/v1/chat/completions", fmt::format(R"({{"messages":[{{"role":"user","content":"Hi"}}],{}}})", c.fields),
           c.status, c.param, c.says);
}

TEST_F(Endpoints, prompts_that_are_none_are_refused) {
  const std::string long_text(5000, 'x');
  struct Case {
    std::string path, body, param;
    int status;
    const char* says = "";
  };
  const std::string deep(100'000, '['), bad_utf8 = "\xff\xc0";
  const Case cases[] = {
      {"/v1/chat/completions", "", "body", 400},
      {"/v1/chat/completions", "[]", "body", 400},
      {"/v1/chat/completions", "{", "body", 400},
      {"/v1/chat/completions", "{}", "body.messages", 400, "field required"},
      {"/v1/chat/completions", R"({"messages":null})", "body.messages", 400},
      {"/v1/chat/completions", R"({"messages":"hi"})", "body.messages", 400},
      {"/v1/chat/completions", R"({"messages":[]})", "messages", 400},
      {"/v1/chat/completions", R"({"messages":["hi"]})", "body.messages.0", 400},
      {"/v1/chat/completions", deep, "body", 400, "nested"},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + bad_utf8 + "\"}]}", "body", 400},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"\ud800"}]})", "body", 400},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + long_text + "\"}]}", "input_tokens", 400,
       "maximum context length is 4096 tokens"},
      {"/v1/completions", "{}", "body.prompt", 400},
      {"/v1/completions", R"({"prompt":""})", "prompt", 400},
      {"/v1/completions", R"({"prompt":[]})", "body.prompt", 400},
      {"/v1/completions", R"({"prompt":[[]]})", "prompt", 400},
      {"/v1/completions", R"({"prompt":[1,"a"]})", "body.prompt", 400},
      {"/v1/completions", R"({"prompt":["a",1]})", "body.prompt", 400},
      {"/v1/completions", R"({"prompt":[99999]})", "prompt", 400},
      {"/v1/completions", R"({"prompt":[-1]})", "prompt", 400},
      {"/v1/completions", R"({"prompt":[1.5]})", "body.prompt", 400},
      {"/v1/completions", R"({"prompt":{"a":1}})", "body.prompt", 400},
      {"/v1/completions", R"({"prompt":"a","suffix":"b"})", "suffix", 400},
      {"/v1/completions", R"({"prompt":"a","logprobs":21})", "logprobs", 400},
      {"/v1/completions", R"({"prompt":"a","logprobs":true})", "body.logprobs", 400},
      {"/v1/completions", R"({"prompt":"a","max_tokens":0})", "max_tokens", 400},
      {"/v1/completions", R"({"prompt":"a","max_tokens":0,"echo":true})", "", 200},
      {"/v1/completions", R"({"prompt":[[1,2],[3]],"n":2,"temperature":1})", "", 200},
      {"/v1/completions", R"({"prompt":["a","b"],"logprobs":0,"echo":true})", "", 200},
      {"/tokenize", "{}", "body.prompt", 400},
      {"/tokenize", R"({"prompt":5})", "body.prompt", 400},
      {"/tokenize", R"({"prompt":"abc","return_token_strs":true})", "", 200},
      {"/tokenize", R"({"messages":[{"role":"user","content":"Hi"}]})", "", 200},
      {"/tokenize", R"({"messages":[{"role":"wizard","content":"Hi"}]})", "messages", 400},
      {"/detokenize", R"({"tokens":[200]})", "", 200},
      {"/detokenize", R"({"tokens":[99999]})", "tokens", 400},
      {"/detokenize", R"({"tokens":"a"})", "body.tokens", 400},
      {"/detokenize", R"({"tokens":[-1]})", "body.tokens.0", 400},
  };
  for (const Case& c : cases) expect(c.path, c.body, c.status, c.param, c.says);
}

TEST_F(Endpoints, images_are_refused_with_their_number) {
  expect("/v1/chat/completions",
         R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}]})", 400,
         "messages", "At most 0 image(s) may be provided in one prompt.");
}

TEST_F(Endpoints, several_mistakes_are_told_at_once) {
  const HttpResult result =
      ask("/v1/chat/completions", R"({"messages":[],"n":"x","stream":1,"seed":1.5,"stop":5,"top_k":"y"})");
  const std::string body = std::get<HttpReply>(result).body;
  EXPECT_THAT(body, HasSubstr("5 validation errors:"));
  for (const char* field : {"body.n", "body.stream", "body.seed", "body.stop", "body.top_k"})
    EXPECT_THAT(body, HasSubstr(field));
}

TEST_F(Endpoints, bodies_too_large_to_handle_are_refused_quickly) {
  std::string messages = R"({"messages":[)", members = R"({"messages":[],"x":{)";
  for (int i = 0; i < 20'000; ++i) messages += R"({"role":"user"},)", members += fmt::format("\"k{}\":1,", i);
  expect("/v1/chat/completions", messages + "{}]}", 400, "body.messages", "at most 10000 messages");
  expect("/v1/chat/completions", members + R"("end":1}})", 400, "body", "more than 10000 members");
}

}  // namespace
}  // namespace nib
