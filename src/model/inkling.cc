#include "model/inkling.h"

#include <algorithm>

#include "compute/ops/norm.h"
#include "compute/ops/router.h"
#include "model/step.h"
#include "model/weights.h"

namespace nib {

namespace {

template <class T>
class Inkling final : public Network {
 public:
  using Layer = typename InklingWeights<T>::Layer;
  using Rows = View<const T, 2>;

  Inkling(const ModelConfig& config, InklingWeights<T> weights, const LoadOptions& options)
      : c_(config),
        eps_(static_cast<float>(config.rms_norm_eps)),
        w_(std::move(weights)),
        layout_(config, options),
        taps_(options.taps) {}

  const ModelConfig& config() const override { return c_; }
  const std::vector<CacheSpec>& cache_specs() const override { return layout_.specs(); }
  void forward(Context& cx, const ForwardInput& in, const KvCache& cache, View<float, 2> logits,
               const Trace* trace) const override;
  int64_t workspace_bytes(int64_t rows, int64_t logit_rows, int64_t num_threads) const override {
    return inkling_workspace_bytes(c_, rows, logit_rows, num_threads, sizeof(T));
  }
  SharedTables shared_tables() const override {
    return {w_.embed, w_.unembed, static_cast<float>(c_.mup), Weight::plain(w_.embed_norm.data(), 1, c_.hidden_size),
            eps_};
  }

 private:
  void attention_sublayer(const Step<T>& step, int64_t l, View<T, 2> h, View<const float, 1> tau) const;
  void mlp_sublayer(const Step<T>& step, int64_t l, View<T, 2> h) const;
  View<T, 2> attention(const Step<T>& step, int64_t l, Rows a, View<const float, 1> tau) const;
  View<T, 2> key_value(const Step<T>& step, int64_t l, ConvStream stream, Rows a) const;
  View<T, 2> dense_mlp(const Step<T>& step, const Layer& layer, Rows m) const;
  View<T, 2> moe(const Step<T>& step, const Layer& layer, Rows m) const;
  void head(const Step<T>& step, Rows h, View<float, 2> logits) const;
  void tap_between_layers(const Step<T>& step, int64_t visit, Rows h) const;
  void tap_output(const Step<T>& step, Rows h) const;

