#include "server/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "server/sse.h"
#include "server/testing/test_server.h"

namespace nib {
namespace {

// What clients have at the end, put together from a stream or read from one reply.
struct Seen {
  struct Choice {
    std::string content, reasoning, finish;
    std::map<int, std::array<std::string, 3>> calls;  // id, name, arguments
    Json logprobs = Json::array(), ids = Json::array(), stop_reason;
    bool operator==(const Choice&) const = default;
  };
  std::map<int, Choice> choices;
  Json usage, prompt_ids;
  bool operator==(const Seen&) const = default;
};

// What one sequence is made of: its tokens, and how it ends.
struct Script {
  std::vector<TokenId> ids;
  std::vector<std::string> stop;
  FinishReason finish = FinishReason::kLength;
  int min_tokens = 0;
  int stream_interval = 1;
  bool include_stop = false, hide_reasoning = false;
};

std::ostream& operator<<(std::ostream& out, const Script& s) {
  return out << "ids " << ::testing::PrintToString(s.ids) << " stop " << ::testing::PrintToString(s.stop) << " min "
             << s.min_tokens << " interval " << s.stream_interval;
}

enum class Cut { kOneByOne, kAllAtOnce, kRandom };

Logprobs logprobs_of(TokenId id, size_t at) { return {{id, -0.5f * static_cast<float>(at), 1}, {{id, -0.1f, 1}}}; }

// Of a chat, or of a raw completion, whose logprobs are lists by field.
void take_logprobs(Seen::Choice& c, const Json& logprobs) {
  if (logprobs.is_null()) return;
  if (logprobs.contains("content")) {
    for (const Json& l : logprobs["content"]) c.logprobs.push_back(l);
    return;
  }
  for (size_t i = 0; i < logprobs["tokens"].size(); ++i)
    c.logprobs.push_back({logprobs["tokens"][i], logprobs["token_logprobs"][i], logprobs["text_offset"][i]});
}

void take_delta(Seen::Choice& c, const Json& choice) {
  if (choice.contains("text")) c.content += choice["text"].get<std::string>();
  const Json delta = choice.value("delta", Json::object());
  c.content += delta.value("content", "");
  c.reasoning += delta.value("reasoning", "");
  for (const Json& call : delta.value("tool_calls", Json::array())) {
    auto& [id, name, arguments] = c.calls[call["index"]];
    id += call.value("id", "");
    name += call["function"].value("name", "");
    arguments += call["function"].value("arguments", "");
  }
}

Seen fold_stream(const std::string& frames) {
  Seen seen;
  SseReader reader;
  bool done = false;
  reader.push(frames, [&](std::string_view data) {
    EXPECT_FALSE(done) << "something follows [DONE]";
    done = data == "[DONE]";
    if (done) return true;
    const Json chunk = *parse_json(data);
    if (chunk.contains("usage")) seen.usage = chunk["usage"];
    if (chunk.contains("prompt_token_ids")) seen.prompt_ids = chunk["prompt_token_ids"];
    for (const Json& choice : chunk["choices"]) {
      Seen::Choice& c = seen.choices[choice["index"]];
      EXPECT_EQ(c.finish, "") << "something follows the finish_reason";
      take_delta(c, choice);
      take_logprobs(c, choice["logprobs"]);
      for (const Json& id : choice.value("token_ids", Json::array())) c.ids.push_back(id);
      if (choice["finish_reason"].is_string())
        c.finish = choice["finish_reason"], c.stop_reason = choice["stop_reason"];
    }
    return true;
  });
  EXPECT_TRUE(done);
  return seen;
}

Seen read_whole(const HttpReply& reply) {
  const Json json = *parse_json(reply.body);
  Seen seen;
  seen.usage = json["usage"];
  if (json.contains("prompt_token_ids")) seen.prompt_ids = json["prompt_token_ids"];
  for (const Json& choice : json["choices"]) {
    Seen::Choice& c = seen.choices[choice["index"]];
    const Json m = choice.value("message", Json::object());
    if (choice.contains("text")) c.content = choice["text"];
    if (m.contains("content") && m["content"].is_string()) c.content = m["content"];
    if (m.contains("reasoning") && m["reasoning"].is_string()) c.reasoning = m["reasoning"];
    int index = 0;
    for (const Json& call : m.value("tool_calls", Json::array()))
      c.calls[index++] = {call["id"], call["function"]["name"], call["function"]["arguments"]};
    take_logprobs(c, choice["logprobs"]);
    if (choice["token_ids"].is_array()) c.ids = choice["token_ids"];
    c.finish = choice["finish_reason"];
    c.stop_reason = choice["stop_reason"];
  }
  return seen;
}

class Answers : public ::testing::Test {
 protected:
  Answers() : model_(testing::script_model({})) {
    service_.config.served_model_names = {"script"};
    service_.tokenizer = model_.tokenizer;
    service_.format = model_.format;
    service_.engine = model_.engine.get();
  }

