#include <algorithm>

#include "compute/cpu/cpu.h"
#include "compute/cpu/gemm.h"

namespace nib::cpu {

namespace {

// What all rows of a call share.
template <class T>
struct Call {
  using E = std::conditional_t<sizeof(T) == 2, Half, float>;
  View<T, 2> out;
  View<const T, 2> q;
  const PagedKv<T>& kv;
  View<const T, 3> profile;
  View<const float, 2> sink;
  const AttentionParams& p;
  int64_t group, head_dim;
  void (*kernel)(const AttentionRow<E>&);

  void row(int64_t sequence, int64_t t, int64_t position, int64_t kv_head, float* scratch) const {
    const int64_t head = kv_head * group;
    AttentionRow<E> a;
    a.out = reinterpret_cast<E*>(out.row(t) + head * head_dim);
    a.q = reinterpret_cast<const E*>(q.row(t) + head * head_dim);
    a.k = reinterpret_cast<const E*>(kv.k.data() + kv_head * kv.k.stride(2));
    a.v = reinterpret_cast<const E*>(kv.v.data() + kv_head * kv.v.stride(2));
    a.block_stride = kv.k.stride(0), a.key_stride = kv.k.stride(1);
    a.block_table = kv.block_tables.row(sequence), a.block_size = kv.block_size();
    if (p.extent > 0)
      a.profile = reinterpret_cast<const E*>(&profile(t, head, 0)), a.profile_stride = profile.stride(1);
    a.sink = sink.empty() ? nullptr : &sink(t, head);
    a.first = p.window > 0 ? std::max<int64_t>(0, position - p.window + 1) : 0, a.position = position;
    a.extent = p.extent, a.clamp_beyond_extent = p.clamp_beyond_extent, a.scale = p.scale;
    a.group = group, a.head_dim = head_dim, a.scratch = scratch;
    kernel(a);
  }
};

}  // namespace

template <class T>
void relative_attention(Context& cx, View<T, 2> out, View<const T, 2> q, const PagedKv<T>& kv, View<const T, 3> profile,
                        View<const float, 2> sink, std::span<const SequenceRows> batch, const AttentionParams& p) {
  using E = typename Call<T>::E;
  const int64_t kv_heads = kv.k.dim(2), head_dim = kv.k.dim(3), group = q.dim(1) / head_dim / kv_heads;
  const Call<T> call{out,     q,        kv,
                     profile, sink,     p,
                     group,   head_dim, cx.isa == Isa::kAvx2 ? avx2::attention_row<E> : avx512::attention_row<E>};
  Workspace::Scope scope(cx.workspace);
  const View<float, 2> scratch =
      cx.workspace.take<float, 2>({cx.pool.num_threads(), attention_scratch(group, head_dim)});

  // Task i of sequence s: row i / kv_heads. Late rows see the most keys, so they come first.
  int64_t work = 0, tasks = 0;
  for (const SequenceRows& s : batch) {
    const int64_t keys = p.window > 0 ? std::min(p.window, s.start + s.count) : s.start + s.count;
    work += s.count * keys * q.dim(1) * 2;
    tasks += s.count * kv_heads;
  }
  run_parallel(cx, tasks, work, [&](int64_t i, int thread) {
    int64_t sequence = static_cast<int64_t>(batch.size()) - 1;
    for (; i >= batch[sequence].count * kv_heads; --sequence) i -= batch[sequence].count * kv_heads;
    const SequenceRows& s = batch[sequence];
    const int64_t row = s.count - 1 - i / kv_heads;
    call.row(sequence, s.begin + row, s.start + row, i % kv_heads, scratch.row(thread));
  });
}

#define NIB_INSTANTIATE(T)                                                                                      \
  template void relative_attention(Context&, View<T, 2>, View<const T, 2>, const PagedKv<T>&, View<const T, 3>, \
                                   View<const float, 2>, std::span<const SequenceRows>, const AttentionParams&);
NIB_INSTANTIATE(float)
NIB_INSTANTIATE(bf16)

}  // namespace nib::cpu
