// Typed reading of a JSON object that users write: every error names file and key; the first one is kept. What is
// returned after an error is within the range asked for, or an empty list.
//   Fields f(object, "config.json");
//   int64_t h = f.integer("hidden_size", 1, 1 << 20);
//   NIB_TRY(f.status());
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace nib {

// "a, b, c"
template <class Strings>
std::string join(const Strings& parts) {
  std::string out;
  for (const auto& part : parts) out.append(out.empty() ? "" : ", ").append(part);
  return out;
}

class Fields {
 public:
  // REQUIRES object.is_object(); it must outlive this reader.
  Fields(const Json& object, std::string file) : object_(object), file_(std::move(file)) {}

  bool has(const std::string& key) const { return object_.contains(key); }       // null counts as given
  bool has_value(const std::string& key) const { return find(key) != nullptr; }  // null does not
  int64_t integer(const std::string& key, int64_t least, int64_t most);          // required
  int64_t integer(const std::string& key, int64_t least, int64_t most, int64_t absent);
  double number(const std::string& key, double least, double most);                 // required; null is an error
  double number(const std::string& key, double least, double most, double absent);  // null counts as absent
  bool boolean(const std::string& key, bool absent);
  std::string text(const std::string& key, std::string absent);
  std::vector<std::string> texts(const std::string& key, std::vector<std::string> absent);
  std::vector<int64_t> integers(const std::string& key, int64_t least, int64_t most);  // required
  std::vector<int64_t> integer_or_list(const std::string& key, int64_t least, int64_t most);
  // Index of the key's value among the choices; `absent` (an index) if the key is not there.
  int choice(const std::string& key, std::initializer_list<std::string_view> choices, int absent);

  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const Status& status() const { return status_; }
  // Keys whose value came as {"value": x, "placeholder": true}: a constant that is not public.
  const std::vector<std::string>& placeholders() const { return placeholders_; }

 private:
  const Json* find(const std::string& key) const;  // the value, null if absent or JSON null
  const Json* value(const std::string& key);       // the same, notes placeholders
  void missing(const std::string& key);
  void wrong(const std::string& key, const std::string& expected);

  const Json& object_;
  std::string file_;
  Status status_;
  std::vector<std::string> placeholders_;
};

}  // namespace nib
