#include "base/file.h"

#include <cerrno>
#include <cstring>
#include <iterator>

namespace nib {

Result<std::ifstream> open_regular_file(const std::filesystem::path& path) {
  const auto refused = [&](const char* why) {
    return Status(Code::kNotFound, fmt::format("{}: cannot be read: {}", path.string(), why));
  };
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return refused(std::strerror(error ? error.value() : ENOENT));
  if (std::filesystem::is_directory(status)) return refused("it is a folder, not a file");
  if (!std::filesystem::is_regular_file(status)) return refused("it is a pipe, a socket or a device, not a file");
  std::ifstream file(path, std::ios::binary);
  if (!file) return refused(std::strerror(errno));
  return file;
}

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
