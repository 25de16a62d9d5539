#include "text/output_parser.h"

#include <gmock/gmock.h>

#include <random>

#include "text/small_tokenizer.h"

namespace nib {
namespace {

using testing::ElementsAre;

// What a case expects of a message; an empty text is null, calls are "name(arguments)".
struct Want {
  std::string reasoning, content;
  std::vector<std::string> calls;
  bool operator==(const Want&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Want& w) {
  out << "reasoning \"" << w.reasoning << "\" content \"" << w.content << "\" calls";
  for (const std::string& call : w.calls) out << " " << call;
  return out;
}

struct Answer {
  Want want;
  std::string finish_reason;
  int num_reasoning, num_consumed, num_errors;
  std::vector<Delta> deltas;
};

const OutputParserOptions kTools = {.tools = {{"f", "bash", "get_weather"}}};
const OutputParserOptions kNoTools = {.tools = {{}}};

class Parser : public testing::Test {
 protected:
  // Cuts the ids at random (no seed: not at all). The turn ended by length unless it holds S.
  Answer parse(const std::vector<Piece>& said, const OutputParserOptions& options, uint64_t seed = 0,
               std::vector<TokenId> prompt = {M}) const {
    const std::vector<TokenId> ids = small_ids(*tokenizer_, said);
    OutputParser parser(*tokenizer_, format_, options, prompt);
    Answer answer;
    const auto take = [&](std::vector<Delta> deltas) {
      for (Delta& delta : deltas) answer.deltas.push_back(std::move(delta));
    };
    std::mt19937_64 random(seed);
    for (size_t at = 0, n = 0; at < ids.size(); at += n) {
      n = seed == 0 ? ids.size() : std::min<size_t>(random() % 9, ids.size() - at);
      take(parser.push(std::span(ids).subspan(at, n)));
    }
    const bool stop = parser.stopped() || std::find(ids.begin(), ids.end(), S) != ids.end();
    const FinishCause cause = stop ? FinishCause::kStop : FinishCause::kLength;
    take(parser.finish(cause));
    const Message message = fold(answer.deltas);
    answer.want = {message.reasoning.value_or(""), message.content.value_or(""), {}};
    for (const ToolCall& call : message.tool_calls) answer.want.calls.push_back(call.name + "(" + call.arguments + ")");
    answer.finish_reason = finish_reason(cause, parser.any_tool_call());
    answer.num_reasoning = parser.num_reasoning_tokens();
    answer.num_consumed = parser.num_tokens_settled();
    answer.num_errors = parser.num_tool_parse_errors();
    return answer;
  }

