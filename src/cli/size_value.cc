#include "cli/size_value.h"

#include <charconv>
#include <cmath>

namespace nib::cli {

// Small letters are powers of 1000, capitals of 1024.
Result<int64_t> size_value(std::string_view flag, const std::string& text, int64_t least, int64_t most) {
  double unit = 1;
  std::string number = text;
  constexpr std::string_view kUnits = "kKmMgGtT";
  if (const size_t at = number.empty() ? std::string::npos : kUnits.find(number.back()); at != std::string::npos) {
    unit = std::pow(at % 2 == 0 ? 1000.0 : 1024.0, static_cast<double>(at / 2 + 1));
    number.pop_back();
  }
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  value *= unit;
  if (error != std::errc() || end != number.data() + number.size() || !(std::abs(value) <= 1e18) ||
      value != std::floor(value))
    return invalid("{} {}: a whole number is expected, such as 4096, 64k or 1M", flag, text);
  if (value < static_cast<double>(least) || value > static_cast<double>(most))
    return invalid("{} {}: a number from {} to {} is expected", flag, text, least, most);
  return static_cast<int64_t>(value);
}

Result<int64_t> model_len_value(std::string_view flag, const std::string& text) {
  if (text == "auto" || text == "-1") return int64_t{0};
  return size_value(flag, text, 1);
}

}  // namespace nib::cli
