#include "server/http_wire.h"

#include <fmt/format.h>

#include "base/check.h"

namespace nib {

namespace {

std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "Unknown";
  }
}

}  // namespace

std::string format_head(int status, std::string_view content_type, const std::vector<HttpHeader>& headers) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", status, reason_of(status), content_type);
  for (const HttpHeader& h : headers) head += fmt::format("{}: {}\r\n", h.name, h.value);
  return head;
}

std::string chunk_of(std::string_view bytes) {
  NIB_CHECK(!bytes.empty(), "an empty chunk ends a body");
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

}  // namespace nib