  std::shared_ptr<const Tokenizer> tokenizer_ = small_tokenizer();
  ChatFormat format_ = *ChatFormat::resolve(*tokenizer_, /*vision=*/false);
};

struct Case {
  const char* name;
  std::vector<Piece> said;
  Want want;
  const char* finish_reason;
  OutputParserOptions options = kTools;
};

const std::string kLs = R"({"name":"ls","args":{"p":"."}})";

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"E7",
       {T, "I should check.", E, M, X, "Let me check.", E, M, "get_weather", J,
        R"({"name":"get_weather","args":{"city":"SF"}})", E, S},
       {"I should check.", "Let me check.", {R"(get_weather({"city":"SF"}))"}},
       "tool_calls"},
      {"T1 cut", {"hello world"}, {"", "hello world", {}}, "length"},
      {"T1 closed", {"hello world", E, S}, {"", "hello world", {}}, "stop"},
      {"T2", {X, "hello", E}, {"", "hello", {}}, "length"},
      {"T3", {J, R"({"name":"f","args":{}})", E, S}, {"", "", {"f({})"}}, "tool_calls"},
      {"T4",
       {"get_weather", J, R"({"name":"get_weather","args":{}})", E, S},
       {"", "", {"get_weather({})"}},
       "tool_calls"},
      {"T5",
       {X, "let me check", E, M, J, R"({"name":"f","args":{}})", E, S},
       {"", "let me check", {"f({})"}},
       "tool_calls"},
      {"T6", {T, "plan", E, M, J, R"({"name":"f","args":{}})", E, S}, {"plan", "", {"f({})"}}, "tool_calls"},
      {"T7", {J, R"({"name":"f","args":{}})", E, M, X, "done", E, S}, {"", "done", {"f({})"}}, "tool_calls"},
      {"T8",
       {J, R"({"name":"f","args":{}})", E, M, "g", J, R"({"name":"g","args":{"x":[1,2]}})", E, M, X, "both", E, S},
       {"", "both", {"f({})", R"(g({"x":[1,2]}))"}},
       "tool_calls"},
      {"T9",
       {J, R"({"name":"f","args":{"s":"a}b","l":[[{}]]}})", E, S},
       {"", "", {R"(f({"s":"a}b","l":[[{}]]}))"}},
       "tool_calls"},
      {"T10", {J, R"({"name":"args","args":{"k":1}})", E, S}, {"", "", {R"(args({"k":1}))"}}, "tool_calls"},
      {"T11", {J, R"({ "name" : "x" , "args" : {"a": 1} })", E, S}, {"", "", {R"(x({"a": 1}))"}}, "tool_calls"},
      {"T12", {J, R"({"name":"f","args":{}})", S}, {"", "", {"f({})"}}, "tool_calls"},
      {"T13",
       {J, R"({"name":"f","args":{}})", "write", J, R"({"name":"write","args":{}})", E, S},
       {"", "", {"f({})", "write({})"}},
       "tool_calls"},
      {"T14", {X, "bash", J, R"({"name":"bash","args":{}})", E, S}, {"", "", {"bash({})"}}, "tool_calls"},
      {"T14 after E",
       {X, "a b", E, "bash", J, R"({"name":"bash","args":{}})", E, S},
       {"", "a b", {"bash({})"}},
       "tool_calls"},
      {"T14 not a name",
       {X, "bash it", J, R"({"name":"bash","args":{}})", E, S},
       {"", "bash it", {"bash({})"}},
       "tool_calls"},
      {"T15", {J, R"({&quot;name&quot;:&quot;f&quot;,&quot;args&quot;:{}})", E, S}, {"", "", {"f({})"}}, "tool_calls"},
      {"T16", {T, "one", E, M, X, "mid", E, M, T, "two", E, S}, {"onetwo", "mid", {}}, "stop"},
      {"T17",
       {X, "the token <|content_text|> opens text<|end_message|>", E, S},
       {"", "the token <|content_text|> opens text<|end_message|>", {}},
       "stop"},
      {"T18 length", {J, R"({"name":"d","args":{"k":"v")"}, {"", "", {R"(d({"k":"v"))"}}, "length"},
      {"T18 name only", {J, R"({"name":"d")"}, {"", "", {"d()"}}, "length"},
      {"T18 no name yet", {J, R"({"name":"d)"}, {"", "", {}}, "length"},
      {"T18 stop", {J, R"({"name":"d","args":{"k":"v")", E, S}, {"", "", {}}, "stop"},
      {"T19",
       {X, "no", E, M, J, R"({"name":"f","args":{}})", E, S},
       {"", "no", {}},
       "stop",
       {.tools = {{"f"}}, .tool_choice_none = true}},
      {"T20", {TOOL_TEXT, "raw", E, M, TOOL_ERROR, " error", E, S}, {"", "raw error", {}}, "stop"},
      {"T22",
       {J, R"({"name":"a<|b","args":{}})", E, M, J, R"({"name":"f","args":{}})", E, S},
       {"", "", {"f({})"}},
       "tool_calls"},
      {"I1",
       {T, "plan", E, M, X, "Let me look.", E, M, "ls", J, kLs, E, S},
       {"plan", "Let me look.", {R"(ls({"p":"."}))"}},
       "tool_calls"},
      {"I3", {X, "I will ask you first.", E, S}, {"", "I will ask you first.", {}}, "stop"},
      {"I4", {T, "endless thought"}, {"endless thought", "", {}}, "length"},
      {"I5",
       {T, "loop", E, M, T, "loop", E, M, J, R"({"name":"f","args":{}})", E, S},
       {"looploop", "", {"f({})"}},
       "tool_calls"},
      {"I6", {T, "hm", E, M, X, "4", E, S}, {"", "4", {}}, "stop", {.tools = {{}}, .hide_reasoning = true}},
      {"P1", {"get_weather {\"city\":1}", E, S}, {"", "get_weather {\"city\":1}", {}}, "stop"},
      {"P2", {T, "plan", J, R"({"name":"f","args":{}})", E, S}, {"plan", "", {"f({})"}}, "tool_calls"},
      {"recover a missing close", {T, "a", X, "b", M, T, "c", M, X, "d", E, S}, {"ac", "bd", {}}, "stop"},
      {"header is dropped by a kind",
       {"author", X, "a", E, M, "author", T, "b", E, M, "x", M, X, "c", E, S},
       {"b", "ac", {}},
       "stop"},
      {"text between blocks", {X, "a ", E, "b c", E, S}, {"", "a b c", {}}, "stop"},
      {"other control tokens are no text", {X, "a", OTHER, "b", USER, "c", E, S}, {"", "abc", {}}, "stop"},
      {"end of text ends a block", {"hello", EOT}, {"", "hello", {}}, "length"},
      {"reasoning loses its trailing space",
       {T, "a \n", E, M, T, " b\n\n", E, M, X, "c \n", E, S},
       {"a b", "c \n", {}},
       "stop"},
      {"reasoning keeps its inner space", {T, "a\n\n", T, "b", E, S}, {"a\n\nb", "", {}}, "stop"},
      {"space before a call is dropped",
       {X, "\n\n", E, M, J, R"({"name":"f","args":{}})", E, S},
       {"", "", {"f({})"}},
       "tool_calls"},
      {"space before text is kept", {X, "\n\n", E, M, X, "a", E, S}, {"", "\n\na", {}}, "stop"},
      {"space alone is kept", {X, "\n\n", E, S}, {"", "\n\n", {}}, "stop"},
      {"arguments that are no object", {J, R"({"name":"f","args":[1]})", E, M, X, "a", E, S}, {"", "a", {}}, "stop"},
      {"the header's name", {"f", J, R"({"args":{"k":1}})", E, S}, {"", "", {R"(f({"k":1}))"}}, "tool_calls"},
      {"the header's name, not declared", {"g", J, R"({"args":{"k":1}})", E, S}, {"", "", {}}, "stop"},
      {"the other order", {J, R"({"args":{"k":1},"name":"f"})", E, S}, {"", "", {R"(f({"k":1}))"}}, "tool_calls"},
      {"a name that is not declared", {J, R"({"name":"q","args":{}})", E, S}, {"", "", {"q({})"}}, "tool_calls"},
      {"no tools", {X, "a", E, M, J, R"({"name":"f","args":{}})", E, S}, {"", "a", {}}, "stop", kNoTools},
      {"unknown tools", {J, R"({"name":"f","args":{}})", E, S}, {"", "", {"f({})"}}, "tool_calls", {}},
      {"not parallel",
       {J, R"({"name":"f","args":{}})", E, M, J, R"({"name":"g","args":{}})", E, S},
       {"", "", {"f({})"}},
       "tool_calls",
       {.tools = {{"f"}}, .parallel_tool_calls = false}},
      {"reasoning left out", {T, "a", E, M, X, "b", E, S}, {"", "b", {}}, "stop", {.include_reasoning = false}},
      {"reasoning not parsed", {T, "a ", E, M, X, "b", E, S}, {"", "a b", {}}, "stop", {.parse_reasoning = false}},
      {"stop in content",
       {T, "go END", E, M, X, "one END two", E, S},
       {"go END", "one ", {}},
       "stop",
       {.stop = {"END two"}}},
      {"stop in reasoning", {T, "go END", E, M, X, "one", E, S}, {"go", "", {}}, "stop", {.stop = {"END"}}},
      {"stop kept",
       {X, "one END two", E, S},
       {"", "one END", {}},
       "stop",
       {.stop = {"END"}, .include_stop_in_output = true}},
      {"stop in a bare answer", {"one END two", E, S}, {"", "one ", {}}, "stop", {.stop = {"END"}}},
      {"no stop in a header",
       {"END", J, R"({"name":"f","args":{"k":"END"}})", E, S},
       {"", "", {R"(f({"k":"END"}))"}},
       "tool_calls",
       {.tools = {{"f"}}, .stop = {"END"}}},
      {"no stop across blocks", {X, "a E", E, M, X, "ND", E, S}, {"", "a END", {}}, "stop", {.stop = {"END"}}},
      {"nothing", {}, {"", "", {}}, "length"},
      {"nothing but the end", {S}, {"", "", {}}, "stop"},
  };
  return kCases;
}

