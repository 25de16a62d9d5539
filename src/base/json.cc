#include "base/json.h"

namespace nib {

namespace {

// Deepest nesting of brackets outside strings.
int nesting_depth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Result<Json> parse_json(std::string_view text, int max_depth) {
  if (const int depth = nesting_depth(text); depth > max_depth)
    return invalid("JSON is nested {} levels deep, at most {} are allowed", depth, max_depth);
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    return invalid("invalid JSON: {}", e.what());
  }
}

}  // namespace nib
