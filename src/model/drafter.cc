#include "model/drafter.h"

#include <algorithm>
#include <cmath>

#include "compute/ops/attention.h"
#include "compute/ops/experts.h"
#include "compute/ops/norm.h"
#include "compute/ops/rope.h"

namespace nib {

namespace {

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

template <class T>
void copy_row(T* to_row, const Weight& table, int64_t id) {
  NIB_CHECK(0 <= id && id < table.out, "token {} of {}", id, table.out);
  for (int64_t i = 0; i < table.in; ++i)
    to_row[i] =
        to<T>(table.format == WeightFormat::kF32 ? static_cast<const float*>(table.data)[id * table.in + i]
                                                 : as_float(static_cast<const bf16*>(table.data)[id * table.in + i]));
}

template <class T>
View<T, 2> take(Context& cx, int64_t rows, int64_t columns) {
  return cx.workspace.take<T, 2>({rows, columns});
}

template <class T>
class DSpark : public Drafter {
 public:
  DSpark(const DrafterConfig& config, DrafterWeights<T> weights, const DrafterOptions& options)
      : c_(config), w_(std::move(weights)) {
    // f_i = theta^(-2i / hd), each step in FP32 as the drafters were trained
    for (int64_t i = 0; i < c_.head_dim / 2; ++i)
      frequencies_.push_back(1.0f / std::pow(static_cast<float>(c_.rope_theta),
                                             static_cast<float>(2 * i) / static_cast<float>(c_.head_dim)));
    if (options.bf16_rope_frequencies)
      for (float& f : frequencies_) f = as_float(bf16::from(f));
  }

  const DrafterConfig& config() const override { return c_; }
  int64_t tap_width() const override { return w_.fc.in; }
  int64_t vocab_size() const override { return w_.vocab(); }
  int64_t workspace_bytes(int64_t rows, int64_t num_threads) const override;
  DraftContext make_context(int64_t capacity) const override;
  void commit(Context& cx, DraftContext& context, View<const float, 2> taps, int64_t start) const override;
  Draft draft(Context& cx, const DraftContext& context, int32_t anchor, int64_t position, int64_t num_tokens,
              const DraftSampler& sampler) const override;

 private:
  using Rows = View<const T, 2>;
  using Layer = typename DrafterWeights<T>::Layer;

  int64_t kv_width() const { return c_.num_kv_heads * c_.head_dim; }
  int64_t state_width() const { return c_.head == DrafterConfig::Head::kRnn ? w_.mixer.out / 3 : 0; }
  float eps() const { return static_cast<float>(c_.rms_norm_eps); }
  View<T, 2> cached(const Buffer& buffer, int64_t capacity, int64_t layer, int64_t begin, int64_t end) const;
  void key_value(Context& cx, const Layer& layer, View<T, 2> k, View<T, 2> v, Rows x, int64_t start) const;
  View<T, 2> embed_block(Context& cx, int32_t anchor) const;
  void attend(Context& cx, int64_t l, View<T, 2> h, const DraftContext& context, int64_t position) const;
  void feed_forward(Context& cx, const Layer& layer, View<T, 2> h) const;
  Rows backbone(Context& cx, const DraftContext& context, int32_t anchor, int64_t position) const;
  void head(Context& cx, Rows hidden, int32_t anchor, const DraftSampler& sampler, Draft& draft) const;
  void add_bias(Context& cx, View<T, 2> state, const T* e, const T* h, float* logits) const;
  void mix(Context& cx, View<T, 2> in, const T* e, View<T, 2> state, const T* h) const;
  float confidence(const T* e, const T* h) const;

