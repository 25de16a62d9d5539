// A view of a dense array: pointer, shape, strides in elements; owns nothing. The last axis is contiguous.
//   View<float, 2> y(data, {tokens, hidden});
//   y(t, h) = 0;   y.row(t);   y.dim(0);
//   View<float, 2> gate = columns(y, begin, end);
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "base/check.h"

namespace nib {

template <class T, int N>
class View {
 public:
  using Shape = std::array<int64_t, N>;

  View() = default;
  View(T* data, Shape shape) : data_(data), shape_(shape) {
    int64_t stride = 1;
    for (int i = N - 1; i >= 0; --i) {
      stride_[i] = stride;
      stride *= shape[i];
    }
  }
  View(T* data, Shape shape, Shape stride) : data_(data), shape_(shape), stride_(stride) {
    NIB_CHECK_EQ(stride[N - 1], 1);
  }
  // A view of mutable elements is a view of const elements.
  operator View<const T, N>() const requires(!std::is_const_v<T>) {
    return empty() ? View<const T, N>() : View<const T, N>(data_, shape_, stride_);
  }

  T* data() const { return data_; }
  int64_t dim(int axis) const { return shape_[axis]; }
  const Shape& shape() const { return shape_; }
  int64_t stride(int axis) const { return stride_[axis]; }
  bool empty() const { return data_ == nullptr; }
  int64_t size() const {
    int64_t n = 1;
    for (int64_t d : shape_) n *= d;
    return n;
  }

  // First element of row i of the first axis.
  T* row(int64_t i) const { return data_ + i * stride_[0]; }

  template <class... I>
  T& operator()(I... index) const {
    static_assert(sizeof...(I) == N);
    int64_t offset = 0;
    int axis = 0;
    ((offset += static_cast<int64_t>(index) * stride_[axis++]), ...);
    return data_[offset];
  }

 private:
  T* data_ = nullptr;
  Shape shape_{};
  Shape stride_{};
};

// The columns [begin, end) of a matrix, sharing its memory.
template <class T>
View<T, 2> columns(View<T, 2> x, int64_t begin, int64_t end) {
  NIB_CHECK(0 <= begin && begin <= end && end <= x.dim(1), "columns {} to {} of {}", begin, end, x.dim(1));
  return View<T, 2>(x.data() + begin, {x.dim(0), end - begin}, {x.stride(0), 1});
}

// The rows [begin, end) of a matrix, sharing its memory.
template <class T>
View<T, 2> rows(View<T, 2> x, int64_t begin, int64_t end) {
  NIB_CHECK(0 <= begin && begin <= end && end <= x.dim(0), "rows {} to {} of {}", begin, end, x.dim(0));
  return View<T, 2>(x.row(begin), {end - begin, x.dim(1)}, {x.stride(0), 1});
}

}  // namespace nib
