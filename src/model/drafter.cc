#include "model/drafter.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "compute/ops/block_attention.h"
#include "compute/ops/experts.h"
#include "compute/ops/norm.h"
#include "compute/ops/rope.h"

namespace nib {

namespace {

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Row `id` of a table, rounded to T.
template <class T>
void copy_row(T* to_row, const Weight& table, int64_t id) {
  NIB_CHECK(0 <= id && id < table.out, "token {} of {}", id, table.out);
  const auto copy = [&](const auto* data) {
    std::transform(data + id * table.in, data + (id + 1) * table.in, to_row, [](auto x) { return to<T>(as_float(x)); });
  };
  if (table.format == WeightFormat::kF32)
    copy(static_cast<const float*>(table.data));
  else
    copy(static_cast<const bf16*>(table.data));
}

template <class T>
View<T, 2> take(Context& cx, int64_t rows, int64_t columns) {
  return cx.workspace.take<T, 2>({rows, columns});
}

template <class T>
class DSpark : public Drafter {
 public:
  DSpark(const DrafterConfig& config, DrafterWeights<T> weights, const DrafterOptions& options)
      : c_(config), w_(std::move(weights)), cache_(make_cache_spec(config, options)) {
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
  bool has_confidence() const override { return !w_.confidence.empty(); }
  const CacheSpec& cache_spec() const override { return cache_; }
  int64_t workspace_bytes(int64_t commit_rows, int64_t blocks, int64_t num_threads) const override;
  void commit(Context& cx, View<const float, 2> taps, std::span<const SequenceRows> sequences,
              const DraftStorage& storage, View<const int32_t, 2> block_tables) const override;
  void draft(Context& cx, std::span<const DraftBlock> blocks, const DraftStorage& storage,
             View<const int32_t, 2> block_tables, const DraftOutput& output,
             const DraftSampler& sampler) const override;

 private:
  using Rows = View<const T, 2>;
  using Layer = typename DrafterWeights<T>::Layer;

  // What the layers of one draft share.
  struct Pass {
    std::span<const BlockRows> rows;
    View<const float, 2> rotary;  // [rows, head_dim]
    const DraftStorage& storage;
    View<const int32_t, 2> block_tables;
  };

  static CacheSpec make_cache_spec(const DrafterConfig& c, const DrafterOptions& options);
  int64_t q_width() const { return c_.num_heads * c_.head_dim; }
  int64_t kv_width() const { return c_.num_kv_heads * c_.head_dim; }
  float eps() const { return static_cast<float>(c_.rms_norm_eps); }
  PagedKv<T> kv(const DraftStorage& storage, View<const int32_t, 2> block_tables, int64_t layer) const;
  View<const float, 2> rotary(Context& cx, std::span<const SequenceRows> sequences, int64_t rows) const;
  View<T, 2> features(Context& cx, View<const float, 2> taps) const;
  View<T, 2> embed(Context& cx, std::span<const DraftBlock> blocks) const;
  void attend(Context& cx, const Pass& pass, int64_t layer, View<T, 2> h) const;
  void feed_forward(Context& cx, const Layer& layer, View<T, 2> h) const;
  View<T, 2> backbone(Context& cx, std::span<const DraftBlock> blocks, const DraftStorage& storage,
                      View<const int32_t, 2> block_tables) const;
  View<T, 2> kept_slots(Context& cx, std::span<const DraftBlock> blocks, View<T, 2> h) const;
  void base_logits(Context& cx, std::span<const DraftBlock> blocks, Rows hidden, const DraftOutput& output) const;
  void choose(Context& cx, std::span<const DraftBlock> blocks, Rows hidden, const DraftOutput& output,
              const DraftSampler& sampler) const;
  void mix_hidden(Context& cx, Rows hidden, View<float, 2> mixed) const;
  void add_bias(Context& cx, View<const int32_t, 1> active, View<const int32_t, 1> row, Rows e, View<T, 2> state,
                View<const float, 2> mixed, int64_t k, const DraftOutput& output) const;
  float confidence(const T* e, const T* h) const;
  void check_draft(std::span<const DraftBlock> blocks, const DraftOutput& output) const;
  void keep_hidden(std::span<const DraftBlock> blocks, Rows hidden, View<float, 3> output) const;

  DrafterConfig c_;
  DrafterWeights<T> w_;
  CacheSpec cache_;
  std::vector<float> frequencies_;  // [head_dim / 2]
};

template <class T>
CacheSpec DSpark<T>::make_cache_spec(const DrafterConfig& c, const DrafterOptions& options) {
  CacheSpec spec{CacheSpec::Kind::kFull, {}, options.kv_block_size, 0, 0, {}};
  const int64_t part = options.kv_block_size * c.num_kv_heads * c.head_dim * static_cast<int64_t>(sizeof(T));
  for (int64_t l = 0; l < c.num_layers; ++l) {
    spec.layers.push_back(l);
    spec.part_bytes.insert(spec.part_bytes.end(), {part, part});  // K, V
    spec.bytes_per_block += 2 * part;
  }
  return spec;
}

template <class T>
PagedKv<T> DSpark<T>::kv(const DraftStorage& storage, View<const int32_t, 2> block_tables, int64_t layer) const {
  const typename View<T, 4>::Shape shape = {storage.num_blocks, cache_.block_size, c_.num_kv_heads, c_.head_dim};
  View<T, 4> k(reinterpret_cast<T*>(storage.data), shape);
  k = View<T, 4>(k.data() + 2 * layer * k.size(), shape);
  return {k, View<T, 4>(k.data() + k.size(), shape), block_tables};
}

template <class T>
View<const float, 2> DSpark<T>::rotary(Context& cx, std::span<const SequenceRows> sequences, int64_t rows) const {
  const View<float, 2> table = take<float>(cx, rows, c_.head_dim);
  ops::rotary_table(cx, table, sequences, {frequencies_.data(), {c_.head_dim / 2}});
  return table;
}

// c_i = rms(W_fc [H_l1[i]; ...; H_lm[i]]; hidden_norm), read by all layers without their input norm.
template <class T>
View<T, 2> DSpark<T>::features(Context& cx, View<const float, 2> taps) const {
  const View<T, 2> c = take<T>(cx, taps.dim(0), c_.hidden_size);
  Workspace::Scope scope(cx.workspace);
  const View<T, 2> f = take<T>(cx, taps.dim(0), tap_width());
  for (int64_t t = 0; t < taps.dim(0); ++t) std::transform(taps.row(t), taps.row(t) + taps.dim(1), f.row(t), to<T>);
  ops::gemm<T, T>(cx, c, f, w_.fc);
  ops::rms_norm<T>(cx, c, c, w_.hidden_norm, eps());
  return c;
}

// k = RoPE(rms(W^K c; k_norm)), v = W^V c: the matrices of a block's own tokens.
template <class T>
void DSpark<T>::commit(Context& cx, View<const float, 2> taps, std::span<const SequenceRows> sequences,
                       const DraftStorage& storage, View<const int32_t, 2> block_tables) const {
  NIB_CHECK_EQ(taps.dim(1), tap_width());
  Workspace::Scope scope(cx.workspace);
  const Rows c = features(cx, taps);
  const View<const float, 2> table = rotary(cx, sequences, c.dim(0));
  const View<T, 2> y = take<T>(cx, c.dim(0), 2 * kv_width());
  const View<T, 2> k = columns(y, 0, kv_width()), v = columns(y, kv_width(), 2 * kv_width());
  for (int64_t l = 0; l < c_.num_layers; ++l) {
    const Layer& layer = w_.layers[l];
    ops::gemm<T, T>(cx, y, c, layer.qkv.slice(q_width(), layer.qkv.out));
    ops::norm_heads<T>(cx, k, c_.head_dim, layer.k_norm, eps(), {});
    ops::rope<T>(cx, k, table);
    ops::write_kv<T>(cx, kv(storage, block_tables, l), k, v, sequences);
  }
}

// Slot 0 of each block: the anchor; all others: the mask.
template <class T>
View<T, 2> DSpark<T>::embed(Context& cx, std::span<const DraftBlock> blocks) const {
  const int64_t slots = c_.block_size;
  const View<T, 2> h = take<T>(cx, static_cast<int64_t>(blocks.size()) * slots, c_.hidden_size);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const int64_t first = static_cast<int64_t>(b) * slots;
    copy_row(h.row(first), w_.embed, blocks[b].anchor);
    for (int64_t s = first + 1; s < first + slots; ++s) std::copy_n(w_.mask.data(), c_.hidden_size, h.row(s));
  }
  if (!w_.embed_norm.empty()) ops::rms_norm<T>(cx, h, h, w_.embed_norm, w_.embed_norm_eps);
  return h;
}

// h += W^O attention(q; [context, block]): every slot sees all of the context and all slots.
template <class T>
void DSpark<T>::attend(Context& cx, const Pass& pass, int64_t l, View<T, 2> h) const {
  Workspace::Scope scope(cx.workspace);
  const Layer& layer = w_.layers[l];
  const View<T, 2> u = take<T>(cx, h.dim(0), c_.hidden_size), qkv = take<T>(cx, h.dim(0), layer.qkv.out);
  const View<T, 2> a = take<T>(cx, h.dim(0), q_width());
  const View<T, 2> q = columns(qkv, 0, q_width()), k = columns(qkv, q_width(), q_width() + kv_width());
  const View<T, 2> v = columns(qkv, q_width() + kv_width(), layer.qkv.out);
  ops::rms_norm<T>(cx, u, h, layer.input_norm, eps());
  ops::gemm<T, T>(cx, qkv, u, layer.qkv);
  ops::norm_heads<T>(cx, q, c_.head_dim, layer.q_norm, eps(), {});
  ops::norm_heads<T>(cx, k, c_.head_dim, layer.k_norm, eps(), {});
  ops::rope<T>(cx, q, pass.rotary);
  ops::rope<T>(cx, k, pass.rotary);
  const float scale = 1.0f / std::sqrt(static_cast<float>(c_.head_dim));
  ops::block_attention<T>(cx, a, q, k, v, kv(pass.storage, pass.block_tables, l), pass.rows, scale);
  ops::gemm<T, T>(cx, u, a, layer.o);
  ops::add<T>(cx, h, h, u);
}

// h += W_down(silu(W_gate n) * (W_up n)), n = rms(h)
template <class T>
void DSpark<T>::feed_forward(Context& cx, const Layer& layer, View<T, 2> h) const {
  Workspace::Scope scope(cx.workspace);
  const int64_t rows = h.dim(0), ffn = c_.intermediate_size;
  const View<T, 2> n = take<T>(cx, rows, c_.hidden_size), g = take<T>(cx, rows, 2 * ffn), y = take<T>(cx, rows, ffn);
  ops::rms_norm<T>(cx, n, h, layer.post_attention_norm, eps());
  ops::gemm<T, T>(cx, g, n, layer.w13);
  ops::activation<T>(cx, y, g, {}, {});
  ops::gemm<T, T>(cx, n, y, layer.w2);
  ops::add<T>(cx, h, h, n);
}

// All slots of all blocks at once: [blocks * block_size, hidden], before the final norm.
template <class T>
View<T, 2> DSpark<T>::backbone(Context& cx, std::span<const DraftBlock> blocks, const DraftStorage& storage,
                               View<const int32_t, 2> block_tables) const {
  const View<T, 2> h = embed(cx, blocks);
  Workspace::Scope scope(cx.workspace);
  const int64_t count = static_cast<int64_t>(blocks.size()), slots = c_.block_size;
  const View<BlockRows, 1> rows = cx.workspace.take<BlockRows, 1>({count});
  const View<SequenceRows, 1> positions = cx.workspace.take<SequenceRows, 1>({count});
  for (int64_t b = 0; b < count; ++b) {
    rows(b) = {b * slots, slots, blocks[b].context_begin, blocks[b].context_end};
    positions(b) = {b * slots, slots, blocks[b].position};
  }
  const View<const float, 2> table = rotary(cx, {positions.data(), blocks.size()}, h.dim(0));
  const Pass pass{{rows.data(), blocks.size()}, table, storage, block_tables};
  for (int64_t l = 0; l < c_.num_layers; ++l) {
    attend(cx, pass, l, h);
    feed_forward(cx, w_.layers[l], h);
  }
  return h;
}

// The normed rows that predict position + 1, ... of every block, one block after the other: [sum of num_tokens,
// hidden].
template <class T>
View<T, 2> DSpark<T>::kept_slots(Context& cx, std::span<const DraftBlock> blocks, View<T, 2> h) const {
  int64_t kept = 0;
  for (const DraftBlock& b : blocks) kept += b.num_tokens;
  const View<T, 2> y = take<T>(cx, kept, c_.hidden_size);
  int64_t to_row = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const int64_t first = static_cast<int64_t>(b) * c_.block_size + (c_.sample_from_anchor ? 0 : 1);
    for (int64_t k = 0; k < blocks[b].num_tokens; ++k) std::copy_n(h.row(first + k), c_.hidden_size, y.row(to_row++));
  }
  ops::rms_norm<T>(cx, y, y, w_.norm, eps());
  return y;
}

template <class T>
void DSpark<T>::draft(Context& cx, std::span<const DraftBlock> blocks, const DraftStorage& storage,
                      View<const int32_t, 2> block_tables, const DraftOutput& output,
                      const DraftSampler& sampler) const {
  if (blocks.empty()) return;
  check_draft(blocks, output);
  Workspace::Scope scope(cx.workspace);
  const Rows hidden = kept_slots(cx, blocks, backbone(cx, blocks, storage, block_tables));
  if (!output.hidden.empty()) keep_hidden(blocks, hidden, output.hidden);
  base_logits(cx, blocks, hidden, output);
  choose(cx, blocks, hidden, output, sampler);
}

// W_lm h / mup of all kept slots. The divisor acts on FP32 logits, which is h / mup without another rounding; heads and
// confidence read the undivided h. The head streams once over dense rows, which then move to where their blocks lie.
template <class T>
void DSpark<T>::base_logits(Context& cx, std::span<const DraftBlock> blocks, Rows hidden,
                            const DraftOutput& output) const {
  const int64_t most = output.tokens.dim(1), V = w_.vocab();
  const View<float, 2> all(output.logits.data(), {static_cast<int64_t>(blocks.size()) * most, V});
  const View<float, 2> dense = rows(all, 0, hidden.dim(0));
  ops::gemm<T, float>(cx, dense, hidden, w_.unembed);
  if (w_.mup != 1) ops::soft_cap(cx, dense, w_.mup, 0);
  int64_t from = hidden.dim(0);
  for (int64_t b = static_cast<int64_t>(blocks.size()) - 1; b >= 0; --b) {
    from -= blocks[b].num_tokens;
    if (from != b * most) std::memmove(all.row(b * most), all.row(from), blocks[b].num_tokens * V * sizeof(float));
  }
}

// logits_k += bias(x_(k-1), state), for all blocks one token after the other. The state starts at zero in every block.
template <class T>
void DSpark<T>::choose(Context& cx, std::span<const DraftBlock> blocks, Rows hidden, const DraftOutput& output,
                       const DraftSampler& sampler) const {
  const int64_t count = static_cast<int64_t>(blocks.size()), most = output.tokens.dim(1), r = c_.markov_rank;
  const View<int32_t, 1> active = cx.workspace.take<int32_t, 1>({count}), row = cx.workspace.take<int32_t, 1>({count});
  const View<T, 2> e = take<T>(cx, count, std::max<int64_t>(r, 1)), state = take<T>(cx, count, w_.state_width() + 1);
  const View<float, 2> mixed = take<float>(cx, hidden.dim(0), w_.mix_hidden.out);
  std::fill_n(state.data(), state.size(), to<T>(0.0f));
  std::fill_n(output.tokens.data(), count * most, -1);
  mix_hidden(cx, hidden, mixed);
  int32_t first_row = 0;
  for (int64_t b = 0; b < count; first_row += static_cast<int32_t>(blocks[b++].num_tokens)) row(b) = first_row;
  for (int64_t k = 0; k < most; ++k) {
    int64_t n = 0;
    for (int64_t b = 0; b < count; ++b) {
      const int32_t previous = k == 0 ? blocks[b].anchor : output.tokens(b, k - 1);
      if (k >= blocks[b].num_tokens || previous < 0) continue;
      if (r > 0) copy_row(e.row(n), w_.markov_w1, previous);
      if (!output.confidence.empty()) output.confidence(b, k) = confidence(e.row(n), hidden.row(row(b) + k));
      active(n++) = static_cast<int32_t>(b);
    }
    if (n == 0) return;
    const View<const int32_t, 1> now(active.data(), {n});
    if (r > 0) add_bias(cx, now, row, rows<const T>(e, 0, n), state, mixed, k, output);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t b = active(i);
      const int32_t id = sampler(b, k, {&output.logits(b, k, 0), static_cast<size_t>(w_.vocab())});
      NIB_CHECK(-1 <= id && id < w_.vocab(), "draft {} of {}", id, w_.vocab());
      output.tokens(b, k) = id;
    }
  }
}