TEST_F(Parser, UnderstandsEveryTurn) {
  for (const Case& c : cases()) {
    const Answer answer = parse(c.said, c.options);
    EXPECT_EQ(answer.want, c.want) << c.name;
    EXPECT_EQ(answer.finish_reason, c.finish_reason) << c.name;
  }
}

TEST_F(Parser, CutsDoNotMatter) {  // T21
  for (const Case& c : cases()) {
    const Answer whole = parse(c.said, c.options);
    for (uint64_t seed = 1; seed <= 50; ++seed) {
      const Answer cut = parse(c.said, c.options, seed);
      EXPECT_EQ(cut.want, whole.want) << c.name;
      EXPECT_EQ(cut.finish_reason, whole.finish_reason) << c.name;
      EXPECT_EQ(cut.num_reasoning, whole.num_reasoning) << c.name;
      EXPECT_EQ(cut.num_consumed, whole.num_consumed) << c.name;
    }
  }
}

TEST_F(Parser, CutsDoNotMatterForNonsenseEither) {
  std::mt19937_64 random(11);
  const std::vector<std::string> texts = {
      "a", " ", "\n", "{\"name\":\"f\",\"args\":{", "}}", "\"", "bash", "&quot;", "\u4f60", "<|", "END", "\\"};
  for (int round = 0; round < 3000; ++round) {
    std::vector<Piece> said;
    for (size_t n = random() % 20; n > 0; --n) {
      if (random() % 2 == 0)
        said.push_back(Control(random() % 16));
      else
        said.push_back(texts[random() % texts.size()]);
    }
    OutputParserOptions options = kTools;
    if (random() % 2 == 0) options.stop = {"END", "a "};
    if (random() % 4 == 0) options.parallel_tool_calls = false;
    const Answer whole = parse(said, options), cut = parse(said, options, 1 + random() % 1000);
    ASSERT_EQ(cut.want, whole.want) << tokenizer_->decode(small_ids(*tokenizer_, said), false);
    ASSERT_EQ(cut.num_consumed, whole.num_consumed);
    for (const std::string& text : {whole.want.reasoning, whole.want.content})
      for (const std::string& control : small_control_tokens()) ASSERT_EQ(text.find(control), std::string::npos);
  }
}

