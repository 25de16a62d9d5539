// What the model said, as clients see it: deltas while it is being said, and the message they fold into.
//   for (const Delta& d : parser.push(ids)) stream(d);
//   Message m = fold(all_deltas);
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nib {

struct ToolCallDelta {
  int index = 0;           // counts the calls of the turn from 0
  std::string id, name;    // only in the first delta of a call
  std::string arguments;   // the next verbatim part of the arguments' JSON
  bool retracted = false;  // the call ended broken. A stream has sent it and says no more; a whole answer drops it
};

// Exactly one kind of field is set.
struct Delta {
  std::string reasoning, content;
  std::vector<ToolCallDelta> tool_calls;
  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

struct ToolCall {
  std::string id, name, arguments;
  bool operator==(const ToolCall&) const = default;
};

struct Message {
  std::optional<std::string> reasoning, content;
  std::vector<ToolCall> tool_calls;
  bool operator==(const Message&) const = default;
};

Message fold(std::span<const Delta> deltas);

}  // namespace nib