// What the mixer takes from h, for all drafts at once: W_h h + b.
template <class T>
void DSpark<T>::mix_hidden(Context& cx, Rows hidden, View<float, 2> mixed) const {
  if (w_.mix_hidden.empty()) return;
  ops::gemm<T, float>(cx, mixed, hidden, w_.mix_hidden);
  if (w_.mix_bias.empty()) return;
  for (int64_t t = 0; t < mixed.dim(0); ++t)
    for (int64_t i = 0; i < mixed.dim(1); ++i) mixed(t, i) += w_.mix_bias(i);
}

// logits += W2 m, where m is e (vanilla), gate * e (gated) or tanh(output) (rnn). What the mixer takes from h is in
// `mixed` already.
//   gated: m = sigmoid(W [h; e] + b) * e
//   rnn:   [g; c; o] = W [s; e; h] + b    m = tanh(o)    s = sigmoid(g) s + (1 - sigmoid(g)) tanh(c)
template <class T>
void DSpark<T>::add_bias(Context& cx, View<const int32_t, 1> active, View<const int32_t, 1> row, Rows e,
                         View<T, 2> state, View<const float, 2> mixed, int64_t k, const DraftOutput& output) const {
  Workspace::Scope scope(cx.workspace);
  const int64_t n = active.dim(0), r = c_.markov_rank, w = w_.state_width();
  const View<T, 2> m = take<T>(cx, n, w_.markov_w2.in);
  const View<T, 2> z = take<T>(cx, n, w + r);
  const View<float, 2> y = take<float>(cx, n, w_.mix_hidden.out), bias = take<float>(cx, n, w_.vocab());
  if (!w_.mix_token.empty()) {
    for (int64_t i = 0; i < n; ++i) std::copy_n(e.row(i), r, std::copy_n(state.row(active(i)), w, z.row(i)));
    ops::gemm<T, float>(cx, y, z, w_.mix_token);
  }
  for (int64_t i = 0; i < n; ++i) {
    const float* h = mixed.row(row(active(i)) + k);
    for (int64_t j = 0; j < y.dim(1); ++j) y(i, j) += h[j];
    T* s = state.row(active(i));
    for (int64_t j = 0; j < m.dim(1); ++j) {
      if (w_.mix_token.empty()) {
        m(i, j) = e(i, j);
      } else if (w == 0) {
        m(i, j) = to<T>(sigmoid(y(i, j)) * as_float(e(i, j)));
      } else {
        const float keep = sigmoid(y(i, j));
        s[j] = to<T>(keep * as_float(s[j]) + (1 - keep) * std::tanh(y(i, w + j)));
        m(i, j) = to<T>(std::tanh(y(i, 2 * w + j)));
      }
    }
  }
  ops::gemm<T, float>(cx, bias, m, w_.markov_w2);
  cx.pool.parallel_for(n, [&](int64_t i, int) {
    float* logits = &output.logits(active(i), k, 0);
    const float* add = bias.row(i);
    for (int64_t v = 0; v < bias.dim(1); ++v) logits[v] += add[v];
  });
}

