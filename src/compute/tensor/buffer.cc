#include "compute/tensor/buffer.h"

#include <cstdlib>
#include <cstring>

namespace nib {

namespace {
constexpr int64_t kAlign = 64;
int64_t round_up(int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }
}  // namespace

void Buffer::Free::operator()(std::byte* p) const { std::free(p); }

Buffer::Buffer(int64_t bytes) : size_(bytes) {
  NIB_CHECK(bytes >= 0, "{} bytes", bytes);

  void* p = std::aligned_alloc(kAlign, round_up(bytes + 1));
  NIB_CHECK(p != nullptr, "out of memory for {} bytes", bytes);
  std::memset(p, 0, bytes);
  data_.reset(static_cast<std::byte*>(p));
}

std::byte* Workspace::take_bytes(int64_t bytes) {
  const int64_t begin = used_;
  used_ += round_up(bytes);
  NIB_CHECK(used_ <= buffer_.size(), "workspace of {} bytes needs {}", buffer_.size(), used_);
  peak_ = used_ > peak_ ? used_ : peak_;
  return buffer_.data() + begin;
}

}  // namespace nib
