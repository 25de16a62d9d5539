// JSON values that keep the order of their keys, and a parser for bytes that nobody trusts.
//   Result<Json> body = parse_json(bytes);
//   if (!body.ok()) return body.status();
//   body->at("model");
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/status.h"

namespace nib {

using Json = nlohmann::ordered_json;

// The digits of an integer beyond 64 bits: parse_json keeps them, as no number type of a tree could. Else empty.
std::string_view big_integer(const Json& value);

// Rejects bad syntax, invalid UTF-8, lone surrogates; nesting deeper than max_depth is an error
// found before any tree is built, so hostile input costs linear time and bounded stack.
Result<Json> parse_json(std::string_view text, int max_depth = 128);

}  // namespace nib
