// Errors as HTTP replies in OpenAI's shape: {"error":{"message","type","param","code"}}.
//   return error_reply(invalid_param("n", "n must be at least 1, got {}", n));
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "server/http_message.h"

namespace nib {

// Params that start with this come from reading the body's fields: their type is "Bad Request", as FastAPI's.
inline constexpr std::string_view kBodyParam = "body";

int http_status(Code code);
HttpReply error_reply(const Status& status);
Json error_json(const Status& status);

// For what has no Status: 401, 404, 405, 413, 415 and other matters of the protocol.
HttpReply http_error(int status, std::string_view type, std::string message);

// Text that may hold anything is made fit for a JSON string; never throws.
std::string dump_json(const Json& json);

}  // namespace nib
