// Operations row by row: each row is a call into the vector code.
#include "compute/cpu/rows.h"

#include "compute/cpu/cpu.h"
#include "compute/cpu/gemm.h"

namespace nib::cpu {

namespace {

// Elements that cost about as much as one multiplication of a product each.
constexpr int64_t kWorkPerElement = 4;

}  // namespace

template <class T>
void rms_norm(Context& cx, View<T, 2> y, View<const T, 2> x, View<const T, 1> weight, float eps) {
  const auto& k = row_kernels<T>(cx.isa);
  run_parallel(cx, x.dim(0), x.size() * kWorkPerElement,
               [&](int64_t t, int) { k.rms_norm(raw(y.row(t)), raw(x.row(t)), raw(weight.data()), x.dim(1), eps); });
}

template <class T>
void embed_norm(Context& cx, View<T, 2> y, View<const int32_t, 1> tokens, const Weight& table, View<const T, 1> weight,
                float eps) {
  const auto& k = row_kernels<T>(cx.isa);
  run_parallel(cx, y.dim(0), y.size() * kWorkPerElement, [&](int64_t t, int) {
    const int64_t offset = tokens(t) * table.in;
    if (table.format == WeightFormat::kF32)
      k.rms_norm_floats(raw(y.row(t)), static_cast<const float*>(table.data) + offset, raw(weight.data()), table.in,
                        eps);
    else
      k.rms_norm_halves(raw(y.row(t)), static_cast<const Half*>(table.data) + offset, raw(weight.data()), table.in,
                        eps);
  });
}

template <class T>
void add(Context& cx, View<T, 2> y, View<const T, 2> x, View<const T, 2> delta) {
  const auto& k = row_kernels<T>(cx.isa);
  run_parallel(cx, x.dim(0), x.size(),
               [&](int64_t t, int) { k.add(raw(y.row(t)), raw(x.row(t)), raw(delta.row(t)), x.dim(1)); });
}

template <class T>
void norm_heads(Context& cx, View<T, 2> x, int64_t head_dim, View<const T, 1> weight, float eps,
                View<const float, 1> tau) {
  const auto& k = row_kernels<T>(cx.isa);
  run_parallel(cx, x.dim(0), x.size() * kWorkPerElement, [&](int64_t t, int) {
    for (int64_t begin = 0; begin < x.dim(1); begin += head_dim) {
      T* head = x.row(t) + begin;
      k.rms_norm(raw(head), raw(const_cast<const T*>(head)), raw(weight.data()), head_dim, eps);
    }
    if (!tau.empty()) k.scale(raw(x.row(t)), x.dim(1), tau(t));
  });
}

template <class T>
void clip_heads(Context& cx, View<T, 2> x, int64_t head_dim, float limit, View<const T, 1> scales,
                View<const float, 1> tau) {
  const auto& k = row_kernels<T>(cx.isa);
  const int64_t step = scales.empty() || scales.dim(0) == head_dim ? 0 : 1;
  run_parallel(cx, x.dim(0), x.size() * kWorkPerElement, [&](int64_t t, int) {
    for (int64_t begin = 0; begin < x.dim(1); begin += head_dim) {
      const T* scale = scales.empty() ? nullptr : scales.data() + step * begin;
      k.clip(raw(x.row(t) + begin), raw(scale), head_dim, limit);
    }
    if (!tau.empty()) k.scale(raw(x.row(t)), x.dim(1), tau(t));
  });
}

template <class T>
void apply_gate(Context& cx, View<T, 2> y, View<const T, 2> gate, int64_t heads, ops::GateAct act) {
  const auto& k = row_kernels<T>(cx.isa);
  const Gate kind = static_cast<Gate>(act);
  const int64_t head_dim = y.dim(1) / heads;
  run_parallel(cx, y.dim(0), y.size() * 2 * kWorkPerElement, [&](int64_t t, int) {
    if (gate.dim(1) == y.dim(1)) return k.gate(raw(y.row(t)), raw(gate.row(t)), y.dim(1), kind);
    for (int64_t h = 0; h < heads; ++h)
      k.gate_head(raw(y.row(t) + h * head_dim), *raw(gate.row(t) + h), head_dim, kind);
  });
}

template <class T>
void activation(Context& cx, View<T, 2> y, View<const T, 2> h, View<const float, 1> weight, const Activation& a) {
  const auto& k = row_kernels<T>(cx.isa);
  run_parallel(cx, y.dim(0), y.size() * 4 * kWorkPerElement, [&](int64_t t, int) {
    const ActivationRow row{a.kind == Activation::Kind::kSitu, a.beta, a.linear_beta,
                            weight.empty() ? 1.0f : weight(t)};
    k.activation(raw(y.row(t)), raw(h.row(t)), y.dim(1), row);
  });
}

template <class T>
void relative_profile(Context& cx, View<T, 3> profile, View<const T, 2> r, View<const T, 2> table,
                      View<const float, 1> tau) {
  const auto& k = row_kernels<T>(cx.isa);
  const int64_t heads = profile.dim(1), columns = profile.dim(2), d_rel = table.dim(0);
  run_parallel(cx, profile.dim(0), profile.size() * d_rel, [&](int64_t t, int) {
    k.profile(raw(profile.row(t)), raw(r.row(t)), raw(table.data()), {heads, d_rel, columns, table.stride(0)});
    if (!tau.empty()) k.scale(raw(profile.row(t)), heads * columns, tau(t));
  });
}

void soft_cap(Context& cx, View<float, 2> logits, float mup, float cap) {
  run_parallel(cx, logits.dim(0), logits.size() * 2 * kWorkPerElement,
               [&](int64_t t, int) { row_kernels<float>(cx.isa).soft_cap(logits.row(t), logits.dim(1), mup, cap); });
}

template <class T>
void depth_mix_norm(Context& cx, std::span<const View<T, 2>> outputs, std::span<const View<const T, 2>> sources,
                    std::span<const View<const float, 1>> queries, std::span<const View<const T, 1>> gains,
                    const DepthMixParams& p) {
  const auto& k = row_kernels<T>(cx.isa);
  using E = std::conditional_t<sizeof(T) == 2, Half, float>;
  const int64_t hidden = sources[0].dim(1), tokens = sources[0].dim(0);
  Workspace::Scope scope(cx.workspace);
  const View<float, 2> scratch = cx.workspace.take<float, 2>({cx.pool.num_threads(), hidden});
  const int64_t work = tokens * hidden * static_cast<int64_t>(sources.size() * (1 + 2 * outputs.size()));
  run_parallel(cx, tokens, work, [&](int64_t t, int thread) {
    const E *source_rows[16], *gain_rows[3];
    const float* query_rows[3];
    E* output_rows[3];
    for (size_t j = 0; j < sources.size(); ++j) source_rows[j] = raw(sources[j].row(t));
    for (size_t m = 0; m < outputs.size(); ++m) {
      output_rows[m] = raw(outputs[m].row(t));
      query_rows[m] = queries[m].data(), gain_rows[m] = raw(gains[m].data());
    }
    k.depth_mix(DepthMixRow<E>{output_rows, source_rows, query_rows, gain_rows, static_cast<int>(outputs.size()),
                               static_cast<int>(sources.size()), hidden, p.logit_scale, p.source_eps, p.norm_eps,
                               scratch.row(thread)});
  });
}

#define NIB_INSTANTIATE(T)                                                                                        \
  template void rms_norm(Context&, View<T, 2>, View<const T, 2>, View<const T, 1>, float);                        \
  template void embed_norm(Context&, View<T, 2>, View<const int32_t, 1>, const Weight&, View<const T, 1>, float); \
  template void add(Context&, View<T, 2>, View<const T, 2>, View<const T, 2>);                                    \
  template void norm_heads(Context&, View<T, 2>, int64_t, View<const T, 1>, float, View<const float, 1>);         \
  template void clip_heads(Context&, View<T, 2>, int64_t, float, View<const T, 1>, View<const float, 1>);         \
  template void apply_gate(Context&, View<T, 2>, View<const T, 2>, int64_t, ops::GateAct);                        \
  template void activation(Context&, View<T, 2>, View<const T, 2>, View<const float, 1>, const Activation&);      \
  template void relative_profile(Context&, View<T, 3>, View<const T, 2>, View<const T, 2>, View<const float, 1>); \
  template void depth_mix_norm(Context&, std::span<const View<T, 2>>, std::span<const View<const T, 2>>,          \
                               std::span<const View<const float, 1>>, std::span<const View<const T, 1>>,          \
                               const DepthMixParams&);
NIB_INSTANTIATE(float)
NIB_INSTANTIATE(bf16)

}  // namespace nib::cpu
