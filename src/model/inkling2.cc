#include "model/inkling2.h"

#include <algorithm>
#include <cmath>

#include "compute/ops/depth_mix.h"
#include "compute/ops/norm.h"
#include "compute/ops/router.h"
#include "model/step.h"
#include "model/weights.h"

namespace nib {

namespace {

using Source = ModelConfig::Source;

// The three inputs of an attention: the same rows in sliding layers, three mixtures in full ones.
template <class T>
struct AttentionInputs {
  View<const T, 2> q, k, v;
  View<const T, 2> of(Source source) const { return source == Source::kQ ? q : source == Source::kK ? k : v; }
};

// Its linear outputs; empty where a layer has none. Taps that are made from raw keys or values are not among them.
template <class T>
struct Projections {
  View<T, 2> q, k, v, r, gate, k_taps, v_taps;
};

ops::GateAct gate_act(ModelConfig::GateAct act) {
  switch (act) {
    case ModelConfig::GateAct::kSigmoid:
      return ops::GateAct::kSigmoid;
    case ModelConfig::GateAct::kSilu:
      return ops::GateAct::kSilu;
    case ModelConfig::GateAct::kTanh:
      return ops::GateAct::kTanh;
    case ModelConfig::GateAct::kNone:
      break;
  }
  return ops::GateAct::kNone;
}

// Of the whole network: finished blocks, and the one that is being summed.
int64_t num_states(const ModelConfig& c) { return (c.num_layers() + c.layers_per_block - 1) / c.layers_per_block + 1; }

template <class T>
class Inkling2 final : public Network {
 public:
  using Layer = typename Inkling2Weights<T>::Layer;
  using Rows = View<const T, 2>;

  Inkling2(const ModelConfig& config, Inkling2Weights<T> weights, const LoadOptions& options)
      : c_(config), w_(std::move(weights)), layout_(config, options), taps_(options.taps) {}

  const ModelConfig& config() const override { return c_; }
  const std::vector<CacheSpec>& cache_specs() const override { return layout_.specs(); }
  void forward(Context& cx, const ForwardInput& in, const KvCache& cache, View<float, 2> logits,
               const Trace* trace) const override;
  int64_t workspace_bytes(int64_t rows, int64_t logit_rows, int64_t num_threads) const override {
    return inkling2_workspace_bytes(c_, rows, logit_rows, num_threads, sizeof(T));
  }
  SharedTables shared_tables() const override;

 private:
  DepthMixParams mix_params() const;
  void tap_layer(const Step<T>& step, int64_t l, std::span<const Rows> sources) const;
  void tap_mixture(const Step<T>& step, int64_t visit, Tap::Kind kind, std::span<const Rows> sources,
                   View<const float, 1> query, View<const T, 1> gain) const;
  void attention_sublayer(const Step<T>& step, int64_t l, std::span<const Rows> sources, View<T, 2> P,
                          View<const float, 1> tau) const;
  void mlp_sublayer(const Step<T>& step, int64_t l, std::span<const Rows> sources, View<T, 2> P) const;
  View<T, 2> attention(const Step<T>& step, int64_t l, const AttentionInputs<T>& x, View<const float, 1> tau) const;
  Projections<T> projections(const Step<T>& step, int64_t l, const AttentionInputs<T>& x) const;
  View<T, 2> key_value(const Step<T>& step, int64_t l, ConvStream stream, View<T, 2> raw, View<T, 2> taps) const;
  void finish_key_value(const Step<T>& step, int64_t l, ConvStream stream, View<T, 2> rows) const;
  void activate_taps(const Step<T>& step, View<T, 2> taps) const;
  View<const float, 2> sink(const Step<T>& step, int64_t l, const AttentionInputs<T>& x, Rows r,
                            View<const float, 1> tau) const;
  View<T, 2> moe(const Step<T>& step, int64_t l, Rows y) const;
  void head(const Step<T>& step, std::span<const Rows> sources, View<float, 2> logits) const;