TEST_F(Parser, EachDeltaIsOfOneKind) {
  for (const Case& c : cases())
    for (const Delta& d : parse(c.said, c.options).deltas)
      EXPECT_EQ(int(!d.reasoning.empty()) + int(!d.content.empty()) + int(!d.tool_calls.empty()), 1) << c.name;
}

TEST_F(Parser, TextStreamsTokenByToken) {  // I2
  OutputParser parser(*tokenizer_, format_, kNoTools, std::vector<TokenId>{M});
  const auto push = [&](const std::vector<Piece>& said) { return parser.push(small_ids(*tokenizer_, said)); };
  EXPECT_EQ(push({T, "a"})[0].reasoning, "a");
  EXPECT_EQ(push({"b", E, M})[0].reasoning, "b");
  EXPECT_EQ(push({X, "o"})[0].content, "o");
  EXPECT_EQ(push({"k", E, S})[0].content, "k");
  EXPECT_TRUE(parser.finish(FinishCause::kStop).empty());
}

TEST_F(Parser, ACallStreamsItsNameThenItsArguments) {
  OutputParser parser(*tokenizer_, format_, kTools, std::vector<TokenId>{M});
  const auto push = [&](const std::vector<Piece>& said) { return parser.push(small_ids(*tokenizer_, said)); };
  const auto start = push({X, "Hi.", E, M, "get_weather", J, R"({"name":"get_weather","args":)"});
  ASSERT_EQ(start.size(), 2u);
  EXPECT_EQ(start[0].content, "Hi.");
  EXPECT_EQ(start[1].tool_calls[0].name, "get_weather");
  EXPECT_EQ(start[1].tool_calls[0].id, "chatcmpl-tool-0");
  EXPECT_EQ(start[1].tool_calls[0].arguments, "");
  for (const char* fragment : {R"({"city":)", R"("SF")"}) {
    const auto deltas = push({fragment});
    ASSERT_EQ(deltas.size(), 1u);
    EXPECT_EQ(deltas[0].tool_calls[0].arguments, fragment);
    EXPECT_EQ(deltas[0].tool_calls[0].id, "");
  }
  EXPECT_EQ(push({"}}", E})[0].tool_calls[0].arguments, "}");
}

