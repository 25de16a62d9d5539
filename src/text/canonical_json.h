// JSON as the model was trained to read it: keys sorted, no spaces, non-ASCII raw, numbers as Python prints them.
//   canonical_json(Json::parse(R"({"b": 1.0, "a": "é"})"))   // {"a":"é","b":1.0}
#pragma once

#include <string>

#include "base/json.h"

namespace nib {

std::string canonical_json(const Json& value);

}  // namespace nib