// w . [h; e] + b, FP32
template <class T>
float DSpark<T>::confidence(const T* e, const T* h) const {
  const int64_t d = c_.hidden_size;
  float sum = 0;
  for (int64_t i = 0; i < w_.confidence.dim(0); ++i) sum += w_.confidence(i) * as_float(i < d ? h[i] : e[i - d]);
  return sum + (w_.confidence_bias.empty() ? 0.0f : w_.confidence_bias(0));
}

template <class T>
void DSpark<T>::check_draft(std::span<const DraftBlock> blocks, const DraftOutput& output) const {
  const int64_t count = static_cast<int64_t>(blocks.size()), most = output.tokens.dim(1);
  NIB_CHECK_EQ(output.tokens.dim(0), count);
  NIB_CHECK_EQ(output.logits.dim(0), count);
  NIB_CHECK_EQ(output.logits.dim(1), most);
  NIB_CHECK_EQ(output.logits.dim(2), w_.vocab());
  NIB_CHECK_EQ(output.logits.stride(0), most * w_.vocab());
  NIB_CHECK(output.confidence.empty() || has_confidence(), "this drafter has no confidence head");
  for (const DraftBlock& b : blocks) {
    NIB_CHECK(c_.check_draft_length(b.num_tokens).ok(), "{} drafts of a block of {}", b.num_tokens, c_.block_size);
    NIB_CHECK(b.num_tokens <= most, "{} drafts, room for {}", b.num_tokens, most);
    NIB_CHECK(b.context_end <= b.position, "a context to {} for an anchor at {}", b.context_end, b.position);
  }
}

