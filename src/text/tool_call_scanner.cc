#include "text/tool_call_scanner.h"

#include <array>
#include <utility>

#include "base/json.h"

namespace nib {

namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::string without_entities(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, char>, 4> kEntities = {
      {{"&quot;", '"'}, {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}}};
  std::string out;
  for (size_t i = 0; i < text.size();) {
    char c = text[i];
    size_t length = 1;
    for (const auto& [entity, character] : kEntities)
      if (text.substr(i).starts_with(entity)) c = character, length = entity.size();
    out += c;
    i += length;
  }
  return out;
}

}  // namespace

// Inside a string; true when this byte closes it.
bool ToolCallScanner::take_string(char c) {
  if (escaped_) return escaped_ = false;
  if (c == '\\') escaped_ = true;
  return c == '"';
}

void ToolCallScanner::begin_value(char c) {
  in_string_ = c == '"';
  depth_ = c == '{' || c == '[' ? 1 : 0;
  if (key_ == "name" && !named_) {
    at_ = in_string_ ? At::kName : At::kBroken;
    raw_name_.clear();
  } else if (key_ == "args" && !has_args_) {
    at_ = c == '{' ? At::kArgs : At::kBroken;
    has_args_ = c == '{';
    if (has_args_) args_ = "{";
  } else {
    at_ = std::string_view(",:]}").find(c) == std::string_view::npos ? At::kOther : At::kBroken;
  }
}

// Spellings of control tokens are refused: they would come back with the history.
bool ToolCallScanner::end_name() {
  const Json name = Json::parse('"' + raw_name_ + '"', nullptr, /*allow_exceptions=*/false);
  if (!name.is_string() || name.get_ref<const std::string&>().find("<|") != std::string::npos) return false;
  name_ = name.get<std::string>();
  named_ = !name_.empty();
  return true;
}

void ToolCallScanner::take_name(char c) {
  if (!take_string(c))
    raw_name_ += c;
  else if (end_name())
    at_ = At::kComma;
  else
    at_ = At::kBroken;
}

void ToolCallScanner::take_args(char c) {
  args_ += c;
  if (in_string_) {
    in_string_ = !take_string(c);
    return;
  }
  in_string_ = c == '"';
  depth_ += (c == '{') - (c == '}');
  if (depth_ == 0) at_ = At::kComma;
}

void ToolCallScanner::take_other(char c) {
  if (in_string_) {
    in_string_ = !take_string(c);
    return;
  }
  if (depth_ == 0 && (c == ',' || c == '}')) {
    at_ = c == ',' ? At::kNextKey : At::kEnd;
    return;
  }
  in_string_ = c == '"';
  depth_ += (c == '{' || c == '[') - (c == '}' || c == ']');
}

void ToolCallScanner::take(char c) {
  const bool outside = at_ != At::kKey && at_ != At::kName && at_ != At::kArgs && at_ != At::kOther;
  if (outside && is_space(c)) return;
  switch (at_) {
    case At::kStart:
      at_ = c == '{' ? At::kFirstKey : At::kBroken;
      break;
    case At::kFirstKey:
    case At::kNextKey:
      if (c == '}' && at_ == At::kFirstKey) {
        at_ = At::kEnd;
        break;
      }
      at_ = c == '"' ? At::kKey : At::kBroken;
      key_.clear();
      break;
    case At::kKey:
      if (take_string(c))
        at_ = At::kColon;
      else
        key_ += c;
      break;
    case At::kColon:
      at_ = c == ':' ? At::kValue : At::kBroken;
      break;
    case At::kValue:
      begin_value(c);
      break;
    case At::kName:
      take_name(c);
      break;
    case At::kArgs:
      take_args(c);
      break;
    case At::kOther:
      take_other(c);
      break;
    case At::kComma:
      at_ = c == ',' ? At::kNextKey : c == '}' ? At::kEnd : At::kBroken;
      break;
    case At::kEnd:
    case At::kBroken:
      break;
  }
}

std::vector<ToolCallEvent> ToolCallScanner::take_events() {
  std::vector<ToolCallEvent> events;
  if (at_ == At::kEnd && !std::exchange(has_args_, true)) args_ = "{}";
  if (!name_.empty()) events.push_back({ToolCallEvent::kName, std::exchange(name_, {})});
  if (named_ && !args_.empty()) events.push_back({ToolCallEvent::kArguments, std::exchange(args_, {})});
  return events;
}

std::vector<ToolCallEvent> ToolCallScanner::push(std::string_view text) {
  for (char c : text) {
    if (!named_) raw_ += c;
    take(c);
  }
  return take_events();
}

ToolCallEnd ToolCallScanner::finish(std::string_view fallback_name) {
  const std::string plain = at_ == At::kBroken && !named_ ? without_entities(raw_) : raw_;
  if (plain == raw_) return conclude(fallback_name);
  ToolCallScanner again;
  std::vector<ToolCallEvent> events = again.push(plain);
  ToolCallEnd end = again.conclude(fallback_name);
  end.events.insert(end.events.begin(), events.begin(), events.end());
  return end;
}

ToolCallEnd ToolCallScanner::conclude(std::string_view fallback_name) {
  if (at_ == At::kBroken) return {ToolCallEnd::kBroken, {}};
  if (at_ != At::kEnd) return {ToolCallEnd::kIncomplete, {}};
  if (!named_) name_ = fallback_name;
  named_ = named_ || !name_.empty();
  if (!named_) return {ToolCallEnd::kBroken, {}};
  return {ToolCallEnd::kComplete, take_events()};
}

}  // namespace nib