  const ModelConfig c_;
  const Inkling2Weights<T> w_;
  const CacheLayout<T> layout_;
  const std::vector<Tap> taps_;
};

// R[0], R[1], ... are the finished depth blocks, P is the one that grows; P follows the finished ones in memory, so the
// end of a block moves nothing. A block begins with the attention of its first layer, which still reads the P before.
template <class T>
void Inkling2<T>::forward(Context& cx, const ForwardInput& in, const KvCache& cache, View<float, 2> logits,
                          const Trace* trace) const {
  check_input(in, *this, logits);
  Workspace::Scope scope(cx.workspace);
  const Step<T> step(cx, in, cache, layout_, taps_, trace);
  const View<float, 1> tau = tau_of_rows(step, Tau{c_.tau_floor, c_.tau_alpha});
  std::vector<View<T, 2>> R;
  for (int64_t b = 0; b < num_states(c_); ++b) R.push_back(step.take(step.rows(), c_.hidden_size));
  const std::vector<Rows> sources(R.begin(), R.end());

  ops::embed_norm<T>(cx, R[0], in.tokens, w_.embed, w_.embed_norm, static_cast<float>(c_.rms_norm_eps));
  for (Tap::Kind kind : {Tap::Kind::kBlockSum, Tap::Kind::kMixture}) step.tap(-1, kind, R[0]);
  for (int64_t l = 0; l < c_.num_layers(); ++l) {
    const int64_t block = l / c_.layers_per_block;
    const bool boundary = l % c_.layers_per_block == 0;
    const View<T, 2> P = R[block + 1];
    const int64_t before = block + (boundary ? 1 : 2), after = block + 2;  // number of sources
    attention_sublayer(step, l, std::span(sources).first(before), P, tau);
    mlp_sublayer(step, l, std::span(sources).first(after), P);
    tap_layer(step, l, std::span(sources).first(after));
  }
  step.keep("P_final", sources.back());
  tap_mixture(step, c_.num_layers(), Tap::Kind::kOutputMixture, sources, w_.output_query, {});
  tap_mixture(step, c_.num_layers(), Tap::Kind::kOutputNormed, sources, w_.output_query, w_.norm);
  head(step, sources, logits);
}

template <class T>
DepthMixParams Inkling2<T>::mix_params() const {
  return {static_cast<float>(c_.depth_logit_scale), static_cast<float>(c_.attn_res_eps),
          static_cast<float>(c_.rms_norm_eps)};
}

// What a drafter may read after layer l: the sum P, or the mixture that the next sublayer reads.
template <class T>
void Inkling2<T>::tap_layer(const Step<T>& step, int64_t l, std::span<const Rows> sources) const {
  step.tap(l, Tap::Kind::kBlockSum, sources.back());
  const bool last = l + 1 == c_.num_layers();
  tap_mixture(step, l, Tap::Kind::kMixture, sources, last ? w_.output_query : w_.layers[l + 1].queries.front(), {});
}

template <class T>
void Inkling2<T>::tap_mixture(const Step<T>& step, int64_t visit, Tap::Kind kind, std::span<const Rows> sources,
                              View<const float, 1> query, View<const T, 1> gain) const {
  if (!step.wants_tap(visit, kind)) return;
  Workspace::Scope scope(step.cx.workspace);
  const View<T, 2> y = step.take(step.rows(), c_.hidden_size);
  ops::depth_mix_norm<T>(step.cx, {&y, 1}, sources, {&query, 1}, {&gain, 1}, mix_params());
  step.tap(visit, kind, y);
}

template <class T>
SharedTables Inkling2<T>::shared_tables() const {
  return {w_.embed, w_.unembed, static_cast<float>(c_.mup), Weight::plain(w_.embed_norm.data(), 1, c_.hidden_size),
          static_cast<float>(c_.rms_norm_eps)};
}

// xq, xk, xv = rms(mix(w; R, P); g)   then   P (+)= sconv(attention(xq, xk, xv))
template <class T>
void Inkling2<T>::attention_sublayer(const Step<T>& step, int64_t l, std::span<const Rows> sources, View<T, 2> P,
                                     View<const float, 1> tau) const {
  Workspace::Scope scope(step.cx.workspace);
  const Layer& layer = w_.layers[l];
  const bool full = c_.layers[l].full, boundary = l % c_.layers_per_block == 0;
  std::vector<View<T, 2>> x;
  for (size_t i = 0; i < layer.norms.size(); ++i) x.push_back(step.take(step.rows(), c_.hidden_size));
  std::vector<View<const float, 1>> queries = layer.queries;
  queries.resize(x.size());  // layer 0 has no query: one source, taken as it is
  step.keep("P_{}_attn", sources.back(), l);
  ops::depth_mix_norm<T>(step.cx, x, sources, queries, layer.norms, mix_params());
  const AttentionInputs<T> inputs{x.front(), full ? x[1] : x.front(), x.back()};
  step.keep("x_{}_q", inputs.q, l);
  if (full) step.keep("x_{}_k", inputs.k, l), step.keep("x_{}_v", inputs.v, l);

  const View<T, 2> a = attention(step, l, inputs, full ? tau : View<const float, 1>());
  step.keep("attn_{}", a, l);
  const ConvTaps<T> taps{layer.attn_taps, {}, true, c_.conv_width};
  const ConvState<T> state = step.conv(l, ConvStream::kAttention);
  if (boundary) {
    ops::short_conv<T>(step.cx, P, a, state, step.in.sequences, taps, {});
    step.keep("attn_conv_{}", P, l);
  } else if (step.trace == nullptr) {
    ops::short_conv<T>(step.cx, P, a, state, step.in.sequences, taps, P);
  } else {  // the same in two operations, so that the part between can be seen
    ops::short_conv<T>(step.cx, x[0], a, state, step.in.sequences, taps, {});
    step.keep("attn_conv_{}", x[0], l);
    ops::add<T>(step.cx, P, P, x[0]);
  }
  step.keep("P_{}_mlp", P, l);
}

// y = rms(mix(w; R, P); g)   P += sconv(moe(y))
template <class T>
void Inkling2<T>::mlp_sublayer(const Step<T>& step, int64_t l, std::span<const Rows> sources, View<T, 2> P) const {
  Workspace::Scope scope(step.cx.workspace);
  const Layer& layer = w_.layers[l];
  const View<T, 2> y = step.take(step.rows(), c_.hidden_size);
  ops::depth_mix_norm<T>(step.cx, {&y, 1}, sources, {&layer.mlp_query, 1}, {&layer.mlp_norm, 1}, mix_params());
  step.keep("x_{}_mlp", y, l);

  const View<T, 2> f = moe(step, l, y);
  step.keep("moe_{}", f, l);
  const ConvTaps<T> taps{layer.mlp_taps, {}, true, c_.conv_width};
  ops::short_conv<T>(step.cx, P, f, step.conv(l, ConvStream::kMlp), step.in.sequences, taps, P);
}

// a(p, s) = q2[p] . k2[s] / sqrt(hd) + prof[p, p-s]     p(p, s) = exp(a) / (exp(z[p]) + sum exp(a))
// out = (concat_i(sum_s p_i v2_j[s]) * act(gate)) wo^T
template <class T>
View<T, 2> Inkling2<T>::attention(const Step<T>& step, int64_t l, const AttentionInputs<T>& x,
                                  View<const float, 1> tau) const {
  Context& cx = step.cx;
  const Layer& layer = w_.layers[l];
  const LayerConfig& shape = c_.layers[l];
  const View<const float, 1> tau_q = c_.tau_on_q ? tau : View<const float, 1>();
  const View<const float, 1> tau_profile = c_.tau_on_profile ? tau : View<const float, 1>();
  const View<T, 2> out = step.take(step.rows(), c_.hidden_size);
  Workspace::Scope scope(cx.workspace);

  const PagedKv<T> kv = step.kv(l);
  const auto [q, raw_k, raw_v, r, gate, k_taps, v_taps] = projections(step, l, x);
  const View<T, 2> k = key_value(step, l, ConvStream::kKey, raw_k, k_taps);
  const View<T, 2> v = key_value(step, l, ConvStream::kValue, raw_v, v_taps);
  ops::write_kv<T>(cx, kv, k, v, step.in.sequences);
  ops::clip_heads<T>(cx, q, shape.head_dim, static_cast<float>(c_.q_clip), layer.q_scale, tau_q);
  ops::clip_heads<T>(cx, r, c_.d_rel, static_cast<float>(c_.rel_clip), layer.r_scale, {});
  const View<const float, 2> z = sink(step, l, x, r, tau);

  AttentionParams params{1.0f / std::sqrt(static_cast<float>(shape.head_dim)), shape.window, shape.extent,
                         c_.rel_clamp};
  const View<T, 2> o = step.take(step.rows(), q.dim(1));
  relative_attention_tiled<T>(step, o, q, r, kv, layer.table, tau_profile, z, params);
  if (!gate.empty()) ops::apply_gate<T>(cx, o, gate, shape.num_heads, gate_act(c_.attn_gate_act));
  ops::gemm<T, T>(cx, out, o, layer.o);
  return out;
}

template <class T>
Projections<T> Inkling2<T>::projections(const Step<T>& step, int64_t l, const AttentionInputs<T>& x) const {
  using Input = ModelConfig::TapInput;
  const Layer& layer = w_.layers[l];
  std::vector<ops::Product<T>> products;
  const auto add = [&](Rows input, const Weight& w) {
    if (w.empty()) return View<T, 2>();
    products.push_back({step.take(step.rows(), w.out), input, &w});
    return products.back().y;
  };
  Projections<T> p;
  p.q = add(x.q, layer.q), p.k = add(x.k, layer.k), p.v = add(x.v, layer.v);
  p.r = add(x.of(c_.rel_input), layer.r);
  p.gate = add(x.of(c_.attn_gate_input), layer.gate);
  if (c_.tap_input != Input::kRaw) {
    p.k_taps = add(c_.tap_input == Input::kOwn ? x.k : x.q, layer.k_tap_proj);
    p.v_taps = add(c_.tap_input == Input::kOwn ? x.v : x.q, layer.v_tap_proj);
  }
  ops::gemm_all<T>(step.cx, products);
  if (c_.tap_input == Input::kRaw) {
    if (!layer.k_tap_proj.empty()) p.k_taps = project(step, Rows(p.k), layer.k_tap_proj);
    if (!layer.v_tap_proj.empty()) p.v_taps = project(step, Rows(p.v), layer.v_tap_proj);
  }
  return p;
}

// K or V of the new rows as the cache keeps them: k2 = clip(conv(k)), v2 = rms0(conv(v)); full layers make the taps of
// the convolution from each token: act(G[h*W + j] . u[t]).
template <class T>
View<T, 2> Inkling2<T>::key_value(const Step<T>& step, int64_t l, ConvStream stream, View<T, 2> raw,
                                  View<T, 2> generated) const {
  const Layer& layer = w_.layers[l];
  ConvTaps<T> taps{stream == ConvStream::kKey ? layer.k_taps : layer.v_taps, {}, true, c_.conv_width};
  if (!generated.empty()) {
    activate_taps(step, generated);
    taps.generated = generated;
    taps.skip = c_.tap_skip;
  }
  const View<T, 2> y = step.take(step.rows(), raw.dim(1));
  if (!c_.conv_first) finish_key_value(step, l, stream, raw);
  ops::short_conv<T>(step.cx, y, raw, step.conv(l, stream), step.in.sequences, taps, {});
  if (c_.conv_first) finish_key_value(step, l, stream, y);
  return y;
}

template <class T>
void Inkling2<T>::finish_key_value(const Step<T>& step, int64_t l, ConvStream stream, View<T, 2> rows) const {
  const int64_t head_dim = c_.layers[l].head_dim;
  if (stream == ConvStream::kKey)
    ops::clip_heads<T>(step.cx, rows, head_dim, static_cast<float>(c_.k_clip), w_.layers[l].k_scale, {});
  else if (c_.value_norm)
    ops::norm_heads<T>(step.cx, rows, head_dim, {}, static_cast<float>(c_.rms_norm_eps), {});
}

// taps = act(taps)
template <class T>
void Inkling2<T>::activate_taps(const Step<T>& step, View<T, 2> taps) const {
  if (c_.tap_act == ModelConfig::GateAct::kNone) return;
  Workspace::Scope scope(step.cx.workspace);
  const View<T, 2> gate = step.take(taps.dim(0), taps.dim(1));
  std::copy_n(taps.data(), taps.size(), gate.data());
  std::fill_n(taps.data(), taps.size(), to<T>(1.0f));
  ops::apply_gate<T>(step.cx, taps, gate, taps.dim(1), gate_act(c_.tap_act));
}

// z[t, head]: a linear output of the token, or the last column of the relative table; empty if there is no sink.
template <class T>
View<const float, 2> Inkling2<T>::sink(const Step<T>& step, int64_t l, const AttentionInputs<T>& x, Rows r,
                                       View<const float, 1> tau) const {
  if (c_.sink_source == ModelConfig::Sink::kNone) return {};
  const Layer& layer = w_.layers[l];
  const int64_t rows = step.rows(), heads = c_.layers[l].num_heads, extent = c_.layers[l].extent;
  const View<float, 2> z = step.template take<float>(rows, heads);
  if (c_.sink_source == ModelConfig::Sink::kLinear) {
    ops::gemm<T, float>(step.cx, z, x.of(c_.sink_input), layer.sink);
  } else {
    const View<T, 3> column = step.cx.workspace.template take<T, 3>({rows, heads, 1});
    ops::relative_profile<T>(step.cx, column, r, columns(layer.table, extent, extent + 1), {});
    std::transform(column.data(), column.data() + column.size(), z.data(), [](T a) { return as_float(a); });
  }
  for (int64_t t = 0; c_.sink_tau && !tau.empty() && t < rows; ++t)
    for (int64_t i = 0; i < heads; ++i) z(t, i) *= tau(t);
  return z;
}

// f = sum_i w2_i . (weight_i * act(w13_i . y)), experts chosen by sigmoid(router . y) + bias
template <class T>
View<T, 2> Inkling2<T>::moe(const Step<T>& step, int64_t l, Rows y) const {
  const Layer& layer = w_.layers[l];
  const View<T, 2> f = step.take(step.rows(), c_.hidden_size);
  Workspace::Scope scope(step.cx.workspace);
  const View<float, 2> z = step.template take<float>(step.rows(), c_.num_experts);
  const View<int32_t, 2> ids = step.template take<int32_t>(step.rows(), c_.top_k);
  const View<float, 2> weights = step.template take<float>(step.rows(), c_.top_k);
  const float scale = static_cast<float>(c_.route_scale) * layer.router_global_scale;
  ops::gemm<T, float>(step.cx, z, y, layer.router);
  ops::router(step.cx, ids, weights, {}, z, {layer.router_bias, scale, c_.gate_softmax, c_.norm_after_topk});
  step.keep("route_ids_{}", ids, l);
  step.keep("route_weights_{}", weights, l);
  ops::experts<T>(step.cx, f, y, ids, weights, {layer.w13, layer.w2, c_.activation, true});
  return f;
}

// h = rms(mix(w_out; R, P); norm)   logits = cap * tanh(h . Wu^T / mup / cap), for the wanted rows only
template <class T>
void Inkling2<T>::head(const Step<T>& step, std::span<const Rows> sources, View<float, 2> logits) const {
  if (step.in.logit_rows.empty()) return;
  const int64_t wanted = logits.dim(0), H = c_.hidden_size;
  const View<T, 2> h = step.take(wanted, H);
  for (int64_t begin = 0; begin < wanted; begin += kRowTile) {
    Workspace::Scope scope(step.cx.workspace);
    const int64_t end = std::min(begin + kRowTile, wanted);
    std::vector<Rows> picked;
    for (const Rows& source : sources)
      picked.push_back(take_rows(step, source, step.in.logit_rows.subspan(begin, end - begin)));
    const View<T, 2> tile = rows(h, begin, end);
    ops::depth_mix_norm<T>(step.cx, {&tile, 1}, picked, {&w_.output_query, 1}, {&w_.norm, 1}, mix_params());
  }
  step.keep("h_final", h);
  ops::gemm<T, float>(step.cx, logits, h, w_.unembed);
  ops::soft_cap(step.cx, logits, static_cast<float>(c_.mup), static_cast<float>(c_.soft_cap));
}

template <class T>
Result<std::unique_ptr<Network>> load(const ModelConfig& config, Checkpoint checkpoint, const LoadOptions& options,
                                      bool check_scales) {
  NIB_ASSIGN(Inkling2Weights<T> weights, load_inkling2<T>(config, std::move(checkpoint), check_scales));
  ModelConfig resolved = config;  // an extent that the file leaves open is the width of the table
  for (int64_t l = 0; l < config.num_layers(); ++l)
    if (resolved.layers[l].extent == 0)
      resolved.layers[l].extent =
          weights.layers[l].table.dim(1) - (config.sink_source == ModelConfig::Sink::kRelTable ? 1 : 0);
  return std::unique_ptr<Network>(new Inkling2<T>(resolved, std::move(weights), options));
}

// Bytes of the buffers of one sublayer, in the order in which it takes them.
struct Sizes {
  const ModelConfig& c;
  int64_t rows, num_threads, element_bytes;

