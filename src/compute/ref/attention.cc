#include <algorithm>
#include <cmath>

#include "compute/ref/ref.h"

namespace nib::ref {

template <class T>
void write_kv(Context&, const PagedKv<T>& kv, View<const T, 2> k, View<const T, 2> v,
              std::span<const SequenceRows> batch) {
  for (size_t i = 0; i < batch.size(); ++i)
    for (int64_t row = 0; row < batch[i].count; ++row) {
      const int64_t position = batch[i].start + row, t = batch[i].begin + row;
      const int32_t block = kv.block_tables(i, position / kv.block_size());
      std::copy_n(k.row(t), k.dim(1), &kv.k(block, position % kv.block_size(), 0, 0));
      std::copy_n(v.row(t), v.dim(1), &kv.v(block, position % kv.block_size(), 0, 0));
    }
}

template <class T>
void relative_profile(Context&, View<T, 3> profile, View<const T, 2> r, View<const T, 2> table,
                      View<const float, 1> tau) {
  const int64_t d_rel = table.dim(0);
  for (int64_t t = 0; t < profile.dim(0); ++t)
    for (int64_t h = 0; h < profile.dim(1); ++h)
      for (int64_t e = 0; e < profile.dim(2); ++e) {
        float sum = 0;
        for (int64_t d = 0; d < d_rel; ++d) sum += as_float(r(t, h * d_rel + d)) * as_float(table(d, e));
        profile(t, h, e) = to<T>(sum);
        if (!tau.empty()) profile(t, h, e) = to<T>(as_float(profile(t, h, e)) * tau(t));
      }
}

namespace {

// One head of one row: position p of sequence i, scores taken twice (first for the maximum) so that none is stored.
template <class T>
struct Head {
  const T* q;
  const PagedKv<T>& kv;
  View<const T, 3> profile;
  const AttentionParams& params;
  int64_t sequence, t, head, kv_head, position;

  const T* row(const View<T, 4>& cache, int64_t s) const {
    const int32_t block = kv.block_tables(sequence, s / kv.block_size());
    return &cache(block, s % kv.block_size(), kv_head, 0);
  }
  float score(int64_t s) const {
    const T* k = row(kv.k, s);
    float dot = 0;
    for (int64_t d = 0; d < kv.k.dim(3); ++d) dot += as_float(q[d]) * as_float(k[d]);
    return params.scale * dot + bias(position - s);
  }
  float bias(int64_t distance) const {
    if (distance < params.extent) return as_float(profile(t, head, distance));
    return params.clamp_beyond_extent && params.extent > 0 ? as_float(profile(t, head, params.extent - 1)) : 0.0f;
  }
  int64_t first() const { return params.window > 0 ? std::max<int64_t>(0, position - params.window + 1) : 0; }
};

template <class T>
void attend(T* out, float* sum, const Head<T>& head, const float* sink) {
  const int64_t head_dim = head.kv.v.dim(3);
  float top = sink ? *sink : -INFINITY;
  for (int64_t s = head.first(); s <= head.position; ++s) top = std::max(top, head.score(s));
  float total = 0;
  std::fill_n(sum, head_dim, 0.0f);
  for (int64_t s = head.first(); s <= head.position; ++s) {
    const float p = std::exp(head.score(s) - top);
    const T* v = head.row(head.kv.v, s);
    for (int64_t d = 0; d < head_dim; ++d) sum[d] += p * as_float(v[d]);
    total += p;
  }
  if (sink) total += std::exp(*sink - top);
  for (int64_t d = 0; d < head_dim; ++d) out[d] = to<T>(sum[d] / total);
}

}  // namespace

template <class T>
void relative_attention(Context& cx, View<T, 2> out, View<const T, 2> q, const PagedKv<T>& kv, View<const T, 3> profile,
                        View<const float, 2> sink, std::span<const SequenceRows> batch, const AttentionParams& p) {
  const int64_t head_dim = kv.k.dim(3), heads = q.dim(1) / head_dim, group = heads / kv.k.dim(2);
  Workspace::Scope scope(cx.workspace);
  float* sum = cx.workspace.take<float, 1>({head_dim}).data();
  for (size_t i = 0; i < batch.size(); ++i)
    for (int64_t row = 0; row < batch[i].count; ++row)
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t t = batch[i].begin + row;
        const Head<T> head{q.row(t) + h * head_dim, kv, profile, p, static_cast<int64_t>(i), t, h, h / group,
                           batch[i].start + row};
        attend(out.row(t) + h * head_dim, sum, head, sink.empty() ? nullptr : &sink(t, h));
      }
}

namespace {
float gate_value(ops::GateAct act, float g) {
  switch (act) {
    case ops::GateAct::kSigmoid:
      return 1.0f / (1.0f + std::exp(-g));
    case ops::GateAct::kSilu:
      return g / (1.0f + std::exp(-g));
    case ops::GateAct::kTanh:
      return std::tanh(g);
    case ops::GateAct::kNone:
      return g;
  }
  return g;
}
}  // namespace

template <class T>
void apply_gate(Context&, View<T, 2> y, View<const T, 2> gate, int64_t heads, ops::GateAct act) {
  const int64_t per_gate = gate.dim(1) == heads ? y.dim(1) / heads : 1;
  for (int64_t t = 0; t < y.dim(0); ++t)
    for (int64_t c = 0; c < y.dim(1); ++c)
      y(t, c) = to<T>(as_float(y(t, c)) * gate_value(act, as_float(gate(t, c / per_gate))));
}

void soft_cap(Context&, View<float, 2> logits, float mup, float cap) {
  for (int64_t t = 0; t < logits.dim(0); ++t)
    for (int64_t i = 0; i < logits.dim(1); ++i) {
      const float z = logits(t, i) / mup;
      logits(t, i) = cap > 0 ? cap * std::tanh(z / cap) : z;
    }
}

#define NIB_INSTANTIATE(T)                                                                                        \
  template void write_kv(Context&, const PagedKv<T>&, View<const T, 2>, View<const T, 2>,                         \
                         std::span<const SequenceRows>);                                                          \
  template void relative_profile(Context&, View<T, 3>, View<const T, 2>, View<const T, 2>, View<const float, 1>); \
  template void relative_attention(Context&, View<T, 2>, View<const T, 2>, const PagedKv<T>&, View<const T, 3>,   \
                                   View<const float, 2>, std::span<const SequenceRows>, const AttentionParams&);  \
  template void apply_gate(Context&, View<T, 2>, View<const T, 2>, int64_t, ops::GateAct);
NIB_INSTANTIATE(float)
NIB_INSTANTIATE(bf16)

}  // namespace nib::ref
