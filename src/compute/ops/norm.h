// Root-mean-square norms and the embedding lookup that begins every forward pass.
//   ops::rms_norm(cx, y, x, weight, 1e-6f);
#pragma once

#include "compute/ops/gemm.h"

namespace nib::ops {

// y[t, :] = round( x[t, :] * rsqrt(mean(x[t, :]^2) + eps) * weight )     x, y: [tokens, width]   weight: [width] or
// empty (1) FP32 inside, one rounding.
template <class T>
void rms_norm(Context& cx, View<T, 2> y, View<const T, 2> x, View<const T, 1> weight, float eps);

// y[t, :] = rms_norm(table[tokens[t], :])      table: [vocab, hidden] (kF32 or kBF16)   tokens: [tokens]
template <class T>
void embed_norm(Context& cx, View<T, 2> y, View<const int32_t, 1> tokens, const Weight& table, View<const T, 1> weight,
                float eps);

// y = round(x + delta), element by element; y may be x.        all [tokens, width]
template <class T>
void add(Context& cx, View<T, 2> y, View<const T, 2> x, View<const T, 2> delta);

}  // namespace nib::ops
