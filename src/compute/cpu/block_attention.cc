#include "compute/ops/block_attention.h"

#include <algorithm>

#include "compute/cpu/block_kernels.h"
#include "compute/cpu/cpu.h"
#include "compute/cpu/gemm.h"

namespace nib::cpu {

template <class T>
void block_attention(Context& cx, View<T, 2> out, View<const T, 2> q, View<const T, 2> k, View<const T, 2> v,
                     const PagedKv<T>& context, std::span<const BlockRows> blocks, float scale) {
  using E = std::conditional_t<sizeof(T) == 2, Half, float>;
  const int64_t kv_heads = context.k.dim(2), head_dim = context.k.dim(3), group = q.dim(1) / head_dim / kv_heads;
  const auto kernel = cx.isa == Isa::kAvx2 ? avx2::block_attention<E> : avx512::block_attention<E>;
  int64_t most_slots = 0, work = 0;
  for (const BlockRows& b : blocks) {
    most_slots = std::max(most_slots, b.count);
    work += b.count * (b.context_end - b.context_begin + b.count) * q.dim(1) * 2;
  }
  Workspace::Scope scope(cx.workspace);
  const View<float, 2> scratch =
      cx.workspace.take<float, 2>({cx.pool.num_threads(), block_attention_scratch(most_slots * group, head_dim)});
  run_parallel(cx, static_cast<int64_t>(blocks.size()) * kv_heads, work, [&](int64_t i, int thread) {
    const BlockRows& b = blocks[i / kv_heads];
    const int64_t kv_head = i % kv_heads, column = kv_head * head_dim;
    BlockAttentionHead<E> a;
    a.out = reinterpret_cast<E*>(out.row(b.begin) + column * group), a.out_stride = out.stride(0);
    a.q = reinterpret_cast<const E*>(q.row(b.begin) + column * group), a.q_stride = q.stride(0);
    a.slots = b.count, a.group = group, a.head_dim = head_dim, a.scale = scale;
    a.k = reinterpret_cast<const E*>(k.row(b.begin) + column), a.k_stride = k.stride(0);
    a.v = reinterpret_cast<const E*>(v.row(b.begin) + column), a.v_stride = v.stride(0);
    a.cached_k = reinterpret_cast<const E*>(context.k.data() + kv_head * context.k.stride(2));
    a.cached_v = reinterpret_cast<const E*>(context.v.data() + kv_head * context.v.stride(2));
    a.block_stride = context.k.stride(0), a.key_stride = context.k.stride(1);
    a.block_table = context.block_tables.row(i / kv_heads), a.block_size = context.block_size();
    a.context_begin = b.context_begin, a.context_end = b.context_end;
    a.scratch = scratch.row(thread);
    kernel(a);
  });
}

#define NIB_INSTANTIATE(T)                                                                                  \
  template void block_attention(Context&, View<T, 2>, View<const T, 2>, View<const T, 2>, View<const T, 2>, \
                                const PagedKv<T>&, std::span<const BlockRows>, float);
NIB_INSTANTIATE(float)
NIB_INSTANTIATE(bf16)

}  // namespace nib::cpu
