#include "base/file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

namespace nib {

Result<std::string> read_file(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return invalid("{} is a folder, not a file", path.string());
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(Code::kNotFound, fmt::format("cannot open {}: {}", path.string(), std::strerror(errno)));
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (file.bad())
    return Status(Code::kInternal, fmt::format("cannot read {}: {}", path.string(), std::strerror(errno)));
  return bytes;
}

}  // namespace nib