  const ModelConfig c_;
  const float eps_;
  const InklingWeights<T> w_;
  const CacheLayout<T> layout_;
  const std::vector<Tap> taps_;
};

constexpr Activation kSwiglu{Activation::Kind::kSwiglu, 0, 0};

template <class T>
void Inkling<T>::forward(Context& cx, const ForwardInput& in, const KvCache& cache, View<float, 2> logits,
                         const Trace* trace) const {
  check_input(in, *this, logits);
  Workspace::Scope scope(cx.workspace);
  const Step<T> step(cx, in, cache, layout_, taps_, trace);
  const View<float, 1> tau = tau_of_rows(step, Tau{c_.tau_floor, c_.tau_alpha});
  const View<T, 2> h = step.take(step.rows(), c_.hidden_size);

  ops::embed_norm<T>(cx, h, in.tokens, w_.embed, w_.embed_norm, eps_);
  tap_between_layers(step, -1, h);
  for (int64_t l = 0; l < c_.num_layers(); ++l) {
    step.keep("hidden_{}", h, l);
    attention_sublayer(step, l, h, tau);
    mlp_sublayer(step, l, h);
    tap_between_layers(step, l, h);
  }
  tap_output(step, h);
  head(step, h, logits);
}

// h += sconv(attention(rms(h)))
template <class T>
void Inkling<T>::attention_sublayer(const Step<T>& step, int64_t l, View<T, 2> h, View<const float, 1> tau) const {
  Workspace::Scope scope(step.cx.workspace);
  const Layer& layer = w_.layers[l];
  const View<T, 2> a = step.take(step.rows(), c_.hidden_size);
  ops::rms_norm<T>(step.cx, a, h, layer.attn_norm, eps_);
  const View<T, 2> o = attention(step, l, a, c_.layers[l].full ? tau : View<const float, 1>());
  const ConvTaps<T> taps{layer.attn_taps, {}, true, c_.conv_width};
  ops::short_conv<T>(step.cx, h, o, step.conv(l, ConvStream::kAttention), step.in.sequences, taps, h);
}

// h += sconv(mlp(rms(h)))
template <class T>
void Inkling<T>::mlp_sublayer(const Step<T>& step, int64_t l, View<T, 2> h) const {
  Workspace::Scope scope(step.cx.workspace);
  const Layer& layer = w_.layers[l];
  const View<T, 2> m = step.take(step.rows(), c_.hidden_size);
  ops::rms_norm<T>(step.cx, m, h, layer.mlp_norm, eps_);
  const View<T, 2> f = c_.layers[l].dense ? dense_mlp(step, layer, m) : moe(step, layer, m);
  const ConvTaps<T> taps{layer.mlp_taps, {}, true, c_.conv_width};
  ops::short_conv<T>(step.cx, h, f, step.conv(l, ConvStream::kMlp), step.in.sequences, taps, h);
}

// score_i(p, s) = q_i[p] . k_j[s] / hd + B_i[p, p-s]     out = concat_i(softmax(score_i) v_j) wo^T
template <class T>
View<T, 2> Inkling<T>::attention(const Step<T>& step, int64_t l, Rows a, View<const float, 1> tau) const {
  Context& cx = step.cx;
  const Layer& layer = w_.layers[l];
  const LayerConfig& shape = c_.layers[l];
  const View<T, 2> out = step.take(step.rows(), c_.hidden_size);
  Workspace::Scope scope(cx.workspace);

  const PagedKv<T> kv = step.kv(l);
  {
    Workspace::Scope inner(cx.workspace);
    const View<T, 2> k = key_value(step, l, ConvStream::kKey, a), v = key_value(step, l, ConvStream::kValue, a);
    ops::norm_heads<T>(cx, k, shape.head_dim, layer.k_norm, eps_, {});
    ops::write_kv<T>(cx, kv, k, v, step.in.sequences);
  }
  const View<T, 2> q = project(step, a, layer.q), r = project(step, a, layer.r);
  ops::norm_heads<T>(cx, q, shape.head_dim, layer.q_norm, eps_, tau);

  const AttentionParams params{1.0f / static_cast<float>(shape.head_dim), shape.window, layer.table.dim(1), false};
  const View<T, 2> o = step.take(step.rows(), q.dim(1));
  relative_attention_tiled<T>(step, o, q, r, kv, layer.table, tau, {}, params);
  ops::gemm<T, T>(cx, out, o, layer.o);
  return out;
}

// K or V of the new rows after their convolution.
template <class T>
View<T, 2> Inkling<T>::key_value(const Step<T>& step, int64_t l, ConvStream stream, Rows a) const {
  const Layer& layer = w_.layers[l];
  const bool key = stream == ConvStream::kKey;
  const View<T, 2> raw = project(step, a, key ? layer.k : layer.v), y = step.take(step.rows(), raw.dim(1));
  const ConvTaps<T> taps{key ? layer.k_taps : layer.v_taps, {}, true, c_.conv_width};
  ops::short_conv<T>(step.cx, y, raw, step.conv(l, stream), step.in.sequences, taps, {});
  return y;
}

// f = (silu(g) * u) w2^T * global_scale
template <class T>
View<T, 2> Inkling<T>::dense_mlp(const Step<T>& step, const Layer& layer, Rows m) const {
  const View<T, 2> f = step.take(step.rows(), c_.hidden_size);
  Workspace::Scope scope(step.cx.workspace);
  const View<T, 2> h = project(step, m, layer.dense_w13), act = step.take(step.rows(), c_.dense_width);
  ops::activation<T>(step.cx, act, h, {}, kSwiglu);
  ops::gemm<T, T>(step.cx, f, act, layer.dense_w2);
  const View<T, 2> scale = step.take(step.rows(), 1);
  std::fill_n(scale.data(), scale.size(), to<T>(layer.dense_global_scale));
  ops::apply_gate<T>(step.cx, f, scale, 1, ops::GateAct::kNone);
  return f;
}

// f = sum_i weight_i * expert_i(m) + sum_s gamma_s * shared_s(m): the shared experts take part in the normalisation of
// the weights, never in the choice. Routed and shared sums are rounded each, then added.
template <class T>
View<T, 2> Inkling<T>::moe(const Step<T>& step, const Layer& layer, Rows m) const {
  const int64_t rows = step.rows(), shared = c_.num_shared_experts;
  const View<T, 2> f = step.take(rows, c_.hidden_size);
  Workspace::Scope scope(step.cx.workspace);
  const View<float, 2> z = step.template take<float>(rows, c_.num_experts + shared);
  const View<int32_t, 2> ids = step.template take<int32_t>(rows, c_.top_k);
  const View<float, 2> weights = step.template take<float>(rows, c_.top_k);
  const View<float, 2> gamma = step.template take<float>(rows, shared);
  const float scale = static_cast<float>(c_.route_scale) * layer.router_global_scale;
  ops::gemm<T, float>(step.cx, z, m, layer.router);
  ops::router(step.cx, ids, weights, shared > 0 ? gamma : View<float, 2>(), z, {layer.router_bias, scale, false, true});
  ops::experts<T>(step.cx, f, m, ids, weights, {layer.w13, layer.w2, kSwiglu, false});
  if (shared == 0) return f;

  const View<int32_t, 2> all = step.template take<int32_t>(rows, shared);
  for (int64_t i = 0; i < all.size(); ++i) all.data()[i] = static_cast<int32_t>(i % shared);
  const View<T, 2> s = step.take(rows, c_.hidden_size);
  ops::experts<T>(step.cx, s, m, all, gamma, {layer.shared_w13, layer.shared_w2, kSwiglu, true});
  ops::add<T>(step.cx, f, f, s);
  return f;
}

// logits = rms(h; norm) . Wu^T / mup, for the wanted rows only
template <class T>
void Inkling<T>::head(const Step<T>& step, Rows h, View<float, 2> logits) const {
  if (step.in.logit_rows.empty()) return;
  const View<T, 2> n = take_rows(step, h, step.in.logit_rows);
  ops::rms_norm<T>(step.cx, n, n, w_.norm, eps_);
  step.keep("hidden_{}", n, c_.num_layers());
  ops::gemm<T, float>(step.cx, logits, n, w_.unembed);
  ops::soft_cap(step.cx, logits, static_cast<float>(c_.mup), static_cast<float>(c_.soft_cap));
}

// There is one residual stream, so its sum is also what the next layer reads.
template <class T>
void Inkling<T>::tap_between_layers(const Step<T>& step, int64_t visit, Rows h) const {
  step.tap(visit, Tap::Kind::kBlockSum, h);
  step.tap(visit, Tap::Kind::kMixture, h);
}

template <class T>
void Inkling<T>::tap_output(const Step<T>& step, Rows h) const {
  step.tap(c_.num_layers(), Tap::Kind::kOutputMixture, h);
  if (!step.wants_tap(c_.num_layers(), Tap::Kind::kOutputNormed)) return;
  Workspace::Scope scope(step.cx.workspace);
  const View<T, 2> n = step.take(step.rows(), c_.hidden_size);
  ops::rms_norm<T>(step.cx, n, h, w_.norm, eps_);
  step.tap(c_.num_layers(), Tap::Kind::kOutputNormed, n);
}

template <class T>
Result<std::unique_ptr<Network>> load(const ModelConfig& config, Checkpoint checkpoint, const LoadOptions& options,
                                      bool check_scales) {
  NIB_ASSIGN(InklingWeights<T> weights, load_inkling<T>(config, std::move(checkpoint), check_scales));
  return std::unique_ptr<Network>(new Inkling<T>(config, std::move(weights), options));
}

// Bytes of the buffers of one sublayer, in the order in which it takes them.
struct Sizes {
  const ModelConfig& c;
  int64_t rows, num_threads, element_bytes;