  DrafterConfig c_;
  DrafterWeights<T> w_;
  std::vector<float> frequencies_;  // [head_dim / 2]
};

template <class T>
View<T, 2> DSpark<T>::cached(const Buffer& buffer, int64_t capacity, int64_t layer, int64_t begin, int64_t end) const {
  T* first = reinterpret_cast<T*>(buffer.data()) + (layer * capacity + begin) * kv_width();
  return View<T, 2>(first, {end - begin, kv_width()});
}

template <class T>
DraftContext DSpark<T>::make_context(int64_t capacity) const {
  const int64_t bytes = c_.num_layers * capacity * kv_width() * static_cast<int64_t>(sizeof(T));
  return {Buffer(bytes), Buffer(bytes), capacity, 0, 0};
}

// k = RoPE(rms(W^K x; k_norm)), v = W^V x: the same for context features and for the tokens of a block.
template <class T>
void DSpark<T>::key_value(Context& cx, const Layer& layer, View<T, 2> k, View<T, 2> v, Rows x, int64_t start) const {
  ops::gemm<T, T>(cx, k, x, layer.k);
  ops::norm_heads<T>(cx, k, c_.head_dim, layer.k_norm, eps(), {});
  ops::rope<T>(cx, k, c_.head_dim, start, {frequencies_.data(), {c_.head_dim / 2}});
  ops::gemm<T, T>(cx, v, x, layer.v);
}

// c_i = rms(W_fc [H_l1[i]; ...; H_lm[i]]; hidden_norm), read by all layers without their input norm.
template <class T>
void DSpark<T>::commit(Context& cx, DraftContext& context, View<const float, 2> taps, int64_t start) const {
  const int64_t count = taps.dim(0), end = start + count;
  NIB_CHECK(start >= 0 && end <= context.capacity, "positions {} to {} of {}", start, end, context.capacity);
  NIB_CHECK_EQ(taps.dim(1), tap_width());
  Workspace::Scope scope(cx.workspace);
  const View<T, 2> f = take<T>(cx, count, tap_width()), c = take<T>(cx, count, c_.hidden_size);
  for (int64_t t = 0; t < count; ++t) std::transform(taps.row(t), taps.row(t) + taps.dim(1), f.row(t), to<T>);
  ops::gemm<T, T>(cx, c, f, w_.fc);
  ops::rms_norm<T>(cx, c, c, w_.hidden_norm, eps());
  for (int64_t l = 0; l < c_.num_layers; ++l)
    key_value(cx, w_.layers[l], cached(context.keys, context.capacity, l, start, end),
              cached(context.values, context.capacity, l, start, end), c, start);
  if (start < context.begin || start > context.end) context.begin = start;
  context.end = end;
}

template <class T>
View<T, 2> DSpark<T>::embed_block(Context& cx, int32_t anchor) const {
  const View<T, 2> h = take<T>(cx, c_.block_size, c_.hidden_size);
  copy_row(h.row(0), w_.embed, anchor);
  for (int64_t s = 1; s < c_.block_size; ++s) {
    if (w_.mask_embedding.empty())
      copy_row(h.row(s), w_.embed, c_.mask_token_id);
    else
      std::copy_n(w_.mask_embedding.data(), c_.hidden_size, h.row(s));
  }
  return h;
}

// h += W^O attention(q; [context, block]): every slot sees all of the context and all slots.
template <class T>
void DSpark<T>::attend(Context& cx, int64_t l, View<T, 2> h, const DraftContext& context, int64_t position) const {
  Workspace::Scope scope(cx.workspace);
  const Layer& layer = w_.layers[l];
  const int64_t slots = h.dim(0), q_width = c_.num_heads * c_.head_dim;
  const View<T, 2> u = take<T>(cx, slots, c_.hidden_size), q = take<T>(cx, slots, q_width);
  const View<T, 2> k = take<T>(cx, slots, kv_width()), v = take<T>(cx, slots, kv_width());
  const View<T, 2> a = take<T>(cx, slots, q_width);
  ops::rms_norm<T>(cx, u, h, layer.input_norm, eps());
  ops::gemm<T, T>(cx, q, u, layer.q);
  ops::norm_heads<T>(cx, q, c_.head_dim, layer.q_norm, eps(), {});
  ops::rope<T>(cx, q, c_.head_dim, position, {frequencies_.data(), {c_.head_dim / 2}});
  key_value(cx, layer, k, v, u, position);
  const KeyValueRows<T> before{cached(context.keys, context.capacity, l, context.begin, context.end),
                               cached(context.values, context.capacity, l, context.begin, context.end)};
  const float scale = 1.0f / std::sqrt(static_cast<float>(c_.head_dim));
  ops::block_attention<T>(cx, a, q, before, {k, v}, c_.head_dim, scale);
  ops::gemm<T, T>(cx, u, a, layer.o);
  ops::add<T>(cx, h, h, u);
}

// h += W_down(silu(W_gate n) * (W_up n)), n = rms(h)
template <class T>
void DSpark<T>::feed_forward(Context& cx, const Layer& layer, View<T, 2> h) const {
  Workspace::Scope scope(cx.workspace);
  const int64_t slots = h.dim(0), ffn = c_.intermediate_size;
  const View<T, 2> n = take<T>(cx, slots, c_.hidden_size), g = take<T>(cx, slots, 2 * ffn), y = take<T>(cx, slots, ffn);
  ops::rms_norm<T>(cx, n, h, layer.post_attention_norm, eps());
  ops::gemm<T, T>(cx, g, n, layer.w13);
  ops::activation<T>(cx, y, g, {}, {});
  ops::gemm<T, T>(cx, n, y, layer.w2);
  ops::add<T>(cx, h, h, n);
}

template <class T>
View<const T, 2> DSpark<T>::backbone(Context& cx, const DraftContext& context, int32_t anchor, int64_t position) const {
  const View<T, 2> h = embed_block(cx, anchor);
  for (int64_t l = 0; l < c_.num_layers; ++l) {
    attend(cx, l, h, context, position);
    feed_forward(cx, w_.layers[l], h);
  }
  ops::rms_norm<T>(cx, h, h, w_.norm, eps());
  return h;
}

template <class T>
Draft DSpark<T>::draft(Context& cx, const DraftContext& context, int32_t anchor, int64_t position, int64_t num_tokens,
                       const DraftSampler& sampler) const {
  NIB_CHECK(c_.check_draft_length(num_tokens).ok(), "{} drafts of a block of {}", num_tokens, c_.block_size);
  NIB_CHECK(context.end <= position, "a context to {} for an anchor at {}", context.end, position);
  Workspace::Scope scope(cx.workspace);
  const Rows block = backbone(cx, context, anchor, position);
  const int64_t first = c_.sample_from_anchor ? 0 : 1;  // the slot that predicts position + 1
  const Rows hidden = rows(block, first, first + num_tokens);
  Draft draft;
  draft.hidden.resize(hidden.size());
  std::transform(hidden.data(), hidden.data() + hidden.size(), draft.hidden.data(), [](T x) { return as_float(x); });
  head(cx, hidden, anchor, sampler, draft);
  return draft;
}

// logits_k = W_lm h_k / mup + bias(x_(k-1), state), one token after the other. The state starts at zero in every block.
// The divisor acts on FP32 logits, which is h / mup without another rounding; heads and confidence read the undivided
// h.
template <class T>
void DSpark<T>::head(Context& cx, Rows hidden, int32_t anchor, const DraftSampler& sampler, Draft& draft) const {
  const int64_t count = hidden.dim(0), V = w_.vocab();
  draft.logits.resize(count * V);
  const View<float, 2> logits(draft.logits.data(), {count, V});
  ops::gemm<T, float>(cx, logits, hidden, w_.unembed);
  ops::soft_cap(cx, logits, w_.mup, 0);
  const View<T, 2> e = take<T>(cx, 1, std::max<int64_t>(c_.markov_rank, 1)), state = take<T>(cx, 1, state_width() + 1);
  std::fill_n(state.data(), state.size(), to<T>(0.0f));
  int32_t previous = anchor;
  for (int64_t k = 0; k < count; ++k) {
    const T* h = hidden.row(k);
    if (c_.markov_rank > 0) copy_row(e.data(), w_.markov_w1, previous);
    if (!w_.confidence.empty()) draft.confidence_logits.push_back(confidence(e.data(), h));
    if (c_.markov_rank > 0) add_bias(cx, state, e.data(), h, logits.row(k));
    previous = sampler(k, {logits.row(k), static_cast<size_t>(V)});
    NIB_CHECK(0 <= previous && previous < V, "draft {} of {}", previous, V);
    draft.tokens.push_back(previous);
  }
}

// logits += W2 m, where m is e (vanilla), gate * e (gated) or tanh(output) (rnn)
template <class T>
void DSpark<T>::add_bias(Context& cx, View<T, 2> state, const T* e, const T* h, float* logits) const {
  Workspace::Scope scope(cx.workspace);
  const View<T, 2> m = take<T>(cx, 1, w_.markov_w2.in);
  const View<float, 2> bias = take<float>(cx, 1, w_.vocab());
  mix(cx, m, e, state, h);
  ops::gemm<T, float>(cx, bias, m, w_.markov_w2);
  for (int64_t i = 0; i < w_.vocab(); ++i) logits[i] += bias(0, i);
}

// gated: m = sigmoid(W [h; e] + b) * e
// rnn:   [g; c; o] = W [s; e; h] + b    m = tanh(o)    s = sigmoid(g) s + (1 - sigmoid(g)) tanh(c)
template <class T>
void DSpark<T>::mix(Context& cx, View<T, 2> m, const T* e, View<T, 2> state, const T* h) const {
  const int64_t d = c_.hidden_size, r = c_.markov_rank, w = state_width();
  if (w_.mixer.empty()) {
    std::copy_n(e, r, m.data());
    return;
  }
  const bool recurrent = w > 0;
  const View<T, 2> z = take<T>(cx, 1, w_.mixer.in);
  T* end = z.data();
  if (recurrent) end = std::copy_n(e, r, std::copy_n(state.data(), w, end));
  end = std::copy_n(h, d, end);
  if (!recurrent) std::copy_n(e, r, end);
  const View<float, 2> y = take<float>(cx, 1, w_.mixer.out);
  ops::gemm<T, float>(cx, y, z, w_.mixer);
  for (int64_t i = 0; !w_.mixer_bias.empty() && i < y.dim(1); ++i) y(0, i) += w_.mixer_bias(i);
  if (!recurrent) {
    for (int64_t i = 0; i < r; ++i) m(0, i) = to<T>(sigmoid(y(0, i)) * as_float(e[i]));
    return;
  }
  for (int64_t i = 0; i < w; ++i) {
    const float keep = sigmoid(y(0, i));
    state(0, i) = to<T>(keep * as_float(state(0, i)) + (1 - keep) * std::tanh(y(0, w + i)));
    m(0, i) = to<T>(std::tanh(y(0, 2 * w + i)));
  }
}

// w . [h; e] + b, FP32
template <class T>
float DSpark<T>::confidence(const T* e, const T* h) const {
  const Weight& w = w_.confidence;
  const int64_t d = c_.hidden_size;
  std::vector<float> row(w.in);
  copy_row(row.data(), w, 0);
  float sum = 0;
  for (int64_t i = 0; i < w.in; ++i) sum += row[i] * as_float(i < d ? h[i] : e[i - d]);
  return sum + (w_.confidence_bias.empty() ? 0.0f : w_.confidence_bias(0));
}

// The buffers of commit and of draft in the order in which they are taken, each at most.
template <class T>
int64_t DSpark<T>::workspace_bytes(int64_t rows, int64_t num_threads) const {
  const auto buffer = [](int64_t n, int64_t width, int64_t bytes) { return (n * width * bytes + 127) / 64 * 64; };
  const int64_t size = sizeof(T), d = c_.hidden_size, slots = c_.block_size, q = c_.num_heads * c_.head_dim;
  const int64_t commit = buffer(rows, tap_width(), size) + buffer(rows, d, size) +
                         ops::gemm_workspace_bytes(rows, tap_width(), num_threads);
  const int64_t layer = 2 * buffer(slots, d, size) + 2 * buffer(slots, q, size) + 2 * buffer(slots, kv_width(), size) +
                        3 * buffer(slots, c_.intermediate_size, size) +
                        ops::block_attention_workspace_bytes(c_.head_dim, num_threads);
  const int64_t loop = buffer(1, w_.vocab(), 4) + buffer(1, w_.mixer.in, size) + buffer(1, w_.mixer.out, 4) +
                       2 * buffer(1, w_.markov_w2.in + state_width() + c_.markov_rank + 1, size);
  const int64_t widest = std::max({q, d, c_.intermediate_size, w_.mixer.in, w_.markov_w2.in});
  return std::max(commit, layer + loop + ops::gemm_workspace_bytes(slots, widest, num_threads));
}

template <class T>
Result<std::unique_ptr<Drafter>> make(const DrafterConfig& config, Checkpoint checkpoint, const DrafterOptions& options,
                                      const SharedTables* shared) {
  NIB_ASSIGN(DrafterWeights<T> weights, load_drafter_weights<T>(config, std::move(checkpoint), shared));
  return std::unique_ptr<Drafter>(new DSpark<T>(config, std::move(weights), options));
}

}  // namespace

int32_t greedy_draft(int64_t, std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

Result<std::unique_ptr<Drafter>> make_drafter(const DrafterConfig& config, Checkpoint checkpoint,
                                              const DrafterOptions& options, const SharedTables* shared) {
  return options.f32 ? make<float>(config, std::move(checkpoint), options, shared)
                     : make<bf16>(config, std::move(checkpoint), options, shared);
}

Result<std::unique_ptr<Drafter>> load_drafter(const std::filesystem::path& folder, const DrafterOptions& options,
                                              const SharedTables* shared) {
  NIB_ASSIGN(const DrafterConfig config, DrafterConfig::load(folder));
  std::error_code error;
  const std::filesystem::path own = folder / "mtp.safetensors";
  const bool in_target = std::filesystem::exists(own, error);
  NIB_ASSIGN(Checkpoint checkpoint, in_target ? Checkpoint::open_file(own) : Checkpoint::open(folder));
  return make_drafter(config, std::move(checkpoint), options, shared);
}

}  // namespace nib
