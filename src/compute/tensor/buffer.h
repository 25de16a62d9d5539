// Owned, aligned memory of a fixed size, and a bump allocator over one such buffer for the activations of a step.
//   Buffer b(bytes);                       // zeroed, 64-byte aligned; a large one costs no time until it is used
//   Workspace ws(bytes);                   // reserved at start, never grows
//   Workspace::Scope scope(ws);            // gives back at the end of the block
//   View<float, 2> x = ws.take<float, 2>({tokens, hidden});
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "compute/tensor/view.h"

namespace nib {

// Deleter of a Buffer.
struct FreeBuffer {
  int64_t mapped_bytes = 0;  // 0: from the heap
  void operator()(std::byte* p) const;
};

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes);
  std::byte* data() const { return data_.get(); }
  int64_t size() const { return size_; }

 private:
  std::unique_ptr<std::byte[], FreeBuffer> data_;
  int64_t size_ = 0;
};

// Owned by the engine thread. Taking more than was reserved is a broken invariant: the plan sized it.
class Workspace {
 public:
  explicit Workspace(int64_t bytes) : buffer_(bytes) {}

  template <class T, int N>
  View<T, N> take(typename View<T, N>::Shape shape) {
    View<T, N> view(nullptr, shape);
    return View<T, N>(reinterpret_cast<T*>(take_bytes(view.size() * static_cast<int64_t>(sizeof(T)))), shape);
  }
  int64_t capacity() const { return buffer_.size(); }
  int64_t peak() const { return peak_; }

  class Scope {
   public:
    explicit Scope(Workspace& ws) : ws_(ws), mark_(ws.used_) {}
    ~Scope() { ws_.used_ = mark_; }
    Scope(const Scope&) = delete;

   private:
    Workspace& ws_;
    int64_t mark_;
  };

 private:
  std::byte* take_bytes(int64_t bytes);

  Buffer buffer_;
  int64_t used_ = 0, peak_ = 0;
};

}  // namespace nib