  int64_t buffer(int64_t width, int64_t bytes) const { return (rows * width * bytes + 63) / 64 * 64; }
  int64_t activations(int64_t width) const { return buffer(width, element_bytes); }
  int64_t gemm(int64_t in) const { return ops::gemm_workspace_bytes(rows, in, num_threads); }
  int64_t experts(int64_t top_k, int64_t count) const {
    return ops::experts_workspace_bytes({rows, top_k, c.hidden_size, c.expert_width, count}, num_threads);
  }

  int64_t attention(const LayerConfig& l) const {
    const int64_t width = l.num_heads * l.head_dim;
    const int64_t tile = std::min(rows, kRowTile) * l.num_heads * l.extent * element_bytes + 64;
    const int64_t attend = 2 * activations(width) + activations(l.num_heads * c.d_rel) + tile +
                           ops::attention_workspace_bytes(l.num_heads, l.head_dim, num_threads);
    return 2 * activations(c.hidden_size) + std::max(4 * activations(l.num_kv_heads * l.head_dim), attend) +
           gemm(std::max(c.hidden_size, width));
  }
  int64_t dense() const {
    return 2 * activations(c.hidden_size) + 3 * activations(c.dense_width) + activations(1) +
           gemm(std::max(c.hidden_size, c.dense_width));
  }
  int64_t moe() const {
    const int64_t shared = c.num_shared_experts;
    return 3 * activations(c.hidden_size) + buffer(c.num_experts + shared, 4) + 2 * buffer(c.top_k, 4) +
           2 * buffer(shared, 4) +
           std::max({gemm(c.hidden_size), experts(c.top_k, c.num_experts), experts(shared, shared)});
  }
  int64_t head() const { return activations(c.hidden_size) + gemm(c.hidden_size); }
};

}  // namespace

int64_t inkling_workspace_bytes(const ModelConfig& c, int64_t rows, int64_t logit_rows, int64_t num_threads,
                                int64_t element_bytes) {
  const Sizes step{c, rows, num_threads, element_bytes}, wanted{c, logit_rows, num_threads, element_bytes};
  int64_t sublayer = std::max({step.moe(), step.dense(), wanted.head()});
  for (const LayerConfig& l : c.layers) sublayer = std::max(sublayer, step.attention(l));
  return step.buffer(1, 4) + step.activations(c.hidden_size) + sublayer;
}

Result<std::unique_ptr<Network>> make_inkling(const ModelConfig& config, Checkpoint checkpoint,
                                              const LoadOptions& options, bool check_scales) {
  return options.f32 ? load<float>(config, std::move(checkpoint), options, check_scales)
                     : load<bf16>(config, std::move(checkpoint), options, check_scales);
}

}  // namespace nib