  int64_t buffer(int64_t width, int64_t bytes) const { return (rows * width * bytes + 63) / 64 * 64; }
  int64_t activations(int64_t width) const { return buffer(width, element_bytes); }

  int64_t attention(const LayerConfig& l) const {
    const int64_t kv_width = l.num_kv_heads * l.head_dim, width = l.num_heads * l.head_dim;
    const int64_t extent = l.extent > 0 ? l.extent : kUsualExtent;
    const int64_t key_value = 2 * (2 * activations(kv_width) + 2 * activations(l.num_kv_heads * c.conv_width));
    const int64_t tile = std::min(rows, kRowTile) * l.num_heads * extent * element_bytes + 64;
    const int64_t attend = 3 * activations(width) + activations(l.num_heads * c.d_rel) + buffer(l.num_heads, 4) +
                           activations(l.num_heads) + tile +
                           ops::attention_workspace_bytes(l.num_heads, l.head_dim, num_threads);
    return 4 * activations(c.hidden_size) + key_value + attend +
           ops::gemm_workspace_bytes(3 * rows, std::max(c.hidden_size, width), num_threads);  // of three inputs
  }
  int64_t mlp() const {
    return 2 * activations(c.hidden_size) + buffer(c.num_experts, 4) + 2 * buffer(c.top_k, 4) +
           std::max(ops::gemm_workspace_bytes(rows, c.hidden_size, num_threads),
                    ops::experts_workspace_bytes({rows, c.top_k, c.hidden_size, c.expert_width, c.num_experts},
                                                 num_threads));
  }
  int64_t head() const {
    const int64_t tile = std::min(rows, kRowTile) * c.hidden_size * element_bytes + 64;
    return activations(c.hidden_size) +
           std::max(num_states(c) * tile, ops::gemm_workspace_bytes(rows, c.hidden_size, num_threads));
  }
  static constexpr int64_t kUsualExtent = 1024;  // where only the table knows it
};

}  // namespace

int64_t inkling2_workspace_bytes(const ModelConfig& c, int64_t rows, int64_t logit_rows, int64_t num_threads,
                                 int64_t element_bytes) {
  const Sizes step{c, rows, num_threads, element_bytes}, wanted{c, logit_rows, num_threads, element_bytes};
  int64_t sublayer = std::max(step.mlp(), wanted.head());
  for (const LayerConfig& l : c.layers) sublayer = std::max(sublayer, step.attention(l));
  return step.buffer(1, 4) + num_states(c) * step.activations(c.hidden_size) + sublayer +
         ops::depth_mix_workspace_bytes(c.hidden_size, num_threads);
}

Result<std::unique_ptr<Network>> make_inkling2(const ModelConfig& config, Checkpoint checkpoint,
                                               const LoadOptions& options, bool check_scales) {
  return options.f32 ? load<float>(config, std::move(checkpoint), options, check_scales)
                     : load<bf16>(config, std::move(checkpoint), options, check_scales);
}

}  // namespace nib
