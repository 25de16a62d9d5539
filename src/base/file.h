// Whole files as bytes, with one sentence when that fails.
//   NIB_ASSIGN(std::string text, read_file(path));
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "base/status.h"

namespace nib {

// Opens a regular file to read bytes. A pipe or a device is refused: opening or reading it may never end.
Result<std::ifstream> open_regular_file(const std::filesystem::path& path);

Result<std::string> read_file(const std::filesystem::path& path);

}  // namespace nib
