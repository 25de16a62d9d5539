#include "model/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace nib {

namespace {

// The number after `key` in a file (the first one if there is no key); none or "max": no limit.
int64_t read_number(const char* file, const std::string& key, int64_t scale) {
  std::ifstream in(file);
  std::string word;
  while (!key.empty() && in >> word && word != key) {
  }
  int64_t value = 0;
  return in >> value ? value * scale : INT64_MAX;
}

}  // namespace

int64_t memory_limit_bytes() {
  return std::min({read_number("/proc/meminfo", "MemTotal:", 1024), read_number("/sys/fs/cgroup/memory.max", "", 1),
                   read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", "", 1)});
}

}  // namespace nib