  AnswerPlan plan(bool stream, const std::vector<std::string>& stop) const {
    AnswerPlan p;
    p.options.model = std::string("script");
    p.options.request_id = std::string("1");
    p.options.stream = p.options.include_usage = stream;
    p.options.return_token_ids = true;
    p.options.stop = stop;
    p.options.sampling.n = 2;
    p.prompts.push_back({{USER, X, 100, E, M}, ""});
    p.with_logprobs = true;
    return p;
  }

  OutputParserOptions parser(const std::vector<std::string>& stop) const {
    OutputParserOptions o;
    o.stop = stop;
    o.call_id = [](int i) { return fmt::format("call-{}", i); };
    return o;
  }

  // The ids of each of the two sequences, in events cut at random and interleaved at random.
  void feed(Answer& answer, const std::vector<TokenId>& ids, FinishReason finish, std::mt19937& random,
            std::string& out) {
    size_t at[2] = {0, 0};
    bool ended[2] = {false, false};
    while (!ended[0] || !ended[1]) {
      const int k = static_cast<int>(random() % 2);
      if (ended[k]) continue;
      TokenEvent e;
      e.sequence = k;
      const size_t count = std::min<size_t>(1 + random() % 7, ids.size() - at[k]);
      for (size_t i = 0; i < count; ++i, ++at[k]) {
        e.tokens.push_back(ids[at[k]]);
        e.logprobs.push_back(logprobs_of(ids[at[k]], at[k]));
      }
      ended[k] = at[k] == ids.size();
      if (ended[k]) e.finish = finish;
      answer.take(0, e, out);
    }
  }

  // Tokens of every kind in any order, with stop strings that they are likely to spell.
  Script random_script(std::mt19937& random) const {
    const std::vector<std::vector<Piece>> parts = {{X, "ab "},
                                                   {X, "abc"},
                                                   {"hello aa b"},
                                                   {"c"},
                                                   {T, "a plan b"},
                                                   {E, M},
                                                   {E, M, "name"},
                                                   {J},
                                                   {E, S},
                                                   {R"({"name":"f","args":{"a":[1,"}"]}})"},
                                                   {"\xC3\xBC\xF0\x9F\x98\x80"},
                                                   {"ab"},
                                                   {OTHER},
                                                   {M, T, "  x  "},
                                                   {"  "}};
    Script s;
    for (size_t i = 0; i < 1 + random() % 8; ++i) {
      const std::vector<TokenId> ids = small_ids(*service_.tokenizer, parts[random() % parts.size()]);
      s.ids.insert(s.ids.end(), ids.begin(), ids.end());
    }
    const std::vector<std::string> stops = {"b", "bc", "lo a", "c", "plan", "na", "\xC3\xBC", "ab ab"};
    for (size_t i = random() % 3; i > 0; --i) s.stop.push_back(stops[random() % stops.size()]);
    s.finish = random() % 2 ? FinishReason::kStop : FinishReason::kLength;
    s.min_tokens = random() % 2 ? 0 : static_cast<int>(random() % 12);
    s.stream_interval = 1 + static_cast<int>(random() % 5);
    s.include_stop = random() % 4 == 0;
    s.hide_reasoning = random() % 4 == 0;
    return s;
  }

