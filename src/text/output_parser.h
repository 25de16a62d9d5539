// One state machine over sampled ids that yields reasoning, content and tool calls, for streams and whole answers
// alike: however the ids are cut, the deltas fold into the same message.
//   OutputParser parser(tokenizer, format, options, prompt_ids);
//   for (const Delta& d : parser.push(ids)) send(d);
//   for (const Delta& d : parser.finish(FinishCause::kStop)) send(d);
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/chat_format.h"
#include "text/message.h"
#include "text/stop_matcher.h"
#include "text/tool_call_scanner.h"
#include "text/utf8.h"

namespace nib {

enum class FinishCause { kStop, kLength, kAbort };

struct OutputParserOptions {
  // Names of the declared tools. Empty: calls are swallowed. Nothing: unknown, every call is surfaced.
  std::optional<std::vector<std::string>> tools = {};
  bool tool_choice_none = false;       // calls are swallowed
  bool parallel_tool_calls = true;     // false: only the first call is surfaced
  bool parse_reasoning = true;         // false (--reasoning-parser none): reasoning is content, without markers
  bool include_reasoning = true;       // false: reasoning is counted but not shown
  bool hide_reasoning = false;         // --none-effort-policy hide at effort 0: neither shown nor counted
  std::vector<std::string> stop = {};  // stop strings, matched within one block of reasoning or content
  bool include_stop_in_output = false;
  int min_tokens = 0;  // a stop string completed by one of the first min_tokens ids is no match
  std::function<std::string(int)> call_id = {};  // index -> id; default "chatcmpl-tool-<index>"
};

// The options that a request asks for: tools, tool_choice, parallel_tool_calls, include_reasoning, stop,
// include_stop_str_in_output, min_tokens. Wrong values are an invalid_param.
Result<OutputParserOptions> parser_options(const Json& request);

// REQUIRES: tokenizer and format outlive the parser. One thread at a time.
class OutputParser {
 public:
  // prompt_tail: the end of the prompt (or all of it); its last control token decides the state to start in.
  OutputParser(const Tokenizer& tokenizer, const ChatFormat& format, OutputParserOptions options,
               std::span<const TokenId> prompt_tail);

  // Each delta is of one kind. After a stop string further ids are ignored: see stopped().
  std::vector<Delta> push(std::span<const TokenId> ids);
  // The end of the turn: releases held text. Call once.
  std::vector<Delta> finish(FinishCause cause);

  std::optional<std::string> stopped() const;  // the stop string that ended the text
  // Ids that belong to the answer whatever follows: up to the one that completed a stop string; and while text is held
  // back, those before it, as a stop string may still be found in it.
  int num_tokens_settled() const;
  int num_reasoning_tokens() const;
  bool in_reasoning() const { return state_ == State::kThink; }  // after the last id
  bool any_tool_call() const { return num_good_calls_ > 0; }
  int num_tool_parse_errors() const { return num_errors_; }
  int num_swallowed_calls() const { return num_swallowed_; }  // no tools, tool_choice none, or not parallel

 private:
  enum class State { kIdle, kHeader, kText, kThink, kTool };
  // Text whose meaning the next control token decides, and the token that completed it.
  struct Held {
    std::string text;
    int token_number;
  };

  static State state_after(const ChatFormat& format, std::span<const TokenId> prompt, const Tokenizer& tokenizer);
  std::optional<State> next_state(TokenId control) const;
  bool ends_block(TokenId control) const;
  void take(TokenId id);
  void take_control(TokenId id);
  void leave_block(State next, bool ended);
  void enter_block(State next);

  void take_text(const std::string& text);
  void hold_name(const std::string& text);
  void release_held();
  void show(const std::string& text);
  void show_reasoning(const std::string& text);
  void show_content(const std::string& text);
  void add_content(const std::string& text);

  void open_call();
  void close_call(bool keep_partial);
  void take_events(const std::vector<ToolCallEvent>& events);
  void add_arguments(const std::string& text);
  std::string fallback_name() const;

  const Tokenizer& tokenizer_;
  const ChatFormat& format_;
  const OutputParserOptions options_;
  State state_;
  Utf8Repair repair_;
  StopMatcher stops_;
  int num_tokens_ = 0, num_reasoning_ = 0;

  std::vector<Held> held_;
  size_t held_bytes_ = 0;
  bool may_be_name_ = false;     // all text of the block so far is held, it could be the name of a tool
  std::string reasoning_space_;  // whitespace at the end of the reasoning so far, dropped when its block ends
  std::string content_space_;    // whitespace before all other content, dropped when a call comes first
  bool content_begun_ = false;

  std::optional<ToolCallScanner> call_;
  std::string header_name_;
  bool call_begun_ = false;  // its name was given
  int num_calls_ = 0, num_good_calls_ = 0, num_errors_ = 0, num_swallowed_ = 0;

  std::vector<Delta> out_;
};

// OpenAI's finish_reason for an answer that ended so.
std::string_view finish_reason(FinishCause cause, bool any_tool_call);

}  // namespace nib
