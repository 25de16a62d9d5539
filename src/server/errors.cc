#include "server/errors.h"

namespace nib {

int http_status(Code code) {
  switch (code) {
    case Code::kOk:
      return 200;
    case Code::kInvalidArgument:
      return 400;
    case Code::kNotFound:
      return 404;
    case Code::kUnavailable:
      return 503;
    case Code::kUnimplemented:
      return 501;
    case Code::kInternal:
      return 500;
  }
  return 500;
}

namespace {

std::string_view error_type(const Status& status) {
  switch (status.code()) {
    case Code::kInvalidArgument:
      return status.param().starts_with(kBodyParam) ? "Bad Request" : "BadRequestError";
    case Code::kNotFound:
      return "NotFoundError";
    case Code::kUnavailable:
      return "ServiceUnavailable";
    case Code::kUnimplemented:
      return "NotImplementedError";
    default:
      return "InternalServerError";
  }
}

Json make_error(std::string_view message, std::string_view type, const std::string& param, int code) {
  return {{"error",
           {{"message", message}, {"type", type}, {"param", param.empty() ? Json() : Json(param)}, {"code", code}}}};
}

}  // namespace

Json error_json(const Status& status) {
  return make_error(status.message(), error_type(status), status.param(), http_status(status.code()));
}

HttpReply error_reply(const Status& status) {
  HttpReply reply{.status = http_status(status.code()), .body = dump_json(error_json(status))};
  if (status.code() == Code::kUnavailable) reply.headers.push_back({"Retry-After", "1"});
  return reply;
}

HttpReply http_error(int status, std::string_view type, std::string message) {
  return {.status = status, .body = dump_json(make_error(message, type, "", status))};
}

std::string dump_json(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace nib
