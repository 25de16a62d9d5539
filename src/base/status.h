// What can go wrong with input, as a value: a code for the caller to act on and one sentence for the user.
//   Result<Config> c = read_config(path);
//   if (!c.ok()) return c.status();
//   use(*c);
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace nib {

enum class Code {
  kOk,
  kInvalidArgument,  // the input is wrong; HTTP 400, exit 1
  kNotFound,         // HTTP 404
  kUnavailable,      // a bound is reached, try later; HTTP 503
  kUnimplemented,    // a feature that is not there; HTTP 501
  kInternal,         // our fault; HTTP 500
};

// One sentence: what, where, what to do. `param` names the request field at fault, or is empty.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message, std::string param = {})
      : code_(code), message_(std::move(message)), param_(std::move(param)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& param() const { return param_; }

 private:
  Code code_ = Code::kOk;
  std::string message_, param_;
};

// invalid("{}: header of {} bytes", path, n)
template <class... Args>
Status invalid(fmt::format_string<Args...> format, Args&&... args) {
  return Status(Code::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

// invalid_param("temperature", "temperature must be at least 0, got {}", t)
template <class... Args>
Status invalid_param(std::string param, fmt::format_string<Args...> format, Args&&... args) {
  return Status(Code::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...), std::move(param));
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit
  Result(Status status) : status_(std::move(status)) {
    NIB_CHECK(!status_.ok(), "an ok Result needs a value");
  }  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() & { return value(); }
  const T& operator*() const& { return const_cast<Result*>(this)->value(); }
  T&& operator*() && { return std::move(value()); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &const_cast<Result*>(this)->value(); }

 private:
  T& value() {
    NIB_CHECK(value_.has_value(), "{}", status_.message());
    return *value_;
  }
  std::optional<T> value_;
  Status status_;
};

}  // namespace nib

#define NIB_CONCAT_INNER(a, b) a##b
#define NIB_CONCAT(a, b) NIB_CONCAT_INNER(a, b)
// Leaves the function with the status unless it is ok.
#define NIB_TRY(expr)                                   \
  do {                                                  \
    if (::nib::Status s_ = (expr); !s_.ok()) return s_; \
  } while (0)
// NIB_ASSIGN(auto x, f()): x = value of f(), or leaves the function with its status.
#define NIB_ASSIGN(lhs, expr) NIB_ASSIGN_INNER(NIB_CONCAT(result_, __LINE__), lhs, expr)
#define NIB_ASSIGN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                     \
  if (!tmp.ok()) return tmp.status();    \
  lhs = std::move(*tmp)
