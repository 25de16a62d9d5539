#include "text/canonical_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <vector>

namespace nib {

namespace {

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// The shortest digits that read back to the same number; an exponent below 1e-4 and from 1e16 on.
std::string python_float(double value) {
  if (!std::isfinite(value)) return "null";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string shortest(buffer, end);  // -d.ddde+XX
  const int exponent = std::atoi(shortest.c_str() + shortest.find('e') + 1);
  if (exponent < -4 || exponent >= 16) return shortest;
  const size_t num_digits =
      std::count_if(buffer, buffer + shortest.find('e'), [](char c) { return c >= '0' && c <= '9'; });
  return fmt::format("{:.{}f}", value, std::max(1, int(num_digits) - 1 - exponent));
}

void append(const Json& value, std::string& out);

void append_object(const Json& object, std::string& out) {
  using Member = std::pair<const std::string*, const Json*>;
  std::vector<Member> members;
  for (auto it = object.begin(); it != object.end(); ++it) members.emplace_back(&it.key(), &it.value());
  std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) { return *a.first < *b.first; });
  out += '{';
  for (size_t i = 0; i < members.size(); ++i) {
    if (i > 0) out += ',';
    out += quoted(*members[i].first) + ':';
    append(*members[i].second, out);
  }
  out += '}';
}

void append(const Json& value, std::string& out) {
  if (value.is_object()) return append_object(value, out);
  if (value.is_array()) {
    out += '[';
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out += ',';
      append(value[i], out);
    }
    out += ']';
  } else if (value.is_string()) {
    out += quoted(value.get_ref<const std::string&>());
  } else if (value.is_number_float()) {
    out += python_float(value.get<double>());
  } else if (value.is_binary()) {
    out += big_integer(value);
  } else {
    out += value.dump();
  }
}

}  // namespace

std::string canonical_json(const Json& value) {
  std::string out;
  append(value, out);
  return out;
}

}  // namespace nib
