// Causal depthwise convolutions of width W over the last W-1 inputs, kept per sequence in a ring addressed by position.
//   ops::short_conv(cx, y, x, state, batch, taps, residual);
#pragma once

#include "compute/ops/batch.h"
#include "compute/tensor/context.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/view.h"

namespace nib {

// The inputs of one stream of one layer: the input at absolute position p of the sequence in slot s is
// data[s, p mod ring, :]. ring >= W-1 + rows that may be rejected. Positions before 0 read as zero, whatever the ring
// holds.
template <class T>
struct ConvState {
  View<T, 3> data;                 // [slots, ring, channels]
  std::span<const int32_t> slots;  // slot of each sequence of the batch
};

// Taps of each output row: static per channel, or generated per token and head.
template <class T>
struct ConvTaps {
  View<const T, 2> fixed;      // [channels, W], tap W-1 multiplies the current token; or empty
  View<const T, 2> generated;  // [tokens, heads * W], row h*W + j is tap j of the channels of head h; or empty
  bool skip = true;            // adds the input itself
  int64_t width = 4;           // W
};

namespace ops {

// c[t, ch] = (skip ? x[t, ch] : 0) + sum_j taps[ch, j] * x[t-(W-1)+j, ch]          FP32, oldest tap first, then the
// skip y[t, ch] = round(c)                                  without residual
//          = round(round(c) + residual[t, ch])          with residual: [tokens, channels]
// x, y: [tokens, channels]; y may be residual, never x. Reads the inputs before each sequence's first row from the
// ring, then writes the last min(count, ring) inputs of each sequence into it. Fixed and generated taps add up where
// both are given.
template <class T>
void short_conv(Context& cx, View<T, 2> y, View<const T, 2> x, const ConvState<T>& state,
                std::span<const SequenceRows> batch, const ConvTaps<T>& taps, View<const T, 2> residual);

}  // namespace ops
}  // namespace nib
