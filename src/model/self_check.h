// Reads every byte of a checkpoint and looks for values that no healthy checkpoint holds.
//   Result<SelfCheck> c = self_check(folder);      // errors as loading gives them
//   for (const std::string& p : c->problems) ...
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"

namespace nib {

struct SelfCheck {
  int64_t tensors = 0, bytes = 0;     // of the whole checkpoint
  int64_t unused = 0;                 // tensors that the text network does not read
  std::vector<std::string> problems;  // NaN and infinity in plain tensors and MXFP8 elements, bad scales; with place
  std::vector<std::string> warnings;  // the declared precision differs from the tensors
};

Result<SelfCheck> self_check(const std::filesystem::path& folder);

}  // namespace nib
