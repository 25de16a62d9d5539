// Reads the fields of a JSON body with their types checked. Every mistake is collected, so a client sees them all.
//   Fields f(body);
//   std::optional<int64_t> n = f.integer("n");         // empty: absent, null or wrong
//   if (Status s = f.status(); !s.ok()) return s;
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace nib {

class Fields {
 public:
  // path: where the object stands in the body, for messages. REQUIRES: object is a JSON object and outlives this.
  explicit Fields(const Json& object, std::string path = "body");

  const Json* find(std::string_view name) const;  // null: absent or JSON null
  bool has(std::string_view name) const { return find(name) != nullptr; }

  std::optional<bool> boolean(std::string_view name);
  std::optional<int64_t> integer(std::string_view name);  // 2.0 is one, 1.5 and true are not
  std::optional<int64_t> integer(std::string_view name, int64_t least, int64_t most);
  std::optional<double> number(std::string_view name);
  std::optional<std::string> string(std::string_view name);
  std::vector<std::string> strings(std::string_view name, size_t most);  // of a list
  std::vector<int32_t> token_ids(std::string_view name, size_t most);    // of a list
  const Json* object(std::string_view name);
  const Json* array(std::string_view name);
  void require(std::string_view name);

  void mistake(std::string_view name, std::string_view what, const Json* input);
  Status status() const;  // "2 validation errors: ..."; param is the path of the first

 private:
  const Json& object_;
  std::string path_;
  std::vector<std::string> mistakes_;
  std::string first_param_;
  size_t num_mistakes_ = 0;
};

// The integer that a JSON value is, if it is one that fits.
std::optional<int64_t> as_integer(const Json& value);

}  // namespace nib
