// The attention of draft blocks: every slot of a block sees the cached positions of its sequence and the whole block.
//   ops::block_attention(cx, out, q, k, v, context, blocks, scale);
#pragma once

#include "compute/ops/attention.h"

namespace nib {

// The rows [begin, begin + count) of a step are one sequence's block; its cached positions [context_begin, context_end)
// are visible.
struct BlockRows {
  int64_t begin = 0, count = 0;
  int64_t context_begin = 0, context_end = 0;
};

namespace ops {

// out[t, h, :] = round( sum_s softmax_s(scale * q[t, h] . k[s, j]) v[s, j] )        j = h / (heads / kv_heads)
// over the context's positions of the row's sequence and then the rows k, v of its own block, before and behind it.
// q, out: [tokens, heads * head_dim]   k, v: [tokens, kv_heads * head_dim]   context: row i of its block tables is that
// of blocks[i]. FP32 inside. Law: key blocks are a function of absolute positions, so paging and batch change no bit.
template <class T>
void block_attention(Context& cx, View<T, 2> out, View<const T, 2> q, View<const T, 2> k, View<const T, 2> v,
                     const PagedKv<T>& context, std::span<const BlockRows> blocks, float scale);

// Workspace that block_attention takes at most; rows: of the largest block.
int64_t block_attention_workspace_bytes(int64_t rows, int64_t heads, int64_t head_dim, int64_t num_threads);

}  // namespace ops
}  // namespace nib
