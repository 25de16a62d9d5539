// Rotary positions and the attention of a draft block: what a Qwen3-style drafter needs beyond the common operations.
//   View<const float, 1> f = ...;                        // head_dim / 2 inverse frequencies
//   ops::rope(cx, q, head_dim, start, f);
//   ops::block_attention(cx, out, q, context, block, head_dim, scale);
#pragma once

#include "compute/tensor/context.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/view.h"

namespace nib {

// K and V of consecutive tokens, one row each [tokens, kv_heads * head_dim]: a view, owns nothing.
template <class T>
struct KeyValueRows {
  View<const T, 2> k, v;
};

namespace ops {

// Per head of x [tokens, heads * head_dim], in place; row t stands at position start + t, pair i is (i, i + hd/2):
//   y[i] = round( x[i] cos a - x[i + hd/2] sin a )   y[i + hd/2] = round( x[i + hd/2] cos a + x[i] sin a )
//   a = (start + t) * inverse_frequencies[i]         product, sine and cosine in FP32, one rounding
template <class T>
void rope(Context& cx, View<T, 2> x, int64_t head_dim, int64_t start, View<const float, 1> inverse_frequencies);

// Every row of q sees all rows of the context and all rows of the block, before and behind it:
//   out[t, h, :] = round( sum_s softmax_s(scale * q[t, h] . k[s, j]) v[s, j] )        j = h / (heads / kv_heads)
// q, out: [tokens, heads * head_dim]   the context may have no rows   FP32 inside, sums in the order of the rows
template <class T>
void block_attention(Context& cx, View<T, 2> out, View<const T, 2> q, const KeyValueRows<T>& context,
                     const KeyValueRows<T>& block, int64_t head_dim, float scale);

// Workspace that block_attention takes at most.
int64_t block_attention_workspace_bytes(int64_t head_dim, int64_t num_threads);

}  // namespace ops
}  // namespace nib
