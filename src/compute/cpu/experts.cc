// The routed experts: pairs (token, choice) are grouped by expert, so that each weight is read once for all its rows.
#include <algorithm>

#include "compute/cpu/cpu.h"
#include "compute/cpu/gemm.h"
#include "compute/cpu/rows.h"

namespace nib::cpu {

namespace {

// The pairs in the order of their expert; a pair's place in it is its slot.
struct Groups {
  View<int32_t, 1> slot_of;   // [tokens * top_k]
  View<int32_t, 1> token_of;  // [slots]
  View<int32_t, 1> begin;     // [active + 1], first slot of each expert that has any
  View<int32_t, 1> expert;    // [active]
  int64_t active = 0;

  RowGroup group(int64_t a) const { return {begin(a), begin(a + 1) - begin(a)}; }
  RowGroup group_of(int32_t slot) const {
    return group(std::upper_bound(&begin(0), &begin(active), slot) - &begin(0) - 1);
  }
};

Groups group_by_expert(Context& cx, View<const int32_t, 2> ids, int64_t num_experts) {
  const int64_t tokens = ids.dim(0), top_k = ids.dim(1), slots = tokens * top_k;
  Groups g;
  g.slot_of = cx.workspace.take<int32_t, 1>({slots});
  g.token_of = cx.workspace.take<int32_t, 1>({slots});
  g.begin = cx.workspace.take<int32_t, 1>({num_experts + 1});
  g.expert = cx.workspace.take<int32_t, 1>({num_experts});
  Workspace::Scope scope(cx.workspace);
  const View<int32_t, 1> next = cx.workspace.take<int32_t, 1>({num_experts});
  std::fill_n(next.data(), num_experts, 0);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t j = 0; j < top_k; ++j) ++next(ids(t, j));
  int32_t slot = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    const int32_t count = next(e);
    next(e) = slot;
    if (count == 0) continue;
    g.begin(g.active) = slot, g.expert(g.active++) = e;
    slot += count;
  }
  g.begin(g.active) = slot;
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t j = 0; j < top_k; ++j) {
      const int32_t s = next(ids(t, j))++;
      g.slot_of(t * top_k + j) = s, g.token_of(s) = t;
    }
  return g;
}

// y[slot, :] = W[expert of slot] . x[slot]
template <class Y>
void multiply_groups(Context& cx, const Plan& plan, View<Y, 2> y, const Packed& x, std::span<const Weight> weights,
                     const Groups& g) {
  const int64_t out = y.dim(1), in = weights[0].in;
  const int64_t step =
      choose_outputs(out, (x.rows + g.active - 1) / g.active, (8 * cx.pool.num_threads() + g.active - 1) / g.active);
  const int64_t blocks = (out + step - 1) / step;
  Workspace::Scope scope(cx.workspace);
  const View<std::byte, 2> scratch = take_scratch(cx, in);
  run_parallel(cx, g.active * blocks, y.size() * in, [&](int64_t i, int thread) {
    const int64_t a = i / blocks, begin = i % blocks * step;
    const RowGroup rows = g.group(a);
    GemmBlock block = block_of(x, rows, weights[g.expert(a)], y.row(rows.first), y.stride(0), sizeof(Y) == 2, begin,
                               std::min(out, begin + step));
    block.scratch = scratch.row(thread);
    plan.kernel(block);
  });
}

template <class T>
void pack(const Plan& plan, const Packed& packed, const Groups& g, int64_t slot, const T* x, int64_t in) {
  const RowGroup group = g.group_of(slot);
  pack_row(plan, packed, group, slot - group.first, x, in);
}

// The down projection in P (FP32, or T where the header asks for a rounding), then the sum of each token.
template <class P, class T>
void project_and_sum(Context& cx, View<T, 2> y, const Plan& plan, const Packed& x, View<const float, 2> weights,
                     const ExpertWeights& w, const Groups& g, bool accumulate) {
  const int64_t top_k = weights.dim(1), hidden = y.dim(1);
  const View<P, 2> parts = cx.workspace.take<P, 2>({x.rows, hidden});
  multiply_groups(cx, plan, parts, x, w.w2, g);
  const auto& k = row_kernels<T>(cx.isa);
  const auto combine = [&] {
    if constexpr (std::is_same_v<P, T>)
      return k.combine;
    else
      return k.combine_floats;
  }();
  run_parallel(cx, y.dim(0), parts.size(), [&](int64_t t, int) {
    combine(raw(y.row(t)), raw(parts.data()), &g.slot_of(t * top_k), w.weight_before_w2 ? nullptr : weights.row(t),
            top_k, hidden, accumulate);
  });
}

}  // namespace

template <class T>
void experts(Context& cx, View<T, 2> y, View<const T, 2> x, View<const int32_t, 2> ids, View<const float, 2> weights,
             const ExpertWeights& w, bool accumulate) {
  if (ids.dim(0) == 0) return;
  const int64_t hidden = x.dim(1), width = w.w2[0].in, top_k = ids.dim(1), slots = ids.size();
  const Plan plan13 = choose_plan(cx.isa, w.w13[0].format, sizeof(T) == 2);
  const Plan plan2 = choose_plan(cx.isa, w.w2[0].format, sizeof(T) == 2);
  Workspace::Scope scope(cx.workspace);
  const Groups g = group_by_expert(cx, ids, static_cast<int64_t>(w.w13.size()));
  const View<T, 2> h = cx.workspace.take<T, 2>({slots, 2 * width});
  const View<T, 2> act = cx.workspace.take<T, 2>({cx.pool.num_threads(), width});
  const Packed packed_x = take_packed(cx, plan13, slots, hidden), packed_act = take_packed(cx, plan2, slots, width);

  run_parallel(cx, slots, slots * hidden / 8,
               [&](int64_t s, int) { pack(plan13, packed_x, g, s, x.row(g.token_of(s)), hidden); });
  multiply_groups(cx, plan13, h, packed_x, w.w13, g);
  run_parallel(cx, slots, slots * width * 16, [&](int64_t i, int thread) {
    const int64_t s = g.slot_of(i);
    const Activation& a = w.activation;
    row_kernels<T>(cx.isa).activation(raw(act.row(thread)), raw(h.row(s)), width,
                                      ActivationRow{a.kind == Activation::Kind::kSitu, a.beta, a.linear_beta,
                                                    w.weight_before_w2 ? weights(i / top_k, i % top_k) : 1.0f});
    pack(plan2, packed_act, g, s, static_cast<const T*>(act.row(thread)), width);
  });
  if (w.weight_before_w2)
    project_and_sum<float>(cx, y, plan2, packed_act, weights, w, g, accumulate);
  else
    project_and_sum<T>(cx, y, plan2, packed_act, weights, w, g, accumulate);
}

#define NIB_INSTANTIATE(T)                                                                                    \
  template void experts(Context&, View<T, 2>, View<const T, 2>, View<const int32_t, 2>, View<const float, 2>, \
                        const ExpertWeights&, bool);
NIB_INSTANTIATE(float)
NIB_INSTANTIATE(bf16)

}  // namespace nib::cpu