  std::unique_ptr<Answer> make_answer(bool chat, bool stream, const Script& s) const {
    AnswerPlan p = plan(stream, s.stop);
    p.options.sampling.n = 1;
    p.options.sampling.min_tokens = s.min_tokens;
    p.options.include_stop = s.include_stop;
    p.options.stream_interval = s.stream_interval;
    if (!chat) return std::make_unique<CompletionAnswer>(service_, std::move(p));
    p.visible_logprobs_only = s.hide_reasoning;
    OutputParserOptions o = parser(s.stop);
    o.min_tokens = s.min_tokens;
    o.include_stop_in_output = s.include_stop;
    o.hide_reasoning = s.hide_reasoning;
    return std::make_unique<ChatAnswer>(service_, std::move(p), std::move(o));
  }

  Seen run(bool chat, bool stream, const Script& s, Cut cut, std::mt19937& random) const {
    const std::unique_ptr<Answer> answer = make_answer(chat, stream, s);
    std::string frames;
    for (size_t at = 0; at < s.ids.size();) {
      const size_t most = cut == Cut::kOneByOne ? 1 : cut == Cut::kRandom ? 1 + random() % 16 : s.ids.size();
      TokenEvent e;
      for (; e.tokens.size() < most && at < s.ids.size(); ++at) {
        e.tokens.push_back(s.ids[at]);
        e.logprobs.push_back(logprobs_of(s.ids[at], at));
      }
      if (at == s.ids.size()) e.finish = s.finish;
      answer->take(0, e, frames);
    }
    EXPECT_TRUE(answer->done());
    EXPECT_TRUE(answer->sequence_done(0, 0));
    if (stream) answer->end_stream(frames);
    Seen seen = stream ? fold_stream(frames) : read_whole(answer->whole());
    seen.prompt_ids = nullptr;  // a raw completion says them with each choice
    return seen;
  }

  ServedModel model_;
  Service service_;
};

TEST_F(Answers, a_stream_folds_to_the_whole_however_the_tokens_are_cut) {
  struct Case {
    std::vector<Piece> pieces;
    std::vector<std::string> stop;
    FinishReason finish;
    const char *content, *reasoning, *finish_reason;
    int64_t tokens;  // of one choice
  };
  const Case cases[] = {
      {{X, "hello", E, S}, {}, FinishReason::kStop, "hello", "", "stop", 4},
      {{T, "a plan", E, M, X, "4", E, S}, {}, FinishReason::kStop, "4", "a plan", "stop", -1},
      {{T, "a plan"}, {}, FinishReason::kLength, "", "a plan", "length", -1},
      {{X, "one two three", E, S}, {"two"}, FinishReason::kStop, "one ", "", "stop", -1},
      {{X, "Z\xC3\xBCrich \xF0\x9F\x98\x80", E, S},
       {},
       FinishReason::kStop,
       "Z\xC3\xBCrich \xF0\x9F\x98\x80",
       "",
       "stop",
       -1},
      {{X, "see", E, M, "f", J, R"({"name":"f","args":{"a":[1,"}"]}})", E, M, J, R"({"name":"g","args":{}})", E, S},
       {},
       FinishReason::kStop,
       "see",
       "",
       "tool_calls",
       -1},
  };
  std::mt19937 random(7);
  for (const Case& c : cases) {
    const std::vector<TokenId> ids = small_ids(*service_.tokenizer, c.pieces);
    ChatAnswer whole(service_, plan(false, c.stop), parser(c.stop));
    std::string none;
    feed(whole, ids, c.finish, random, none);
    ASSERT_TRUE(whole.done());
    EXPECT_EQ(none, "");
    const Seen want = read_whole(whole.whole());
    EXPECT_EQ(want.choices.at(0).content, c.content);
    EXPECT_EQ(want.choices.at(1).reasoning, c.reasoning);
    EXPECT_EQ(want.choices.at(0).finish, c.finish_reason);
    EXPECT_EQ(want.choices.at(0).logprobs.size(), want.choices.at(0).ids.size());
    if (c.tokens > 0) {
      EXPECT_EQ(want.usage["completion_tokens"], 2 * c.tokens);
    }
    for (int round = 0; round < 20; ++round) {
      AnswerPlan p = plan(true, c.stop);
      p.options.stream_interval = 1 + round % 4;
      ChatAnswer stream(service_, std::move(p), parser(c.stop));
      std::string frames;
      feed(stream, ids, c.finish, random, frames);
      stream.end_stream(frames);
      const Seen seen = fold_stream(frames);
      EXPECT_EQ(seen.choices, want.choices) << frames;
      EXPECT_EQ(seen.usage, want.usage);
      EXPECT_EQ(seen.prompt_ids, want.prompt_ids);
    }
  }
}

