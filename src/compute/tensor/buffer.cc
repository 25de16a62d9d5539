#include "compute/tensor/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace nib {

namespace {

constexpr int64_t kAlign = 64;
// From here on pages come zeroed from the system and take no time before they are touched: gigabytes of cache are
// reserved within a millisecond.
constexpr int64_t kMapFrom = 1 << 20;

int64_t round_up(int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

std::byte* from_heap(int64_t bytes) {
  void* p = std::aligned_alloc(kAlign, round_up(bytes + 1));
  NIB_CHECK(p != nullptr, "out of memory for {} bytes", bytes);
  return static_cast<std::byte*>(std::memset(p, 0, bytes));
}

std::byte* from_system(int64_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  NIB_CHECK(p != MAP_FAILED, "out of memory for {} bytes", bytes);
  madvise(p, bytes, MADV_HUGEPAGE);  // a wish: without it a cache of small pages waits for address translation
  return static_cast<std::byte*>(p);
}

}  // namespace

void FreeBuffer::operator()(std::byte* p) const {
  if (mapped_bytes > 0)
    munmap(p, mapped_bytes);
  else
    std::free(p);
}

Buffer::Buffer(int64_t bytes) : size_(bytes) {
  NIB_CHECK(bytes >= 0, "{} bytes", bytes);
  const bool map = bytes >= kMapFrom;
  data_ = std::unique_ptr<std::byte[], FreeBuffer>(map ? from_system(bytes) : from_heap(bytes),
                                                   FreeBuffer{map ? bytes : 0});
}

std::byte* Workspace::take_bytes(int64_t bytes) {
  const int64_t begin = used_;
  used_ += round_up(bytes);
  NIB_CHECK(used_ <= buffer_.size(), "workspace of {} bytes needs {}", buffer_.size(), used_);
  peak_ = used_ > peak_ ? used_ : peak_;
  return buffer_.data() + begin;
}

}  // namespace nib