template <class T>
void DSpark<T>::keep_hidden(std::span<const DraftBlock> blocks, Rows hidden, View<float, 3> output) const {
  int64_t row = 0;
  for (size_t b = 0; b < blocks.size(); ++b)
    for (int64_t k = 0; k < blocks[b].num_tokens; ++k, ++row)
      std::transform(hidden.row(row), hidden.row(row) + c_.hidden_size, &output(b, k, 0),
                     [](T x) { return as_float(x); });
}

// The buffers of commit and of draft in the order in which they are taken, each at most.
template <class T>
int64_t DSpark<T>::workspace_bytes(int64_t commit_rows, int64_t blocks, int64_t num_threads) const {
  const auto buffer = [](int64_t n, int64_t width, int64_t bytes) { return (n * width * bytes + 127) / 64 * 64; };
  const int64_t size = sizeof(T), d = c_.hidden_size, rows = blocks * c_.block_size, qkv = q_width() + 2 * kv_width();
  const int64_t commit = buffer(commit_rows, d, size) + buffer(commit_rows, tap_width(), size) +
                         buffer(commit_rows, c_.head_dim, 4) + buffer(commit_rows, 2 * kv_width(), size) +
                         ops::gemm_workspace_bytes(commit_rows, std::max(tap_width(), d), num_threads);
  const int64_t attend = buffer(rows, d, size) + buffer(rows, qkv, size) + buffer(rows, q_width(), size) +
                         ops::block_attention_workspace_bytes(c_.block_size, c_.num_heads, c_.head_dim, num_threads);
  const int64_t feed_forward = buffer(rows, d, size) + 3 * buffer(rows, c_.intermediate_size, size);
  const int64_t backbone = buffer(blocks, sizeof(BlockRows) + sizeof(SequenceRows), 1) + 64 +
                           buffer(rows, c_.head_dim, 4) + std::max(attend, feed_forward);
  const int64_t head = buffer(rows, d, size) + 2 * buffer(blocks, 1, 4) +
                       2 * buffer(blocks, w_.state_width() + c_.markov_rank + 1, size) +
                       buffer(rows, w_.mix_hidden.out, 4) + buffer(blocks, w_.markov_w2.in, size) +
                       buffer(blocks, w_.state_width() + c_.markov_rank, size) + buffer(blocks, w_.mix_hidden.out, 4) +
                       buffer(blocks, w_.vocab(), 4);
  const int64_t widest = std::max({q_width(), d, c_.intermediate_size, w_.mix_token.in, w_.markov_w2.in});
  const int64_t draft =
      buffer(rows, d, size) + std::max(backbone, head) + ops::gemm_workspace_bytes(rows, widest, num_threads);
  return std::max(commit, draft);
}