TEST_F(Parser, TheEndOfThePromptDecidesWhereItStarts) {
  const std::vector<Piece> said = {"a b", E, S};
  EXPECT_EQ(parse(said, kTools, 0, {USER, X, E, M, T}).want.reasoning, "a b");
  EXPECT_EQ(parse(said, kTools, 0, {M, T, E, M, X, 200}).want.content, "a b");
  EXPECT_EQ(parse(said, kTools, 0, {E}).want.content, "a b");
  EXPECT_EQ(parse(said, kTools, 0, {}).want.content, "a b");
}

TEST_F(Parser, CountsReasoningWithoutItsMarkers) {
  EXPECT_EQ(parse({T, "abc", E, M, X, "d", E, S}, kTools).num_reasoning, 3);
  EXPECT_EQ(parse({"bc", E, S}, kTools, 0, {M, T}).num_reasoning, 2);
  EXPECT_EQ(parse({T, "abc", E, S}, {.hide_reasoning = true}).num_reasoning, 0);
  EXPECT_EQ(parse({T, "abc", E, S}, {.include_reasoning = false}).num_reasoning, 3);
  EXPECT_EQ(parse({T, "hm", E, M, X, "4", E, S}, {.hide_reasoning = true}).num_consumed, 9);  // "hm" is two tokens here
}

TEST_F(Parser, UsageEndsAtTheTokenThatCompletedTheStopString) {
  EXPECT_EQ(parse({X, "abEND", "cd", E, S}, {.stop = {"END"}}).num_consumed, 6);
  EXPECT_EQ(parse({X, "END", " cd", E, S}, {.stop = {"END"}}).num_consumed, 4);  // held as a possible name until " "
  EXPECT_EQ(parse({"abENDcd", E, S}, {.stop = {"END"}}).num_consumed, 5);        // held as a header until E
  EXPECT_EQ(parse({X, "aEND bEND", E, S}, {.stop = {"END"}, .min_tokens = 5}).num_consumed, 10);
}

TEST_F(Parser, BrokenCallsAreCountedAndRetracted) {
  const Answer answer = parse({J, R"({"name":"f","args":[1]})", E, M, J, R"({"name":"f","args":{}})", E, S}, kTools);
  EXPECT_EQ(answer.num_errors, 1);
  EXPECT_EQ(answer.want.calls, std::vector<std::string>({"f({})"}));
  EXPECT_TRUE(answer.deltas[1].tool_calls[0].retracted);
  EXPECT_EQ(answer.deltas[2].tool_calls[0].index, 1);
}

TEST_F(Parser, InvalidBytesBecomeReplacementCharacters) {
  OutputParser parser(*tokenizer_, format_, kTools, std::vector<TokenId>{M});
  const TokenId first_of_three = 275 - 0xE4;
  const auto deltas = parser.push(std::vector<TokenId>{X, first_of_three, E, 1000000, -5});
  ASSERT_EQ(deltas.size(), 1u);
  EXPECT_EQ(deltas[0].content, "\uFFFD");
}

TEST(ParserOptions, ComeFromTheRequest) {
  const OutputParserOptions o = *parser_options(Json::parse(
      R"({"tools":[{"function":{"name":"f"}}],"tool_choice":"none","parallel_tool_calls":false,"include_reasoning":false,
          "stop":"a","include_stop_str_in_output":true,"min_tokens":3})"));
  EXPECT_THAT(*o.tools, ElementsAre("f"));
  EXPECT_TRUE(o.tool_choice_none);
  EXPECT_FALSE(o.parallel_tool_calls);
  EXPECT_FALSE(o.include_reasoning);
  EXPECT_THAT(o.stop, ElementsAre("a"));
  EXPECT_TRUE(o.include_stop_in_output);
  EXPECT_EQ(o.min_tokens, 3);
  EXPECT_TRUE(parser_options(Json::object())->tools->empty());
}

TEST(ParserOptions, WrongValuesNameTheField) {
  struct Case {
    const char *request, *param;
  };
  const Case cases[] = {{R"({"stop":""})", "stop"},
                        {R"({"stop":["a",""]})", "stop"},
                        {R"({"stop":7})", "stop"},
                        {R"({"min_tokens":-1})", "min_tokens"},
                        {R"({"parallel_tool_calls":"yes"})", "parallel_tool_calls"},
                        {R"({"tools":[]})", "tools"}};
  for (const Case& c : cases) EXPECT_EQ(parser_options(Json::parse(c.request)).status().param(), c.param) << c.request;
}

}  // namespace
}  // namespace nib
