// Rotary positions: what a Qwen3-style drafter needs beyond the common operations.
//   ops::rotary_table(cx, table, batch, f);              // once for all layers; f: head_dim / 2 inverse frequencies
//   ops::rope(cx, q, table);
//   ops::rope(cx, k, table);
#pragma once

#include "compute/ops/batch.h"
#include "compute/tensor/context.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/view.h"

namespace nib::ops {

// Cosines, then sines, of the angle of every pair at the position of every row:
//   table[t, i] = cos(p[t] * f[i])   table[t, head_dim / 2 + i] = sin(p[t] * f[i])      all in FP32, the product too
// table: [tokens, head_dim]   f: [head_dim / 2]
void rotary_table(Context& cx, View<float, 2> table, std::span<const SequenceRows> batch,
                  View<const float, 1> inverse_frequencies);

// Per head of x [tokens, heads * head_dim], in place; pair i is (i, i + hd/2); FP32 inside, one rounding:
//   y[i] = round( x[i] cos[i] - x[i + hd/2] sin[i] )   y[i + hd/2] = round( x[i + hd/2] cos[i] + x[i] sin[i] )
template <class T>
void rope(Context& cx, View<T, 2> x, View<const float, 2> table);

}  // namespace nib::ops
