#include "text/output_parser.h"

#include <algorithm>
#include <utility>

namespace nib {

namespace {

constexpr size_t kMaxNameBytes = 64;
constexpr std::string_view kSpace = " \t\n\r\f\v";

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
}

bool all_name_chars(std::string_view text) { return std::all_of(text.begin(), text.end(), is_name_char); }

// A parser without tools holds back nothing for their sake.
bool calls_are_likely(const OutputParserOptions& options) { return !options.tools || !options.tools->empty(); }

}  // namespace

OutputParser::OutputParser(const Tokenizer& tokenizer, const ChatFormat& format, OutputParserOptions options,
                           std::span<const TokenId> prompt_tail)
    : tokenizer_(tokenizer),
      format_(format),
      options_(std::move(options)),
      state_(state_after(format, prompt_tail, tokenizer)),
      stops_(options_.stop, options_.include_stop_in_output, options_.min_tokens) {}

// The last control token of the prompt decides.
OutputParser::State OutputParser::state_after(const ChatFormat& format, std::span<const TokenId> prompt,
                                              const Tokenizer& tokenizer) {
  const auto last = std::find_if(prompt.rbegin(), prompt.rend(), [&](TokenId id) { return tokenizer.is_special(id); });
  if (last == prompt.rend()) return State::kIdle;
  if (*last == format.content_thinking) return State::kThink;
  if (*last == format.content_text) return State::kText;
  return *last == format.message_model ? State::kHeader : State::kIdle;
}

std::vector<Delta> OutputParser::push(std::span<const TokenId> ids) {
  for (TokenId id : ids) take(id);
  return std::exchange(out_, {});
}

std::vector<Delta> OutputParser::finish(FinishCause cause) {
  take_text(repair_.finish());
  if (state_ == State::kTool) close_call(/*keep_partial=*/cause != FinishCause::kStop);
  release_held();
  show(stops_.flush());
  if (!content_begun_) add_content(std::exchange(content_space_, {}));
  return std::exchange(out_, {});
}

void OutputParser::take(TokenId id) {
  if (stops_.match()) return;
  ++num_tokens_;
  if (tokenizer_.is_special(id)) return take_control(id);
  if (state_ == State::kThink) ++num_reasoning_;
  take_text(repair_.push(tokenizer_.bytes(id)));
}

bool OutputParser::ends_block(TokenId id) const {
  return id == format_.end_message || id == format_.end_sampling || id == format_.end_of_text;
}

std::optional<OutputParser::State> OutputParser::next_state(TokenId id) const {
  if (ends_block(id)) return State::kIdle;
  if (id == format_.message_model) return State::kHeader;
  if (id == format_.content_thinking) return State::kThink;
  if (id == format_.content_invoke_tool_json) return State::kTool;
  if (id == format_.content_text || id == format_.content_invoke_tool_text || id == format_.content_tool_error)
    return State::kText;
  return {};
}

void OutputParser::take_control(TokenId id) {
  const std::optional<State> next = next_state(id);
  if (!next) {  // no meaning in an answer: no text either
    if (state_ == State::kThink) ++num_reasoning_;
    return;
  }
  take_text(repair_.finish());
  if (state_ == State::kThink && *next == State::kThink) return;
  leave_block(*next, ends_block(id));
  if (!stops_.match()) enter_block(*next);
}

// A header is content if nothing but the end follows. A run of name characters that a call follows was its name.
void OutputParser::leave_block(State next, bool ended) {
  if (state_ == State::kTool) close_call(/*keep_partial=*/false);
  header_name_.clear();
  if (next == State::kTool)
    for (const Held& held : held_) header_name_ += held.text;
  if (next == State::kTool || (state_ == State::kHeader && !ended))
    held_.clear();
  else
    release_held();
  show(stops_.flush());
  reasoning_space_.clear();
}

void OutputParser::enter_block(State next) {
  state_ = next;
  held_bytes_ = 0;
  may_be_name_ = (next == State::kIdle || next == State::kText) && calls_are_likely(options_);
  if (next == State::kTool) open_call();
}

void OutputParser::take_text(const std::string& text) {
  if (text.empty()) return;
  if (state_ == State::kTool) {
    if (call_) take_events(call_->push(text));
  } else if (state_ == State::kHeader) {
    held_.push_back({text, num_tokens_});
  } else if (may_be_name_) {
    hold_name(text);
  } else {
    show(stops_.push(text, num_tokens_));
  }
}