// The same tokens one by one, all at once and cut at random: text, ids, logprobs, usage and ends are the same.
TEST_F(Answers, an_event_of_many_tokens_is_as_many_events_of_one) {
  std::mt19937 random(11);
  for (int round = 0; round < 400; ++round) {
    const Script script = random_script(random);
    for (const bool chat : {true, false}) {
      const Seen want = run(chat, false, script, Cut::kOneByOne, random);
      EXPECT_EQ(want.choices.at(0).ids.size(), want.usage["completion_tokens"].get<size_t>());
      for (const Cut cut : {Cut::kAllAtOnce, Cut::kRandom})
        EXPECT_EQ(run(chat, false, script, cut, random), want) << script;
      for (const Cut cut : {Cut::kOneByOne, Cut::kAllAtOnce, Cut::kRandom})
        EXPECT_EQ(run(chat, true, script, cut, random), want) << script << " streamed";
    }
  }
}

TEST_F(Answers, a_stop_string_in_text_that_was_held_back_ends_the_counts_too) {
  struct Case {
    std::vector<Piece> pieces;
    FinishReason finish;
    const char *content, *finish_reason;
    int64_t tokens;
  };
  const Case cases[] = {
      {{X, "wxyz", E, S}, FinishReason::kStop, "w", "stop", 3},  // it could be the name of a tool until it ends
      {{X, "wxyz"}, FinishReason::kLength, "w", "stop", 3},
      {{X, "wxyz "}, FinishReason::kLength, "w", "stop", 3},
      {{X, "wxyz", J, "{}", E, S}, FinishReason::kStop, "", "tool_calls", -1},  // a name, so no stop string
      {{X, "wx", E, M, X, "yx", E, S}, FinishReason::kStop, "w", "stop", 3},
  };
  std::mt19937 random(5);
  for (const Case& c : cases) {
    const Script script{small_ids(*service_.tokenizer, c.pieces), {"x"}, c.finish, 0};
    for (const bool stream : {false, true})
      for (const Cut cut : {Cut::kOneByOne, Cut::kAllAtOnce, Cut::kRandom}) {
        const Seen seen = run(true, stream, script, cut, random);
        EXPECT_EQ(seen.choices.at(0).content, c.content) << script;
        EXPECT_EQ(seen.choices.at(0).finish, c.finish_reason) << script;
        const int64_t tokens = c.tokens > 0 ? c.tokens : std::ssize(script.ids);
        EXPECT_EQ(seen.usage["completion_tokens"], tokens) << script;
        EXPECT_EQ(std::ssize(seen.choices.at(0).ids), tokens) << script;
        EXPECT_EQ(std::ssize(seen.choices.at(0).logprobs), tokens) << script;
      }
  }
}

TEST_F(Answers, usage_ends_with_the_token_that_completed_a_stop_string) {
  const std::vector<TokenId> ids = small_ids(*service_.tokenizer, {X, "x abcdef"});  // bytes: one token each
  AnswerPlan p = plan(false, {"cd"});
  p.options.sampling.n = 1;
  ChatAnswer answer(service_, std::move(p), parser({"cd"}));
  TokenEvent e;
  e.tokens = ids;
  std::string out;
  answer.take(0, e, out);
  EXPECT_TRUE(answer.done());
  EXPECT_TRUE(answer.sequence_done(0, 0));
  const Seen seen = read_whole(answer.whole());
  EXPECT_EQ(seen.choices.at(0).content, "x ab");
  EXPECT_EQ(seen.choices.at(0).stop_reason, "cd");
  EXPECT_EQ(seen.choices.at(0).ids.size(), 7u);  // content_text, x, space, a b c d
  EXPECT_EQ(seen.usage["completion_tokens"], 7);
}

