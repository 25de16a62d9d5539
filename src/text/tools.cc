#include "text/tools.h"

#include <algorithm>

#include "text/request_fields.h"

namespace nib {

namespace {

Result<Tool> read_tool(const Json& entry, const std::string& where) {
  const Json& type = field(entry, "type");
  if (!type.is_null() && type != "function")
    return invalid_param("tools", "{}.type must be \"function\", got {}", where, type.dump());
  const Json& function = field(entry, "function");
  Tool tool;
  if (!has_text(field(function, "name"))) return invalid_param("tools", "{}.function.name must be a string", where);
  tool.name = field(function, "name").get<std::string>();
  const Json& description = field(function, "description");
  if (!description.is_null() && !description.is_string())
    return invalid_param("tools", "{}.function.description must be a string", where);
  if (description.is_string()) tool.description = description.get<std::string>();
  tool.parameters = field(function, "parameters");
  if (tool.parameters.is_null()) tool.parameters = Json::object();
  if (!tool.parameters.is_object()) return invalid_param("tools", "{}.function.parameters must be an object", where);
  NIB_ASSIGN(tool.strict, read_bool(function, "strict", false));
  return tool;
}

Status read_tool_list(const Json& list, const std::string& where, std::vector<Tool>& out) {
  if (list.is_null()) return {};
  if (!list.is_array()) return invalid_param("tools", "{} must be a list", where);
  if (list.empty()) return invalid_param("tools", "{} must not be empty; leave it out instead", where);
  for (size_t i = 0; i < list.size(); ++i) {
    NIB_ASSIGN(Tool tool, read_tool(list[i], fmt::format("{}[{}]", where, i)));
    out.push_back(std::move(tool));
  }
  return {};
}

Status read_choice(const Json& choice, ToolSelection& out) {
  if (choice.is_null()) return {};
  if (choice == "none") {
    out.choice = ToolChoice::kNone;
    return {};
  }
  if (out.tools.empty()) return invalid_param("tool_choice", "tool_choice needs tools, and the request has none");
  if (choice == "auto") return {};
  if (choice == "required") {
    out.choice = ToolChoice::kRequired;
    return {};
  }
  const Json& name = field(field(choice, "function"), "name");
  if (field(choice, "type") != "function" || !name.is_string())
    return invalid_param("tool_choice",
                         "tool_choice must be \"none\", \"auto\", \"required\" or {{\"type\":\"function\","
                         "\"function\":{{\"name\":...}}}}");
  out.choice = ToolChoice::kNamed;
  out.named = name.get<std::string>();
  if (std::none_of(out.tools.begin(), out.tools.end(), [&](const Tool& t) { return t.name == out.named; }))
    return invalid_param("tool_choice", "tool_choice names the tool \"{}\", which is not among tools", out.named);
  return {};
}

}  // namespace

Result<ToolSelection> read_tools(const Json& request) {
  ToolSelection out;
  NIB_TRY(read_tool_list(field(request, "tools"), "tools", out.tools));
  const Json& messages = field(request, "messages");
  for (size_t i = 0; messages.is_array() && i < messages.size(); ++i)
    if (field(messages[i], "role") == "developer")
      NIB_TRY(read_tool_list(field(messages[i], "tools"), fmt::format("messages[{}].tools", i), out.tools));
  NIB_TRY(read_choice(field(request, "tool_choice"), out));
  return out;
}

}  // namespace nib