void OutputParser::hold_name(const std::string& text) {
  held_.push_back({text, num_tokens_});
  held_bytes_ += text.size();
  if (held_bytes_ > kMaxNameBytes || !all_name_chars(text)) release_held();
}

void OutputParser::release_held() {
  may_be_name_ = false;
  for (const Held& held : std::exchange(held_, {})) show(stops_.push(held.text, held.token_number));
}

void OutputParser::show(const std::string& text) {
  if (text.empty()) return;
  if (state_ == State::kThink && options_.parse_reasoning)
    show_reasoning(text);
  else
    show_content(text);
}

void OutputParser::show_reasoning(const std::string& text) {
  if (!options_.include_reasoning || options_.hide_reasoning) return;
  const size_t last = text.find_last_not_of(kSpace);
  if (last == std::string::npos) {
    reasoning_space_ += text;
    return;
  }
  if (out_.empty() || out_.back().reasoning.empty()) out_.emplace_back();
  out_.back().reasoning += std::exchange(reasoning_space_, text.substr(last + 1));
  out_.back().reasoning.append(text, 0, last + 1);
}

void OutputParser::show_content(const std::string& text) {
  if (!content_begun_ && text.find_first_not_of(kSpace) == std::string::npos) {
    content_space_ += text;
    return;
  }
  content_begun_ = true;
  add_content(std::exchange(content_space_, {}) + text);
}

void OutputParser::add_content(const std::string& text) {
  if (text.empty()) return;
  if (out_.empty() || out_.back().content.empty()) out_.emplace_back();
  out_.back().content += text;
}

void OutputParser::open_call() {
  call_begun_ = false;
  const bool shown =
      calls_are_likely(options_) && !options_.tool_choice_none && (options_.parallel_tool_calls || num_calls_ == 0);
  if (shown)
    call_.emplace();
  else
    ++num_swallowed_;
}

// A payload without a name takes that of the header, if a tool of this name was declared.
std::string OutputParser::fallback_name() const {
  if (header_name_.size() > kMaxNameBytes || !all_name_chars(header_name_)) return {};
  if (options_.tools &&
      std::find(options_.tools->begin(), options_.tools->end(), header_name_) == options_.tools->end())
    return {};
  return header_name_;
}

void OutputParser::close_call(bool keep_partial) {
  if (!call_) return;
  const ToolCallEnd end = call_->finish(fallback_name());
  take_events(end.events);
  call_.reset();
  if (end.kind == ToolCallEnd::kComplete || (end.kind == ToolCallEnd::kIncomplete && keep_partial && call_begun_)) {
    ++num_good_calls_;
    return;
  }
  ++num_errors_;
  if (call_begun_) out_.emplace_back().tool_calls.push_back({num_calls_ - 1, {}, {}, {}, /*retracted=*/true});
}

void OutputParser::take_events(const std::vector<ToolCallEvent>& events) {
  for (const ToolCallEvent& event : events) {
    if (event.kind == ToolCallEvent::kArguments) {
      add_arguments(event.text);
      continue;
    }
    ToolCallDelta& part = out_.emplace_back().tool_calls.emplace_back();
    part.index = num_calls_++;
    part.id = options_.call_id ? options_.call_id(part.index) : fmt::format("chatcmpl-tool-{}", part.index);
    part.name = event.text;
    call_begun_ = true;
    if (!content_begun_) content_space_.clear();
  }
}

void OutputParser::add_arguments(const std::string& text) {
  const bool continues = !out_.empty() && !out_.back().tool_calls.empty() && out_.back().tool_calls[0].name.empty();
  if (!continues) out_.emplace_back().tool_calls.push_back({num_calls_ - 1, {}, {}, {}});
  out_.back().tool_calls[0].arguments += text;
}

std::optional<std::string> OutputParser::stopped() const {
  if (!stops_.match()) return {};
  return stops_.match()->stop;
}

int OutputParser::num_tokens_settled() const {
  if (stops_.match()) return stops_.match()->token_number;
  return held_.empty() ? num_tokens_ : held_.front().token_number - 1;
}

int OutputParser::num_reasoning_tokens() const {
  return options_.parse_reasoning && !options_.hide_reasoning ? num_reasoning_ : 0;
}

std::string_view finish_reason(FinishCause cause, bool any_tool_call) {
  if (cause == FinishCause::kAbort) return "abort";
  if (cause == FinishCause::kLength) return "length";
  return any_tool_call ? "tool_calls" : "stop";
}

}  // namespace nib
