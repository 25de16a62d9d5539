// Checks of numeric flags that say what is wrong in one short sentence, and know that NaN is no number.
//   command.add_option("--bandwidth", o->bandwidth)->check(positive_number());
#pragma once

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

namespace nib::cli {

inline CLI::Validator number_check(const char* wanted, bool zero_too) {
  const auto check = [wanted, zero_too](const std::string& text) -> std::string {
    double value = NAN;
    const bool read = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
    return read && (value > 0 || (zero_too && value == 0)) ? "" : fmt::format("{}: {} is expected", text, wanted);
  };
  return CLI::Validator(check, "");
}

inline CLI::Validator positive_number() { return number_check("a number above 0", false); }
inline CLI::Validator non_negative_number() { return number_check("a number from 0 on", true); }

}  // namespace nib::cli
