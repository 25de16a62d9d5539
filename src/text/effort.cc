#include "text/effort.h"

#include <array>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "text/canonical_json.h"
#include "text/request_fields.h"

namespace nib {

namespace {

using Effort = std::optional<double>;

constexpr double kDefault = 0.9, kHighest = 0.99;
constexpr std::array<std::pair<std::string_view, double>, 8> kNames = {{{"none", 0.0},
                                                                        {"off", 0.0},
                                                                        {"minimal", 0.1},
                                                                        {"low", 0.2},
                                                                        {"medium", 0.7},
                                                                        {"high", kDefault},
                                                                        {"xhigh", kHighest},
                                                                        {"max", kHighest}}};

Result<Effort> effort_of(const Json& value) {
  if (value.is_number()) {
    const double effort = value.get<double>();
    if (!(effort >= 0 && effort <= kHighest))
      return invalid_param("reasoning_effort", "reasoning_effort must be in [0.0, 0.99], got {}",
                           canonical_json(value));
    return Effort(effort);
  }
  for (const auto& [name, effort] : kNames)
    if (value == name) return Effort(effort);
  return Effort();
}

}  // namespace

Result<Effort> read_effort(const Json& request, const Json& default_template_kwargs) {
  const Json& kwargs = field(request, "chat_template_kwargs");
  if (!kwargs.is_null() && !kwargs.is_object())
    return invalid_param("chat_template_kwargs", "chat_template_kwargs must be an object");
  if (const Json& value = field(request, "reasoning_effort"); !value.is_null()) {
    Result<Effort> effort = effort_of(value);
    if (effort.ok() && !*effort)
      return invalid_param("reasoning_effort",
                           "reasoning_effort must be none, minimal, low, medium, high, xhigh, max or a number in "
                           "[0.0, 0.99], got {}",
                           canonical_json(value));
    return effort;
  }
  for (const Json* source : {&kwargs, &default_template_kwargs}) {
    const Json& value = field(*source, "reasoning_effort");
    if (value.is_null()) continue;
    Result<Effort> effort = effort_of(value);
    if (effort.ok() && !*effort)
      log::warn("chat_template_kwargs asks for an unknown reasoning_effort; none is rendered");
    return effort;
  }
  return Effort(kDefault);
}

std::string effort_line(double effort) {
  std::string number = fmt::format("{:.2f}", effort);
  number.erase(number.find_last_not_of('0') + 1);
  if (number.ends_with('.')) number.pop_back();
  if (number == "0" || number == "-0") number = "0.0";
  return "Thinking effort level: " + number;
}

}  // namespace nib
