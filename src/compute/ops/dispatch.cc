// The one place where an operation chooses its implementation, and where shapes are checked on the way in.
#include <algorithm>
#include <cmath>

#include "compute/cpu/cpu.h"
#include "compute/ref/ref.h"

namespace nib {

float Tau::operator()(int64_t position) const {
  if (floor == 0) return 1.0f;
  return static_cast<float>(1.0 + alpha * std::log(std::max(1.0, static_cast<double>(position + 1) / floor)));
}

namespace ops {

namespace {

bool plain(const Context& cx) { return cx.isa == Isa::kRef; }

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

template <class A, class B>
void check_same_shape(const A& a, const B& b) {
  NIB_CHECK_EQ(a.dim(0), b.dim(0));
  NIB_CHECK_EQ(a.dim(1), b.dim(1));
}

void check_weight(const Weight& w) {
  NIB_CHECK(w.data != nullptr, "empty weight [{}, {}]", w.out, w.in);
  NIB_CHECK(w.format != WeightFormat::kNvfp4 || w.in % 16 == 0, "NVFP4 rows of {}", w.in);
  NIB_CHECK(w.format != WeightFormat::kMxfp8 || w.in % 32 == 0, "MXFP8 rows of {}", w.in);
  NIB_CHECK(w.scales != nullptr || row_scale_bytes(w.format, w.in) == 0, "no scales");
}

void check_batch(std::span<const SequenceRows> batch, int64_t tokens) {
  for (const SequenceRows& s : batch) {
    NIB_CHECK(s.begin >= 0 && s.count >= 1 && s.start >= 0, "rows {} + {} at {}", s.begin, s.count, s.start);
    NIB_CHECK(s.begin + s.count <= tokens, "rows {} + {} of {}", s.begin, s.count, tokens);
  }
}

template <class T>
void check_cache(const PagedKv<T>& kv, std::span<const SequenceRows> batch) {
  NIB_CHECK(kv.k.shape() == kv.v.shape(), "K and V caches differ in shape");
  for (int axis = 0; axis < 4; ++axis) NIB_CHECK_EQ(kv.k.stride(axis), kv.v.stride(axis));
  NIB_CHECK_EQ(kv.block_tables.dim(0), static_cast<int64_t>(batch.size()));
  for (const SequenceRows& s : batch)
    NIB_CHECK(s.start + s.count <= kv.block_tables.dim(1) * kv.block_size(), "position {} of {} blocks of {}",
              s.start + s.count - 1, kv.block_tables.dim(1), kv.block_size());
}

void check_tau(View<const float, 1> tau, int64_t tokens) {
  NIB_CHECK(tau.empty() || tau.dim(0) == tokens, "{} tau for {} tokens", tau.dim(0), tokens);
}

}  // namespace

// Partial sums that a thread keeps between two parts of a product.
constexpr int64_t kGemmThreadBytes = int64_t{256} << 10;

int64_t gemm_workspace_bytes(int64_t tokens, int64_t in, int64_t num_threads) {
  const int64_t padded = round_up(in, 64);
  return num_threads * (padded * 64 + kGemmThreadBytes) + round_up(tokens, 16) * padded * 4 + 1024;
}

int64_t experts_workspace_bytes(const ExpertsShape& s, int64_t num_threads) {
  const int64_t slots = s.tokens * s.top_k, hidden = round_up(s.hidden, 64), width = round_up(s.width, 64);
  const int64_t a_slot = s.element_bytes * (hidden + width + 2 * s.width) + 4 * s.hidden + 8;
  const int64_t a_thread = 64 * std::max(hidden, width) + kGemmThreadBytes + s.element_bytes * width;
  // The plain loops decode one row a thread and hold one token.
  return slots * a_slot + num_threads * a_thread + 8 * s.num_experts + 16 * hidden + 16 * width + 8192;
}

int64_t attention_workspace_bytes(int64_t heads, int64_t head_dim, int64_t num_threads) {
  return num_threads * round_up(heads, 16) * (round_up(head_dim, 16) * 2 + 256) * 4 + 1024;
}

int64_t depth_mix_workspace_bytes(int64_t hidden, int64_t num_threads) {
  return num_threads * 3 * round_up(hidden, 16) * 4 + 1024;
}

template <class T, class Y>
void gemm(Context& cx, View<Y, 2> y, View<const T, 2> x, const Weight& w) {
  check_weight(w);
  NIB_CHECK_EQ(y.dim(0), x.dim(0));
  NIB_CHECK_EQ(y.dim(1), w.out);
  NIB_CHECK_EQ(x.dim(1), w.in);
  plain(cx) ? ref::gemm<T, Y>(cx, y, x, w) : cpu::gemm<T, Y>(cx, y, x, w);
}

template <class T>
void gemm_all(Context& cx, std::span<const Product<T>> products) {
  NIB_CHECK(static_cast<int64_t>(products.size()) <= kMaxProducts, "{} products", products.size());
  for (const Product<T>& p : products) {
    check_weight(*p.w);
    NIB_CHECK_EQ(p.y.dim(0), p.x.dim(0));
    NIB_CHECK_EQ(p.y.dim(1), p.w->out);
    NIB_CHECK_EQ(p.x.dim(1), p.w->in);
  }
  if (!plain(cx)) return cpu::gemm_all(cx, products);
  for (const Product<T>& p : products) ref::gemm<T, T>(cx, p.y, p.x, *p.w);
}

template <class T>
void experts(Context& cx, View<T, 2> y, View<const T, 2> x, View<const int32_t, 2> ids, View<const float, 2> weights,
             const ExpertWeights& w, bool accumulate) {
  check_same_shape(y, x);
  check_same_shape(ids, weights);
  NIB_CHECK_EQ(ids.dim(0), x.dim(0));
  NIB_CHECK_EQ(w.w13.size(), w.w2.size());
  const int64_t num_experts = static_cast<int64_t>(w.w13.size());
  for (int64_t t = 0; t < ids.dim(0); ++t)
    for (int64_t j = 0; j < ids.dim(1); ++j) {
      const int32_t e = ids(t, j);
      NIB_CHECK(e >= 0 && e < num_experts, "expert {} of {}", e, num_experts);
      NIB_CHECK_EQ(w.w13[e].in, x.dim(1));
      NIB_CHECK_EQ(w.w2[e].out, x.dim(1));
      NIB_CHECK_EQ(w.w13[e].out, 2 * w.w2[e].in);
      NIB_CHECK(w.w13[e].format == w.w13[0].format, "expert {} has another format than expert 0", e);
      NIB_CHECK(w.w2[e].format == w.w2[0].format, "expert {} has another format than expert 0", e);
    }
  plain(cx) ? ref::experts(cx, y, x, ids, weights, w, accumulate) : cpu::experts(cx, y, x, ids, weights, w, accumulate);
}

template <class T>
void activation(Context& cx, View<T, 2> y, View<const T, 2> h, View<const float, 1> weight, const Activation& a) {
  NIB_CHECK_EQ(y.dim(0), h.dim(0));
  NIB_CHECK_EQ(2 * y.dim(1), h.dim(1));
  NIB_CHECK(weight.empty() || weight.dim(0) == y.dim(0), "{} weights for {} rows", weight.dim(0), y.dim(0));
  plain(cx) ? ref::activation(cx, y, h, weight, a) : cpu::activation(cx, y, h, weight, a);
}

template <class T>
void rms_norm(Context& cx, View<T, 2> y, View<const T, 2> x, View<const T, 1> weight, float eps) {
  check_same_shape(y, x);
  NIB_CHECK(weight.empty() || weight.dim(0) == x.dim(1), "{} weights for rows of {}", weight.dim(0), x.dim(1));
  plain(cx) ? ref::rms_norm(cx, y, x, weight, eps) : cpu::rms_norm(cx, y, x, weight, eps);
}

template <class T>
void embed_norm(Context& cx, View<T, 2> y, View<const int32_t, 1> tokens, const Weight& table, View<const T, 1> weight,
                float eps) {
  NIB_CHECK(table.format == WeightFormat::kF32 || table.format == WeightFormat::kBF16, "the table must be F32 or BF16");
  NIB_CHECK_EQ(y.dim(0), tokens.dim(0));
  NIB_CHECK_EQ(y.dim(1), table.in);
  NIB_CHECK(weight.empty() || weight.dim(0) == table.in, "{} weights for rows of {}", weight.dim(0), table.in);
  for (int64_t t = 0; t < tokens.dim(0); ++t)
    NIB_CHECK(tokens(t) >= 0 && tokens(t) < table.out, "token {} of {}", tokens(t), table.out);
  plain(cx) ? ref::embed_norm(cx, y, tokens, table, weight, eps) : cpu::embed_norm(cx, y, tokens, table, weight, eps);
}

template <class T>
void add(Context& cx, View<T, 2> y, View<const T, 2> x, View<const T, 2> delta) {
  check_same_shape(y, x);
  check_same_shape(y, delta);
  plain(cx) ? ref::add(cx, y, x, delta) : cpu::add(cx, y, x, delta);
}

void router(Context& cx, View<int32_t, 2> ids, View<float, 2> weights, View<float, 2> shared_weights,
            View<const float, 2> logits, const RouterParams& p) {
  check_same_shape(ids, weights);
  NIB_CHECK_EQ(ids.dim(0), logits.dim(0));
  const int64_t experts = logits.dim(1) - (shared_weights.empty() ? 0 : shared_weights.dim(1));
  NIB_CHECK(ids.dim(1) >= 1 && ids.dim(1) <= experts, "top {} of {} experts", ids.dim(1), experts);
  NIB_CHECK(p.bias.empty() || p.bias.dim(0) == experts, "{} biases for {} experts", p.bias.dim(0), experts);
  plain(cx) ? ref::router(cx, ids, weights, shared_weights, logits, p)
            : cpu::router(cx, ids, weights, shared_weights, logits, p);
}

template <class T>
void short_conv(Context& cx, View<T, 2> y, View<const T, 2> x, const ConvState<T>& state,
                std::span<const SequenceRows> batch, const ConvTaps<T>& taps, View<const T, 2> residual) {
  check_same_shape(y, x);
  check_batch(batch, x.dim(0));
  NIB_CHECK_EQ(state.slots.size(), batch.size());
  NIB_CHECK_EQ(state.data.dim(2), x.dim(1));
  NIB_CHECK(state.data.dim(1) >= taps.width - 1, "a ring of {} for width {}", state.data.dim(1), taps.width);
  NIB_CHECK(taps.fixed.empty() || taps.fixed.dim(1) == taps.width, "{} taps for width {}", taps.fixed.dim(1),
            taps.width);
  NIB_CHECK(!taps.fixed.empty() || !taps.generated.empty(), "no taps");
  NIB_CHECK(residual.empty() || residual.dim(0) == x.dim(0), "{} residual rows of {}", residual.dim(0), x.dim(0));
  for (int32_t slot : state.slots) NIB_CHECK(slot >= 0 && slot < state.data.dim(0), "slot {}", slot);
  plain(cx) ? ref::short_conv(cx, y, x, state, batch, taps, residual)
            : cpu::short_conv(cx, y, x, state, batch, taps, residual);
}

template <class T>
void depth_mix_norm(Context& cx, std::span<const View<T, 2>> outputs, std::span<const View<const T, 2>> sources,
                    std::span<const View<const float, 1>> queries, std::span<const View<const T, 1>> gains,
                    const DepthMixParams& p) {
  NIB_CHECK(outputs.size() >= 1 && outputs.size() <= 3, "{} outputs", outputs.size());
  NIB_CHECK(sources.size() >= 1 && sources.size() <= 16, "{} sources", sources.size());
  NIB_CHECK_EQ(queries.size(), outputs.size());
  NIB_CHECK_EQ(gains.size(), outputs.size());
  for (const auto& s : sources) check_same_shape(s, sources[0]);
  for (size_t m = 0; m < outputs.size(); ++m) {
    check_same_shape(outputs[m], sources[0]);
    NIB_CHECK(gains[m].empty() || gains[m].dim(0) == sources[0].dim(1), "{} gains", gains[m].dim(0));
    NIB_CHECK(!queries[m].empty() || sources.size() == 1, "{} sources without a query", sources.size());
    NIB_CHECK(queries[m].empty() || queries[m].dim(0) == sources[0].dim(1), "a query of {}", queries[m].dim(0));
  }
  plain(cx) ? ref::depth_mix_norm(cx, outputs, sources, queries, gains, p)
            : cpu::depth_mix_norm(cx, outputs, sources, queries, gains, p);
}

template <class T>
void write_kv(Context& cx, const PagedKv<T>& kv, View<const T, 2> k, View<const T, 2> v,
              std::span<const SequenceRows> batch) {
  check_same_shape(k, v);
  check_batch(batch, k.dim(0));
  check_cache(kv, batch);
  NIB_CHECK_EQ(k.dim(1), kv.k.dim(2) * kv.k.dim(3));
  ref::write_kv(cx, kv, k, v, batch);
}

template <class T>
void relative_profile(Context& cx, View<T, 3> profile, View<const T, 2> r, View<const T, 2> table,
                      View<const float, 1> tau) {
  NIB_CHECK_EQ(profile.dim(0), r.dim(0));
  NIB_CHECK_EQ(profile.dim(1) * table.dim(0), r.dim(1));
  NIB_CHECK_EQ(profile.dim(2), table.dim(1));
  check_tau(tau, r.dim(0));
  plain(cx) ? ref::relative_profile(cx, profile, r, table, tau) : cpu::relative_profile(cx, profile, r, table, tau);
}

template <class T>
void relative_attention(Context& cx, View<T, 2> out, View<const T, 2> q, const PagedKv<T>& kv, View<const T, 3> profile,
                        View<const float, 2> sink, std::span<const SequenceRows> batch, const AttentionParams& p) {
  check_same_shape(out, q);
  check_batch(batch, q.dim(0));
  check_cache(kv, batch);
  const int64_t heads = q.dim(1) / kv.k.dim(3);
  NIB_CHECK_EQ(heads * kv.k.dim(3), q.dim(1));
  NIB_CHECK_EQ(heads % kv.k.dim(2), 0);
  NIB_CHECK(sink.empty() || sink.dim(1) == heads, "{} sinks for {} heads", sink.dim(1), heads);
  NIB_CHECK(p.extent == 0 || profile.dim(2) >= p.extent, "a profile of {} for extent {}", profile.dim(2), p.extent);
  NIB_CHECK(p.extent == 0 || profile.dim(1) == heads, "profiles of {} heads for {}", profile.dim(1), heads);
  plain(cx) ? ref::relative_attention(cx, out, q, kv, profile, sink, batch, p)
            : cpu::relative_attention(cx, out, q, kv, profile, sink, batch, p);
}

template <class T>
void clip_heads(Context& cx, View<T, 2> x, int64_t head_dim, float limit, View<const T, 1> scales,
                View<const float, 1> tau) {
  NIB_CHECK_EQ(x.dim(1) % head_dim, 0);
  NIB_CHECK(scales.empty() || scales.dim(0) == head_dim || scales.dim(0) == x.dim(1), "{} scales", scales.dim(0));
  check_tau(tau, x.dim(0));
  plain(cx) ? ref::clip_heads(cx, x, head_dim, limit, scales, tau)
            : cpu::clip_heads(cx, x, head_dim, limit, scales, tau);
}

template <class T>
void norm_heads(Context& cx, View<T, 2> x, int64_t head_dim, View<const T, 1> weight, float eps,
                View<const float, 1> tau) {
  NIB_CHECK_EQ(x.dim(1) % head_dim, 0);
  NIB_CHECK(weight.empty() || weight.dim(0) == head_dim, "{} weights for heads of {}", weight.dim(0), head_dim);
  check_tau(tau, x.dim(0));
  plain(cx) ? ref::norm_heads(cx, x, head_dim, weight, eps, tau) : cpu::norm_heads(cx, x, head_dim, weight, eps, tau);
}

template <class T>
void apply_gate(Context& cx, View<T, 2> y, View<const T, 2> gate, int64_t heads, GateAct act) {
  NIB_CHECK_EQ(y.dim(0), gate.dim(0));
  NIB_CHECK(gate.dim(1) == heads || gate.dim(1) == y.dim(1), "{} gates for {} heads", gate.dim(1), heads);
  plain(cx) ? ref::apply_gate(cx, y, gate, heads, act) : cpu::apply_gate(cx, y, gate, heads, act);
}

void soft_cap(Context& cx, View<float, 2> logits, float mup, float cap) {
  NIB_CHECK(mup > 0, "mup is {}", mup);
  plain(cx) ? ref::soft_cap(cx, logits, mup, cap) : cpu::soft_cap(cx, logits, mup, cap);
}

// Sines of one library serve every instruction set.
void rotary_table(Context& cx, View<float, 2> table, std::span<const SequenceRows> batch,
                  View<const float, 1> inverse_frequencies) {
  check_batch(batch, table.dim(0));
  NIB_CHECK_EQ(table.dim(1), 2 * inverse_frequencies.dim(0));
  ref::rotary_table(cx, table, batch, inverse_frequencies);
}

template <class T>
void rope(Context& cx, View<T, 2> x, View<const float, 2> table) {
  NIB_CHECK_EQ(x.dim(0), table.dim(0));
  NIB_CHECK_EQ(table.dim(1) % 2, 0);
  NIB_CHECK_EQ(x.dim(1) % table.dim(1), 0);
  plain(cx) ? ref::rope(cx, x, table) : cpu::rope(cx, x, table);
}

int64_t block_attention_workspace_bytes(int64_t rows, int64_t heads, int64_t head_dim, int64_t num_threads) {
  const int64_t width = round_up(head_dim, 16);
  return num_threads * (rows * heads * (2 * width + 66) + 128 * width + 64) * 4 + 1024;
}

template <class T>
void block_attention(Context& cx, View<T, 2> out, View<const T, 2> q, View<const T, 2> k, View<const T, 2> v,
                     const PagedKv<T>& context, std::span<const BlockRows> blocks, float scale) {
  const int64_t kv_heads = context.k.dim(2), head_dim = context.k.dim(3);
  check_same_shape(out, q);
  check_same_shape(k, v);
  NIB_CHECK(context.k.shape() == context.v.shape(), "K and V caches differ in shape");
  NIB_CHECK_EQ(k.dim(0), q.dim(0));
  NIB_CHECK_EQ(k.dim(1), kv_heads * head_dim);
  NIB_CHECK_EQ(q.dim(1) % k.dim(1), 0);
  NIB_CHECK_EQ(context.block_tables.dim(0), static_cast<int64_t>(blocks.size()));
  for (const BlockRows& b : blocks) {
    NIB_CHECK(b.begin >= 0 && b.count >= 1 && b.begin + b.count <= q.dim(0), "rows {} + {}", b.begin, b.count);
    NIB_CHECK(0 <= b.context_begin && b.context_begin <= b.context_end, "{} to {}", b.context_begin, b.context_end);
    NIB_CHECK(b.context_end <= context.block_tables.dim(1) * context.block_size(), "position {} of {} blocks of {}",
              b.context_end - 1, context.block_tables.dim(1), context.block_size());
  }
  plain(cx) ? ref::block_attention(cx, out, q, k, v, context, blocks, scale)
            : cpu::block_attention(cx, out, q, k, v, context, blocks, scale);
}

template void gemm(Context&, View<float, 2>, View<const float, 2>, const Weight&);
template void gemm(Context&, View<bf16, 2>, View<const bf16, 2>, const Weight&);
template void gemm(Context&, View<float, 2>, View<const bf16, 2>, const Weight&);

#define NIB_INSTANTIATE(T)                                                                                             \
  template void gemm_all(Context&, std::span<const Product<T>>);                                                       \
  template void experts(Context&, View<T, 2>, View<const T, 2>, View<const int32_t, 2>, View<const float, 2>,          \
                        const ExpertWeights&, bool);                                                                   \
  template void activation(Context&, View<T, 2>, View<const T, 2>, View<const float, 1>, const Activation&);           \
  template void rms_norm(Context&, View<T, 2>, View<const T, 2>, View<const T, 1>, float);                             \
  template void embed_norm(Context&, View<T, 2>, View<const int32_t, 1>, const Weight&, View<const T, 1>, float);      \
  template void add(Context&, View<T, 2>, View<const T, 2>, View<const T, 2>);                                         \
  template void short_conv(Context&, View<T, 2>, View<const T, 2>, const ConvState<T>&, std::span<const SequenceRows>, \
                           const ConvTaps<T>&, View<const T, 2>);                                                      \
  template void depth_mix_norm(Context&, std::span<const View<T, 2>>, std::span<const View<const T, 2>>,               \
                               std::span<const View<const float, 1>>, std::span<const View<const T, 1>>,               \
                               const DepthMixParams&);                                                                 \
  template void write_kv(Context&, const PagedKv<T>&, View<const T, 2>, View<const T, 2>,                              \
                         std::span<const SequenceRows>);                                                               \
  template void relative_profile(Context&, View<T, 3>, View<const T, 2>, View<const T, 2>, View<const float, 1>);      \
  template void relative_attention(Context&, View<T, 2>, View<const T, 2>, const PagedKv<T>&, View<const T, 3>,        \
                                   View<const float, 2>, std::span<const SequenceRows>, const AttentionParams&);       \
  template void clip_heads(Context&, View<T, 2>, int64_t, float, View<const T, 1>, View<const float, 1>);              \
  template void norm_heads(Context&, View<T, 2>, int64_t, View<const T, 1>, float, View<const float, 1>);              \
  template void apply_gate(Context&, View<T, 2>, View<const T, 2>, int64_t, GateAct);                                  \
  template void rope(Context&, View<T, 2>, View<const float, 2>);                                                      \
  template void block_attention(Context&, View<T, 2>, View<const T, 2>, View<const T, 2>, View<const T, 2>,            \
                                const PagedKv<T>&, std::span<const BlockRows>, float);
NIB_INSTANTIATE(float)
NIB_INSTANTIATE(bf16)

}  // namespace ops
}  // namespace nib
