#include "model/json_fields.h"

#include <algorithm>
#include <cmath>

namespace nib {

namespace {

bool is_placeholder(const Json& v) {
  return v.is_object() && v.contains("value") && v.contains("placeholder") && v["placeholder"].is_boolean() &&
         v["placeholder"].get<bool>();
}

bool read_integer(const Json& v, int64_t least, int64_t most, int64_t& out) {
  if (!v.is_number_integer() || (v.is_number_unsigned() && v.get<uint64_t>() > INT64_MAX)) return false;
  out = v.get<int64_t>();
  return least <= out && out <= most;
}

}  // namespace

const Json* Fields::find(const std::string& key) const {
  const auto it = object_.find(key);
  if (it == object_.end()) return nullptr;
  const Json* v = is_placeholder(*it) ? &(*it)["value"] : &*it;
  return v->is_null() ? nullptr : v;
}

const Json* Fields::value(const std::string& key) {
  if (has(key) && is_placeholder(object_[key]) &&
      std::find(placeholders_.begin(), placeholders_.end(), key) == placeholders_.end())
    placeholders_.push_back(key);
  return find(key);
}

void Fields::missing(const std::string& key) { fail(invalid("{}: {} is missing", file_, key)); }

void Fields::wrong(const std::string& key, const std::string& expected) {
  std::string got = find(key)->dump();
  if (got.size() > 60) got = got.substr(0, 60) + "...";
  fail(invalid("{}: {} must be {}, got {}", file_, key, expected, got));
}

int64_t Fields::integer(const std::string& key, int64_t least, int64_t most) {
  const Json* v = value(key);
  int64_t out = least;
  if (!v)
    missing(key);
  else if (!read_integer(*v, least, most, out))
    wrong(key, fmt::format("an integer from {} to {}", least, most)), out = least;
  return out;
}

int64_t Fields::integer(const std::string& key, int64_t least, int64_t most, int64_t absent) {
  return has_value(key) ? integer(key, least, most) : absent;
}

double Fields::number(const std::string& key, double least, double most) {
  const Json* v = value(key);
  if (!v) {
    missing(key);
    return least;
  }
  const double x = v->is_number() ? v->get<double>() : std::nan("");
  if (least <= x && x <= most) return x;
  wrong(key, fmt::format("a number from {:g} to {:g}", least, most));
  return least;
}

double Fields::number(const std::string& key, double least, double most, double absent) {
  return has_value(key) ? number(key, least, most) : absent;
}

bool Fields::boolean(const std::string& key, bool absent) {
  const Json* v = value(key);
  if (!v) return absent;
  if (v->is_boolean()) return v->get<bool>();
  wrong(key, "true or false");
  return absent;
}

std::string Fields::text(const std::string& key, std::string absent) {
  const Json* v = value(key);
  if (!v) return absent;
  if (v->is_string()) return v->get<std::string>();
  wrong(key, "a string");
  return absent;
}

std::vector<std::string> Fields::texts(const std::string& key, std::vector<std::string> absent) {
  const Json* v = value(key);
  if (!v) return absent;
  std::vector<std::string> out;
  const bool strings = v->is_array() && std::all_of(v->begin(), v->end(), [](const Json& e) { return e.is_string(); });
  if (!strings)
    wrong(key, "a list of strings");
  else
    for (const Json& e : *v) out.push_back(e.get<std::string>());
  return out;
}

std::vector<int64_t> Fields::integers(const std::string& key, int64_t least, int64_t most) {
  const Json* v = value(key);
  std::vector<int64_t> out;
  if (!v) {
    missing(key);
    return out;
  }
  bool good = v->is_array();
  for (size_t i = 0; good && i < v->size(); ++i) good = read_integer((*v)[i], least, most, out.emplace_back());
  if (good) return out;
  wrong(key, fmt::format("a list of integers from {} to {}", least, most));
  return {};
}

std::vector<int64_t> Fields::integer_or_list(const std::string& key, int64_t least, int64_t most) {
  const Json* v = value(key);
  if (v && v->is_array()) return integers(key, least, most);
  return {integer(key, least, most)};
}

int Fields::choice(const std::string& key, std::initializer_list<std::string_view> choices, int absent) {
  const Json* v = value(key);
  if (!v) return absent;
  int i = 0;
  for (std::string_view c : choices) {
    if (v->is_string() && v->get_ref<const std::string&>() == c) return i;
    ++i;
  }
  wrong(key, fmt::format("one of {}", join(choices)));
  return absent;
}

}  // namespace nib
