#include "server/fields.h"

#include <cmath>
#include <cstdlib>
#include <limits>

#include "server/errors.h"

namespace nib {

namespace {

constexpr size_t kMostMistakes = 10;
constexpr size_t kMostInputBytes = 200;  // of a wrong value that is shown back

// A value cut short before it is written out: it may be a whole conversation.
std::string shown(const Json& value) {
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  if (value.is_object()) return fmt::format("an object of {}", value.size());
  if (value.is_binary()) return std::string(big_integer(value));
  std::string text =
      value.is_string() ? dump_json(value.get_ref<const std::string&>().substr(0, kMostInputBytes)) : dump_json(value);
  return text;
}

}  // namespace

std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto u = value.get<uint64_t>();
    if (u > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(u);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double d = value.get<double>();
  constexpr double kExact = 9007199254740992.0;  // 2^53: beyond, a double is not the number that was written
  if (!(std::abs(d) <= kExact) || d != std::floor(d)) return std::nullopt;
  return static_cast<int64_t>(d);
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  NIB_CHECK(object.is_object(), "{} is no object", path_);
}

const Json* Fields::find(std::string_view name) const {
  const auto it = object_.find(std::string(name));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void Fields::mistake(std::string_view name, std::string_view what, const Json* input) {
  const std::string param = fmt::format("{}.{}", path_, name);
  if (num_mistakes_++ == 0) first_param_ = param;
  if (mistakes_.size() >= kMostMistakes) return;
  mistakes_.push_back(input ? fmt::format("{}: {}, got {}", param, what, shown(*input))
                            : fmt::format("{}: {}", param, what));
}

Status Fields::status() const {
  if (mistakes_.empty()) return {};
  std::string text = fmt::format("{} validation error{}:", num_mistakes_, num_mistakes_ == 1 ? "" : "s");
  for (const std::string& m : mistakes_) text += "\n  " + m;
  return Status(Code::kInvalidArgument, text, first_param_);
}

void Fields::require(std::string_view name) {
  const auto it = object_.find(std::string(name));
  if (it == object_.end())
    mistake(name, "field required", nullptr);
  else if (it->is_null())
    mistake(name, "field required", &*it);
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const Json* v = find(name);
  if (!v) return std::nullopt;
  if (v->is_boolean()) return v->get<bool>();
  mistake(name, "input should be true or false", v);
  return std::nullopt;
}

std::optional<int64_t> Fields::integer(std::string_view name) {
  const Json* v = find(name);
  if (!v) return std::nullopt;
  const std::optional<int64_t> i = as_integer(*v);
  if (!i) mistake(name, "input should be an integer of 64 bits", v);
  return i;
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t least, int64_t most) {
  const std::optional<int64_t> i = integer(name);
  if (!i || (*i >= least && *i <= most)) return i;
  mistake(name, fmt::format("input should be from {} to {}", least, most), find(name));
  return std::nullopt;
}

std::optional<double> Fields::number(std::string_view name) {
  const Json* v = find(name);
  if (!v) return std::nullopt;
  if (v->is_number() && std::isfinite(v->get<double>())) return v->get<double>();
  if (v->is_binary()) return std::strtod(std::string(big_integer(*v)).c_str(), nullptr);
  mistake(name, "input should be a number", v);
  return std::nullopt;
}

std::optional<std::string> Fields::string(std::string_view name) {
  const Json* v = find(name);
  if (!v) return std::nullopt;
  if (v->is_string()) return v->get<std::string>();
  mistake(name, "input should be a string", v);
  return std::nullopt;
}

const Json* Fields::object(std::string_view name) {
  const Json* v = find(name);
  if (!v || v->is_object()) return v;
  mistake(name, "input should be an object", v);
  return nullptr;
}

const Json* Fields::array(std::string_view name) {
  const Json* v = find(name);
  if (!v || v->is_array()) return v;
  mistake(name, "input should be a list", v);
  return nullptr;
}

std::vector<std::string> Fields::strings(std::string_view name, size_t most) {
  std::vector<std::string> out;
  const Json* list = array(name);
  if (!list) return out;
  if (list->size() > most) mistake(name, fmt::format("at most {} entries are allowed", most), list);
  for (size_t i = 0; i < std::min(list->size(), most); ++i) {
    const Json& v = (*list)[i];
    if (v.is_string())
      out.push_back(v.get<std::string>());
    else
      mistake(fmt::format("{}.{}", name, i), "input should be a string", &v);
  }
  return out;
}

std::vector<int32_t> Fields::token_ids(std::string_view name, size_t most) {
  std::vector<int32_t> out;
  const Json* list = array(name);
  if (!list) return out;
  if (list->size() > most) mistake(name, fmt::format("at most {} entries are allowed", most), list);
  for (size_t i = 0; i < std::min(list->size(), most); ++i) {
    const std::optional<int64_t> id = as_integer((*list)[i]);
    if (id && *id >= 0 && *id <= std::numeric_limits<int32_t>::max())
      out.push_back(static_cast<int32_t>(*id));
    else
      mistake(fmt::format("{}.{}", name, i), "input should be a token id", &(*list)[i]);
  }
  return out;
}

}  // namespace nib
