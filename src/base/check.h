// Broken invariants stop the process with file, line and the values; wrong input is a Status, never a check.
//   NIB_CHECK(n > 0, "n is {}", n);
//   NIB_CHECK_EQ(y.shape[0], x.shape[0]);
#pragma once

#include <fmt/format.h>

#include <string>

namespace nib {
[[noreturn]] void check_failed(const char* file, int line, const char* expr, const std::string& detail);
}  // namespace nib

#define NIB_CHECK(cond, ...)                                                         \
  do {                                                                               \
    if (!(cond)) [[unlikely]]                                                        \
      ::nib::check_failed(__FILE__, __LINE__, #cond, ::fmt::format("" __VA_ARGS__)); \
  } while (0)
#define NIB_CHECK_EQ(a, b)                                                                       \
  do {                                                                                           \
    const auto a_ = (a);                                                                         \
    const auto b_ = (b);                                                                         \
    if (!(a_ == b_)) [[unlikely]]                                                                \
      ::nib::check_failed(__FILE__, __LINE__, #a " == " #b, ::fmt::format("{} and {}", a_, b_)); \
  } while (0)
