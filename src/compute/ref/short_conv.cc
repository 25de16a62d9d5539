#include <algorithm>

#include "compute/ref/ref.h"

namespace nib::ref {

namespace {

// The input of channel c that lies `back` rows before row t of sequence s: in the step, in the ring, or before 0.
template <class T>
float input_before(View<const T, 2> x, const ConvState<T>& state, const SequenceRows& s, int32_t slot, int64_t t,
                   int64_t back, int64_t c) {
  const int64_t row = t - back, position = s.start + row - s.begin;
  if (row >= s.begin) return as_float(x(row, c));
  return position < 0 ? 0.0f : as_float(state.data(slot, position % state.data.dim(1), c));
}

template <class T>
void remember(View<const T, 2> x, const ConvState<T>& state, const SequenceRows& s, int32_t slot) {
  const int64_t ring = state.data.dim(1);
  for (int64_t i = std::max<int64_t>(0, s.count - ring); i < s.count; ++i)
    std::copy_n(x.row(s.begin + i), x.dim(1), &state.data(slot, (s.start + i) % ring, 0));
}

}  // namespace

template <class T>
void short_conv(Context&, View<T, 2> y, View<const T, 2> x, const ConvState<T>& state,
                std::span<const SequenceRows> batch, const ConvTaps<T>& taps, View<const T, 2> residual) {
  const int64_t width = taps.width, channels = x.dim(1);
  const int64_t head_dim = taps.generated.empty() ? 1 : channels * width / taps.generated.dim(1);
  for (size_t i = 0; i < batch.size(); ++i) {
    const SequenceRows& s = batch[i];
    const int32_t slot = state.slots[i];
    for (int64_t t = s.begin; t < s.begin + s.count; ++t)
      for (int64_t c = 0; c < channels; ++c) {
        float sum = 0;
        for (int64_t j = 0; j < width; ++j) {
          float tap = taps.fixed.empty() ? 0.0f : as_float(taps.fixed(c, j));
          if (!taps.generated.empty()) tap += as_float(taps.generated(t, c / head_dim * width + j));
          sum += tap * input_before(x, state, s, slot, t, width - 1 - j, c);
        }
        if (taps.skip) sum += as_float(x(t, c));
        y(t, c) = residual.empty() ? to<T>(sum) : to<T>(as_float(to<T>(sum)) + as_float(residual(t, c)));
      }
    remember(x, state, s, slot);
  }
}

#define NIB_INSTANTIATE(T)                                                                                             \
  template void short_conv(Context&, View<T, 2>, View<const T, 2>, const ConvState<T>&, std::span<const SequenceRows>, \
                           const ConvTaps<T>&, View<const T, 2>);
NIB_INSTANTIATE(float)
NIB_INSTANTIATE(bf16)

}  // namespace nib::ref
