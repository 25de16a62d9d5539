#include <cstdio>

#include "cli/commands.h"

namespace nib::cli {

int report(std::string_view command, const Status& status) {
  if (status.ok()) return 0;
  fmt::print(stderr, "nib {}: {}\n", command, status.message());
  return 1;
}

}  // namespace nib::cli
