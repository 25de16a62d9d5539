// Reads the payload of one tool call, {"name": ..., "args": {...}}, as it arrives, and gives its parts at once.
//   ToolCallScanner scanner;
//   for (ToolCallEvent& e : scanner.push(text)) use(e);
//   ToolCallEnd end = scanner.finish(header_name);
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nib {

struct ToolCallEvent {
  enum Kind { kName, kArguments } kind;
  std::string text;  // the name, unescaped; or the next verbatim part of the arguments
};

struct ToolCallEnd {
  enum Kind {
    kComplete,    // name and arguments were given
    kIncomplete,  // the text ended inside the payload
    kBroken,      // not a call: syntax, no name, a forbidden name, or arguments that are no object
  } kind;
  std::vector<ToolCallEvent> events;  // what only the end could tell
};

// The keys may come in any order, others are skipped. What the arguments hold is not checked. Whatever follows the
// payload's closing brace is ignored.
class ToolCallScanner {
 public:
  // At most one name, once, and never arguments before it. However the text is cut, the parts join to the same.
  std::vector<ToolCallEvent> push(std::string_view text);

  // Call once. A payload without a name takes fallback_name, unless that is empty. A payload that is broken by HTML
  // entities (&quot; for ") is read once more without them, unless its name was whole by then.
  ToolCallEnd finish(std::string_view fallback_name);

 private:
  enum class At { kStart, kFirstKey, kNextKey, kKey, kColon, kValue, kName, kArgs, kOther, kComma, kEnd, kBroken };
  void take(char c);
  void begin_value(char c);
  void take_name(char c);
  void take_args(char c);
  void take_other(char c);
  bool take_string(char c);
  bool end_name();
  std::vector<ToolCallEvent> take_events();
  ToolCallEnd conclude(std::string_view fallback_name);

  At at_ = At::kStart;
  std::string key_, raw_name_;
  bool in_string_ = false, escaped_ = false;
  int depth_ = 0;

  bool named_ = false, has_args_ = false;
  std::string name_, args_;  // found and not yet given
  std::string raw_;          // the whole payload, until the name is whole
};

}  // namespace nib
