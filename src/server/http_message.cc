#include "server/http_message.h"

#include <algorithm>
#include <cctype>

namespace nib {

namespace {
bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}
}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const HttpHeader& h : headers)
    if (equal_ignoring_case(h.name, name)) return h.value;
  return {};
}

}  // namespace nib
