// Whole files as bytes, with one sentence when that fails.
//   NIB_ASSIGN(std::string text, read_file(path));
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"

namespace nib {

Result<std::string> read_file(const std::filesystem::path& path);

}  // namespace nib
