#include "compute/ops/rope.h"

#include <cmath>

#include "compute/ref/ref.h"

namespace nib::ref {

void rotary_table(Context& cx, View<float, 2> table, std::span<const SequenceRows> batch,
                  View<const float, 1> inverse_frequencies) {
  const int64_t half = inverse_frequencies.dim(0);
  for (const SequenceRows& s : batch)
    cx.pool.parallel_for(s.count, [&](int64_t row, int) {
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(s.start + row) * inverse_frequencies(i);
        table(s.begin + row, i) = std::cos(angle);
        table(s.begin + row, half + i) = std::sin(angle);
      }
    });
}

template <class T>
void rope(Context&, View<T, 2> x, View<const float, 2> table) {
  const int64_t head_dim = table.dim(1), half = head_dim / 2;
  for (int64_t t = 0; t < x.dim(0); ++t)
    for (T* head = x.row(t); head < x.row(t) + x.dim(1); head += head_dim)
      for (int64_t i = 0; i < half; ++i) {
        const float a = as_float(head[i]), b = as_float(head[i + half]);
        head[i] = to<T>(a * table(t, i) - b * table(t, half + i));
        head[i + half] = to<T>(b * table(t, i) + a * table(t, half + i));
      }
}

template void rope(Context&, View<float, 2>, View<const float, 2>);
template void rope(Context&, View<bf16, 2>, View<const float, 2>);

}  // namespace nib::ref
