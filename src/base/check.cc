#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace nib {

void check_failed(const char* file, int line, const char* expr, const std::string& detail) {
  std::fprintf(stderr, "%s:%d: check failed: %s%s%s\n", file, line, expr, detail.empty() ? "" : ": ", detail.c_str());
  std::abort();
}

}  // namespace nib
