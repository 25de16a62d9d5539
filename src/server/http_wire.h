// The bytes of an HTTP/1.1 answer.
//   out = format_head(200, "application/json", headers) + "Content-Length: 2\r\n\r\n{}";
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http_message.h"

namespace nib {

// Status line and headers; the empty line that ends them is the caller's, who may add more.
std::string format_head(int status, std::string_view content_type, const std::vector<HttpHeader>& headers);

// One part of a body of unknown length. REQUIRES: bytes is not empty, which would end the body.
std::string chunk_of(std::string_view bytes);

}  // namespace nib