TEST_F(Answers, drafts_are_counted_over_all_choices_when_speculation_is_on) {
  struct Event {
    int32_t sequence;
    std::vector<Piece> pieces;
    int64_t accepted, rejected;
    FinishReason finish;
  };
  const Event events[] = {{0, {X, "ab"}, 2, 5, FinishReason::kNone},
                          {1, {X}, 0, 7, FinishReason::kNone},
                          {0, {"cd"}, 1, 0, FinishReason::kLength},
                          {1, {"xyz"}, 3, 1, FinishReason::kLength}};
  for (const int64_t max_drafts : {0, 7}) {
    service_.config.max_drafts = max_drafts;
    ChatAnswer answer(service_, plan(false, {}), parser({}));
    std::string out;
    for (const Event& event : events) {
      TokenEvent e;
      e.sequence = event.sequence;
      e.tokens = small_ids(*service_.tokenizer, event.pieces);
      e.num_accepted_drafts = event.accepted;
      e.num_rejected_drafts = event.rejected;
      e.finish = event.finish;
      answer.take(0, e, out);
    }
    const Json details = read_whole(answer.whole()).usage["completion_tokens_details"];
    const Json want = {{"reasoning_tokens", 0}, {"accepted_prediction_tokens", 6}, {"rejected_prediction_tokens", 13}};
    EXPECT_EQ(details, max_drafts > 0 ? want : Json({{"reasoning_tokens", 0}}));
  }
}

TEST_F(Answers, hidden_reasoning_hides_its_logprobs_but_counts) {
  AnswerPlan p = plan(false, {});
  p.options.sampling.n = 1;
  p.visible_logprobs_only = true;
  OutputParserOptions options = parser({});
  options.hide_reasoning = true;
  ChatAnswer answer(service_, std::move(p), std::move(options));
  TokenEvent e;
  e.tokens = small_ids(*service_.tokenizer, {T, "h", E, M, X, "4", E, S});
  for (TokenId id : e.tokens) e.logprobs.push_back({{id, -1, 1}, {}});
  e.finish = FinishReason::kStop;
  std::string out;
  answer.take(0, e, out);
  const Seen seen = read_whole(answer.whole());
  EXPECT_EQ(seen.choices.at(0).reasoning, "");
  EXPECT_EQ(seen.choices.at(0).content, "4");
  ASSERT_EQ(seen.choices.at(0).logprobs.size(), 1u);
  EXPECT_EQ(seen.choices.at(0).logprobs[0]["token"], "4");
  EXPECT_EQ(seen.usage["completion_tokens"], 8);
  EXPECT_EQ(seen.usage["completion_tokens_details"]["reasoning_tokens"], 0);
}

TEST_F(Answers, raw_completions_echo_and_count_their_offsets) {
  AnswerPlan p = plan(false, {});
  p.options.sampling.n = 1;
  p.options.echo = true;
  p.prompts = {{small_ids(*service_.tokenizer, {"ab"}), "ab"}};
  CompletionAnswer answer(service_, std::move(p));
  TokenEvent e;
  e.tokens = small_ids(*service_.tokenizer, {"cd"});
  for (TokenId id : e.tokens) e.logprobs.push_back({{id, -1, 1}, {}});
  e.prompt_logprobs = {std::nullopt, Logprobs{{small_ids(*service_.tokenizer, {"b"})[0], -2, 1}, {}}};
  e.finish = FinishReason::kLength;
  std::string out;
  answer.take(0, e, out);
  const Json choice = (*parse_json(answer.whole().body))["choices"][0];
  EXPECT_EQ(choice["text"], "abcd");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json({"a", "b", "c", "d"}));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json({nullptr, -2.0, -1.0, -1.0}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json({0, 1, 2, 3}));
}

}  // namespace
}  // namespace nib
