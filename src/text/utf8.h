// Repairs a stream of bytes to valid UTF-8, however it is cut: what is incomplete waits, what is invalid is U+FFFD.
//   Utf8Repair repair;
//   out += repair.push(bytes);
//   out += repair.finish();
#pragma once

#include <string>
#include <string_view>

namespace nib {

class Utf8Repair {
 public:
  // Takes bytes, gives whole characters. Each maximal invalid part (as Unicode defines it) gives one U+FFFD.
  std::string push(std::string_view bytes);
  // The held tail (at most 3 bytes) can no longer complete: U+FFFD if there is one. Ready for a new stream.
  std::string finish();

 private:
  std::string held_;
};

bool is_valid_utf8(std::string_view text);
std::string repair_utf8(std::string_view text);

}  // namespace nib
