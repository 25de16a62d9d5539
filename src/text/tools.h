// The tools of a chat request and its tool_choice, checked once and used by the renderer, the parser and grammars.
//   Result<ToolSelection> selection = read_tools(request);
//   for (const Tool& tool : selection->tools) declare(tool);
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace nib {

struct Tool {
  std::string name, description;
  Json parameters;  // an object: JSON schema
  bool strict = false;
};

enum class ToolChoice { kAuto, kNone, kRequired, kNamed };

struct ToolSelection {
  std::vector<Tool> tools;  // of the request, then of developer messages
  ToolChoice choice = ToolChoice::kAuto;
  std::string named;  // the one tool of kNamed
};

// Every wrong `tools` or `tool_choice` is an invalid_param.
Result<ToolSelection> read_tools(const Json& request);

}  // namespace nib
