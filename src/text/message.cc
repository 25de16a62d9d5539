#include "text/message.h"

#include <map>

namespace nib {

namespace {

void append(std::optional<std::string>& field, const std::string& text) {
  if (text.empty()) return;
  if (!field) field.emplace();
  *field += text;
}

}  // namespace

Message fold(std::span<const Delta> deltas) {
  Message message;
  std::map<int, ToolCall> calls;
  for (const Delta& delta : deltas) {
    append(message.reasoning, delta.reasoning);
    append(message.content, delta.content);
    for (const ToolCallDelta& part : delta.tool_calls) {
      ToolCall& call = calls[part.index];
      call.id += part.id;
      call.name += part.name;
      call.arguments += part.arguments;
      if (part.retracted) calls.erase(part.index);
    }
  }
  for (auto& [index, call] : calls) message.tool_calls.push_back(std::move(call));
  return message;
}

}  // namespace nib
