#include "text/request_fields.h"

namespace nib {

const Json& field(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}

Result<bool> read_bool(const Json& object, const char* key, bool if_absent) {
  const Json& value = field(object, key);
  if (value.is_null()) return if_absent;
  if (!value.is_boolean()) return invalid_param(key, "{} must be true or false", key);
  return value.get<bool>();
}

bool has_text(const Json& value) { return value.is_string() && !value.get_ref<const std::string&>().empty(); }

}  // namespace nib
