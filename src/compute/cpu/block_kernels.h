// Kernels of draft blocks, one file an instruction set: functions over plain pointers, see kernels.h.
//   avx512::block_attention(head);
//   avx2::rope_row(x, heads, head_dim, table);
#pragma once

#include "compute/cpu/kernels.h"

namespace nib::cpu {

// All slots of one block at the query heads that share a key head.
template <class E>
struct BlockAttentionHead {
  E* out = nullptr;      // of slot 0: [group, head_dim]
  const E* q = nullptr;  // the same
  int64_t out_stride = 0, q_stride = 0, slots = 0;
  const E *k = nullptr, *v = nullptr;  // of slot 0: [head_dim]
  int64_t k_stride = 0, v_stride = 0;
  const E *cached_k = nullptr, *cached_v = nullptr;  // the cache at this key head
  int64_t block_stride = 0, key_stride = 0;          // elements
  const int32_t* block_table = nullptr;              // of the sequence
  int64_t block_size = 0;                            // keys
  int64_t context_begin = 0, context_end = 0;        // visible positions
  float scale = 1;
  int64_t group = 0, head_dim = 0;
  float* scratch = nullptr;  // block_attention_scratch(slots * group, head_dim) floats
};
constexpr int64_t block_attention_scratch(int64_t queries, int64_t head_dim) {
  const int64_t width = (head_dim + 15) / 16 * 16;
  return queries * (2 * width + 2) + 2 * kKeyBlock * width;
}

// E is float or Half.
namespace avx2 {
template <class E>
void block_attention(const BlockAttentionHead<E>& a);
// x: [heads, head_dim]   table: cosines, then sines [head_dim]
template <class E>
void rope_row(E* x, int64_t heads, int64_t head_dim, const float* table);
}  // namespace avx2
namespace avx512 {
template <class E>
void block_attention(const BlockAttentionHead<E>& a);
}  // namespace avx512

}  // namespace nib::cpu
