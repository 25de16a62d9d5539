#include <gmock/gmock.h>

#include <fstream>
#include <random>

#include "cli/commands.h"
#include "text/small_tokenizer.h"

namespace nib::cli {
namespace {

namespace fs = std::filesystem;

// A folder with the small tokenizer, and the commands run on its files.
class DebugText : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("nib_debug_text_{}", std::random_device{}());
    fs::create_directories(folder_);
    write("tokenizer.json", small_tokenizer_json().dump());
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }

  struct Outcome {
    int code;
    std::string out, error;
  };
  Outcome run(std::vector<std::string> arguments) {
    CLI::App app;
    Exit exit;
    add_debug_text_commands(app, exit);
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    app.parse(arguments);
    std::fflush(stdout);
    const std::string out = testing::internal::GetCapturedStdout();
    return {exit.code, out, testing::internal::GetCapturedStderr()};
  }

  fs::path folder_;
};

TEST_F(DebugText, TokenizeAndDetokenizeAreInverse) {
  const std::string text = write("text", "hello <|end_message|>");
  const Outcome plain = run({"tokenize", "--tokenizer", folder_, "--text-file", text});
  const std::string ids = write("ids.json", plain.out);
  EXPECT_EQ(run({"detokenize", "--tokenizer", folder_, "--ids", ids}).out, "hello <|end_message|>");
  const Outcome special = run({"tokenize", "--tokenizer", folder_, "--text-file", text, "--allow-special"});
  EXPECT_EQ(Json::parse(special.out), Json({279, 275 - ' ', E}));
}

TEST_F(DebugText, RenderPrintsIdsAndText) {
  const std::string request = write("request.json", R"({"messages":[{"role":"user","content":"hello"}]})");
  const Json out = Json::parse(run({"render", "--model", folder_, "--request", request}).out);
  EXPECT_EQ(out["text"],
            "<|message_system|><|content_text|>Thinking effort level: 0.9<|end_message|>"
            "<|message_user|><|content_text|>hello<|end_message|><|message_model|>");
  EXPECT_EQ(out["ids"].back(), M);
}

TEST_F(DebugText, WhatWouldBe400Exits1WithThatMessage) {
  const std::string request = write("request.json", R"({"messages":[{"role":"robot"}]})");
  const Outcome outcome = run({"render", "--model", folder_, "--request", request});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.error, "messages[0]: unsupported Inkling message role \"robot\"\n");
}

TEST_F(DebugText, ParsePrintsTheMessage) {
  const auto ids = small_ids(*small_tokenizer(), {T, "a", E, M, "f", J, R"({"name":"f","args":{"k":1}})", E, S});
  const std::string file = write("ids.json", Json(ids).dump());
  EXPECT_EQ(Json::parse(run({"parse", "--model", folder_, "--ids", file}).out),
            Json::parse(R"({"reasoning":"a","content":null,
      "tool_calls":[{"id":"chatcmpl-tool-0","type":"function","function":{"name":"f","arguments":"{\"k\":1}"}}],
      "finish_reason":"tool_calls"})"));
  const std::string request = write("request.json", R"({"include_reasoning":false})");  // and no tools
  EXPECT_EQ(Json::parse(run({"parse", "--model", folder_, "--ids", file, "--request", request}).out),
            Json::parse(R"({"reasoning":null,"content":null,"tool_calls":null,"finish_reason":"stop"})"));
}

TEST_F(DebugText, CutStreamsEndInTheSameMessage) {
  const auto ids = small_ids(*small_tokenizer(), {T, "a plan", E, M, X, "hello hello", E});
  const std::string file = write("ids.json", Json(ids).dump());
  const Json whole = Json::parse(run({"parse", "--model", folder_, "--ids", file}).out);
  EXPECT_EQ(whole["finish_reason"], "length");
  for (const char* seed : {"1", "2", "3"}) {
    std::istringstream lines(run({"parse", "--model", folder_, "--ids", file, "--cuts", "4", "--seed", seed}).out);
    std::string reasoning, content;
    Json line;
    for (std::string text; std::getline(lines, text);) {
      line = Json::parse(text);
      if (!line.contains("delta")) continue;
      reasoning += line["delta"].value("reasoning", "");
      content += line["delta"].value("content", "");
    }
    EXPECT_EQ(line["message"], whole);
    EXPECT_EQ(whole["reasoning"], reasoning);
    EXPECT_EQ(whole["content"], content);
  }
}

TEST_F(DebugText, AnEndTokenOfTheConfigEndsTheAnswerToo) {
  write("config.json", R"({"eos_token_id":[15]})");
  const std::string file = write("ids.json", Json(small_ids(*small_tokenizer(), {X, "a", OTHER, "b"})).dump());
  const Json out = Json::parse(run({"parse", "--model", folder_, "--ids", file}).out);
  EXPECT_EQ(out["content"], "a");
  EXPECT_EQ(out["finish_reason"], "stop");
}

TEST_F(DebugText, WrongFilesExit1WithOneSentence) {
  struct Case {
    const char *content, *want;
  };
  const Case cases[] = {{"{", "invalid JSON"},
                        {"{}", "expected a JSON array of token ids"},
                        {"[1.5]", "element 0 is 1.5"},
                        {"[-1]", "element 0 is -1"},
                        {"[1, 4000000000]", "element 1 is 4000000000"}};
  for (const Case& c : cases) {
    const Outcome outcome = run({"parse", "--model", folder_, "--ids", write("ids.json", c.content)});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.error, testing::HasSubstr(c.want));
  }
  EXPECT_EQ(run({"detokenize", "--tokenizer", folder_, "--ids", write("ids.json", "[100000]")}).code, 1);
}

}  // namespace
}  // namespace nib::cli
