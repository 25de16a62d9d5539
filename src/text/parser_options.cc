// Which options of the output parser a request asks for.
#include "text/output_parser.h"
#include "text/request_fields.h"
#include "text/tools.h"

namespace nib {

namespace {

// A string or a list of strings; none may be empty, it would match everywhere.
Result<std::vector<std::string>> read_stop(const Json& value) {
  std::vector<std::string> stop;
  if (value.is_null()) return stop;
  const Json list = value.is_array() ? value : Json::array({value});
  for (const Json& entry : list) {
    if (!has_text(entry))
      return invalid_param("stop", "stop must be a string or a list of strings, none of them empty");
    stop.push_back(entry.get<std::string>());
  }
  return stop;
}

Result<int> read_min_tokens(const Json& value) {
  if (value.is_null()) return 0;
  if (!value.is_number_integer() || value < 0 || value > (1 << 30))
    return invalid_param("min_tokens", "min_tokens must be a number of tokens, at least 0");
  return value.get<int>();
}

}  // namespace

Result<OutputParserOptions> parser_options(const Json& request) {
  NIB_ASSIGN(const ToolSelection selection, read_tools(request));
  OutputParserOptions out;
  out.tools.emplace();
  for (const Tool& tool : selection.tools) out.tools->push_back(tool.name);
  out.tool_choice_none = selection.choice == ToolChoice::kNone;
  NIB_ASSIGN(out.parallel_tool_calls, read_bool(request, "parallel_tool_calls", true));
  NIB_ASSIGN(out.include_reasoning, read_bool(request, "include_reasoning", true));
  NIB_ASSIGN(out.stop, read_stop(field(request, "stop")));
  NIB_ASSIGN(out.include_stop_in_output, read_bool(request, "include_stop_str_in_output", false));
  NIB_ASSIGN(out.min_tokens, read_min_tokens(field(request, "min_tokens")));
  return out;
}

}  // namespace nib