template <class T>
Result<std::unique_ptr<Drafter>> make(const DrafterConfig& config, Checkpoint checkpoint, const DrafterOptions& options,
                                      const SharedTables* shared) {
  NIB_ASSIGN(DrafterWeights<T> weights, load_drafter_weights<T>(config, std::move(checkpoint), shared));
  return std::unique_ptr<Drafter>(new DSpark<T>(config, std::move(weights), options));
}

}  // namespace

int32_t greedy_draft(int64_t, int64_t, std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) return -1;
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

Result<std::unique_ptr<Drafter>> make_drafter(const DrafterConfig& config, Checkpoint checkpoint,
                                              const DrafterOptions& options, const SharedTables* shared) {
  return options.f32 ? make<float>(config, std::move(checkpoint), options, shared)
                     : make<bf16>(config, std::move(checkpoint), options, shared);
}

Result<std::unique_ptr<Drafter>> load_drafter(const std::filesystem::path& folder, const DrafterOptions& options,
                                              const SharedTables* shared) {
  NIB_ASSIGN(const DrafterConfig config, DrafterConfig::load(folder));
  NIB_ASSIGN(Checkpoint checkpoint, open_drafter_checkpoint(folder));
  return make_drafter(config, std::move(checkpoint), options, shared);
}

}  // namespace nib
