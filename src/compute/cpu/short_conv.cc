#include <algorithm>

#include "compute/cpu/cpu.h"
#include "compute/cpu/gemm.h"
#include "compute/cpu/rows.h"

namespace nib::cpu {

namespace {

constexpr int64_t kMaxWidth = 16;

// Where the input at `position` of a sequence lies: in the step, in the ring, or (before 0) nowhere.
template <class T>
const T* input_at(View<const T, 2> x, const ConvState<T>& state, const SequenceRows& s, int32_t slot,
                  int64_t position) {
  if (position >= s.start) return x.row(s.begin + position - s.start);
  return position < 0 ? nullptr : &state.data(slot, position % state.data.dim(1), 0);
}

// The sequence of row t; sequences cover the rows in order.
int64_t sequence_of(std::span<const SequenceRows> batch, int64_t t) {
  const auto after =
      std::upper_bound(batch.begin(), batch.end(), t, [](int64_t row, const SequenceRows& s) { return row < s.begin; });
  return after - batch.begin() - 1;
}

template <class T>
void remember(View<const T, 2> x, const ConvState<T>& state, const SequenceRows& s, int32_t slot) {
  const int64_t ring = state.data.dim(1);
  for (int64_t i = std::max<int64_t>(0, s.count - ring); i < s.count; ++i)
    std::copy_n(x.row(s.begin + i), x.dim(1), &state.data(slot, (s.start + i) % ring, 0));
}

}  // namespace

template <class T>
void short_conv(Context& cx, View<T, 2> y, View<const T, 2> x, const ConvState<T>& state,
                std::span<const SequenceRows> batch, const ConvTaps<T>& taps, View<const T, 2> residual) {
  using E = std::conditional_t<sizeof(T) == 2, Half, float>;
  NIB_CHECK(taps.width <= kMaxWidth, "width {} of at most {}", taps.width, kMaxWidth);
  run_parallel(cx, x.dim(0), x.size() * taps.width * 4, [&](int64_t t, int) {
    const int64_t i = sequence_of(batch, t);
    const SequenceRows& s = batch[i];
    const E* inputs[kMaxWidth];
    for (int64_t j = 0; j < taps.width; ++j)
      inputs[j] = reinterpret_cast<const E*>(
          input_at(x, state, s, state.slots[i], s.start + t - s.begin - (taps.width - 1) + j));
    ConvRow<E> c;
    c.y = reinterpret_cast<E*>(y.row(t)), c.inputs = inputs, c.width = taps.width, c.skip = taps.skip;
    c.fixed = reinterpret_cast<const E*>(taps.fixed.data());
    c.channels = c.head_dim = x.dim(1);
    if (!taps.generated.empty()) {
      c.generated = reinterpret_cast<const E*>(taps.generated.row(t));
      c.head_dim = x.dim(1) * taps.width / taps.generated.dim(1);
    }
    if (!residual.empty()) c.residual = reinterpret_cast<const E*>(residual.row(t));
    row_kernels<T>(cx.isa).conv(c);
  });
  for (size_t i = 0; i < batch.size(); ++i) remember(x, state, batch[i], state.slots[i]);
}

#define NIB_INSTANTIATE(T)                                                                                             \
  template void short_conv(Context&, View<T, 2>, View<const T, 2>, const ConvState<T>&, std::span<const SequenceRows>, \
                           const ConvTaps<T>&, View<const T, 2>);
NIB_INSTANTIATE(float)
NIB_INSTANTIATE(bf16)

}  // namespace nib::cpu
