#include "model/tensor_table.h"

#include <functional>

namespace nib {

namespace {

using Shape = std::vector<int64_t>;

bool exists(const Checkpoint* c, const std::string& name) { return c && c->find(name); }

int64_t axes(const Checkpoint* c, const std::string& name) {
  const TensorInfo* t = c ? c->find(name) : nullptr;
  return t ? static_cast<int64_t>(t->shape.size()) : 0;
}

// ------------------------------------------------------------------------------------------------ Inkling 2

class Inkling2Table {
 public:
  Inkling2Table(const ModelConfig& c, const Checkpoint* checkpoint) : c_(c), checkpoint_(checkpoint) {}

  std::vector<TensorSpec> build() {
    const int64_t H = c_.hidden_size, V = c_.vocab_size;
    add({.role = Role::kEmbed, .kind = TensorKind::kEmbed, .names = {"model.llm.embed.weight"}, .shapes = {{V, H}}});
    add({.role = Role::kUnembed,
         .kind = TensorKind::kHead,
         .shard = Shard::kRows,
         .names = {"model.llm.unembed.weight"},
         .shapes = {{V, H}}});
    add({.role = Role::kEmbedNorm,
         .kind = TensorKind::kNorm,
         .names = {"model.llm.embed_norm.weight"},
         .shapes = {{H}}});
    add({.role = Role::kNorm, .kind = TensorKind::kNorm, .names = {"model.llm.norm.weight"}, .shapes = {{H}}});
    add({.role = Role::kOutputQuery,
         .kind = TensorKind::kQuery,
         .names = {"model.llm.output_res_query", "model.llm.output_attn_res_query"},
         .shapes = {{1, H}, {H}},
         .f32 = true});
    for (layer_ = 0; layer_ < c_.num_layers(); ++layer_) add_layer();
    return std::move(table_);
  }

 private:
  void add(TensorSpec spec) { table_.push_back(std::move(spec)); }

  void add_layer() {
    p_ = fmt::format("model.llm.layers.{}.", layer_);
    y_ = c_.layers[layer_];
    add_depth_mixing();
    add_projections();
    add_scales();
    add_convolutions();
    add_moe();
  }

  TensorSpec of_layer(Role role, TensorKind kind, Shard shard, std::vector<std::string> names,
                      std::vector<Shape> shapes) {
    for (std::string& name : names) name = p_ + name;
    return {.role = role,
            .layer = layer_,
            .kind = kind,
            .shard = shard,
            .names = std::move(names),
            .shapes = std::move(shapes)};
  }
  void add(Role role, TensorKind kind, Shard shard, std::vector<std::string> names, std::vector<Shape> shapes) {
    add(of_layer(role, kind, shard, std::move(names), std::move(shapes)));
  }

  void add_depth_mixing() {
    const int64_t H = c_.hidden_size;
    const auto query = [&](Role role, std::vector<std::string> names, std::vector<Shape> shapes, bool optional) {
      TensorSpec s = of_layer(role, TensorKind::kQuery, Shard::kReplicated, std::move(names), std::move(shapes));
      s.optional = optional;
      s.usual = !optional;
      s.f32 = true;
      add(std::move(s));
    };
    query(Role::kAttnQuery, {"attn_res_query", "attn_query"},
          y_.full ? std::vector<Shape>{{3, H}} : std::vector<Shape>{{1, H}, {H}},
          layer_ == 0);  // layer 0 has one source: a query there is inert
    query(Role::kMlpQuery, {"mlp_res_query", "mlp_query"}, {{1, H}, {H}}, false);
    add_norms();
    add(Role::kMlpNorm, TensorKind::kNorm, Shard::kReplicated, {"mlp_norm.weight"}, {{H}});
  }

  void add_norms() {
    const int64_t H = c_.hidden_size;
    if (!y_.full)
      return add(Role::kAttnNorm, TensorKind::kNorm, Shard::kReplicated, {"attn_norm.weight", "attn_norms.0.weight"},
                 {{H}});
    if (exists(checkpoint_, p_ + "attn_norm.weight"))
      return add(Role::kAttnNorms, TensorKind::kNorm, Shard::kReplicated, {"attn_norm.weight"}, {{3, H}});
    for (int part = 0; part < 3; ++part) {
      TensorSpec s = of_layer(Role::kAttnNorm, TensorKind::kNorm, Shard::kReplicated,
                              {fmt::format("attn_norms.{}.weight", part)}, {{H}});
      s.part = part;
      add(std::move(s));
    }
  }

  void add_projections() {
    const int64_t H = c_.hidden_size, q = y_.num_heads * y_.head_dim, kv = y_.num_kv_heads * y_.head_dim,
                  r = y_.num_heads * c_.d_rel, n = y_.num_heads;
    const bool linear_sink = c_.sink_source == ModelConfig::Sink::kLinear;
    add(Role::kO, TensorKind::kAttention, Shard::kColumns, {"attn.wo_ud.weight"}, {{H, q}});
    if (exists(checkpoint_, p_ + "attn.qkvr.weight")) {
      const int64_t rows = q + 2 * kv + r + (linear_sink ? n : 0);
      return add(Role::kQkvr, TensorKind::kAttention, Shard::kRows, {"attn.qkvr.weight"},
                 {{rows + q, H}, {rows + n, H}, {rows, H}});
    }
    add(Role::kQ, TensorKind::kAttention, Shard::kRows, {"attn.wq_du.weight"}, {{q, H}});
    add(Role::kK, TensorKind::kAttention, Shard::kRows, {"attn.wk_dv.weight"}, {{kv, H}});
    add(Role::kV, TensorKind::kAttention, Shard::kRows, {"attn.wv_dv.weight"}, {{kv, H}});
    add(Role::kR, TensorKind::kAttention, Shard::kRows, {"attn.wr_du.weight"}, {{r, H}});
    TensorSpec gate =
        of_layer(Role::kGate, TensorKind::kAttention, Shard::kRows, {"attn.wg_du.weight"}, {{q, H}, {n, H}});
    gate.optional = true;
    add(std::move(gate));
    if (linear_sink) add(Role::kSink, TensorKind::kOther, Shard::kRows, {"attn.wz_du.weight"}, {{n, H}});
  }

  void add_scales() {
    const auto scale = [&](Role role, const char* name, int64_t width, int64_t heads) {
      TensorSpec s = of_layer(role, TensorKind::kOther, Shard::kReplicated, {name}, {{width}, {heads * width}});
      s.optional = true;
      s.usual = false;
      add(std::move(s));
    };
    scale(Role::kQScale, "attn.q_clip_scale", y_.head_dim, y_.num_heads);
    scale(Role::kKScale, "attn.k_clip_scale", y_.head_dim, y_.num_kv_heads);
    scale(Role::kRScale, "attn.r_clip_scale", c_.d_rel, y_.num_heads);
  }

  // Width of the table: the extent where the config knows it, else what the checkpoint holds.
  int64_t table_columns() const {
    const int64_t extra = c_.sink_source == ModelConfig::Sink::kRelTable;
    if (y_.extent) return y_.extent + extra;
    for (const char* name : {"attn.relative_table", "attn.rel_logits_proj.proj"})
      if (const TensorInfo* t = checkpoint_ ? checkpoint_->find(p_ + name) : nullptr; t && t->shape.size() == 2)
        return std::max<int64_t>(t->shape[1], 1 + extra);
    return 1024 + extra;  // no checkpoint: the family's extent
  }

  void add_convolutions() {
    const int64_t H = c_.hidden_size, W = c_.conv_width, kv = y_.num_kv_heads * y_.head_dim;
    add(Role::kTable, TensorKind::kOther, Shard::kReplicated, {"attn.relative_table", "attn.rel_logits_proj.proj"},
        {{c_.d_rel, table_columns()}});
    add_taps(Role::kKTaps, Role::kKTapProj, "attn.k_sconv", kv);
    add_taps(Role::kVTaps, Role::kVTapProj, "attn.v_sconv", kv);
    add(Role::kAttnTaps, TensorKind::kConv, Shard::kReplicated, {"attn_sconv.weight"}, {{H, 1, W}});
    add(Role::kMlpTaps, TensorKind::kConv, Shard::kReplicated, {"mlp_sconv.weight"}, {{H, 1, W}});
  }

  // Static taps in sliding layers; in full layers a generator, and static taps beside it with dyn_tap_static.
  void add_taps(Role fixed, Role generator, const std::string& name, int64_t channels) {
    const int64_t W = c_.conv_width, in = c_.tap_input == ModelConfig::TapInput::kRaw ? channels : c_.hidden_size;
    const bool matrix = axes(checkpoint_, p_ + name + ".weight") == 2;  // the generator under the plain name
    if (y_.full)
      add(generator, TensorKind::kConv, Shard::kRows, {name + (matrix ? ".weight" : "_proj.weight")},
          {{y_.num_kv_heads * W, in}});
    if (!y_.full || (c_.tap_static && !matrix))
      add(fixed, TensorKind::kConv, Shard::kRows, {name + ".weight"}, {{channels, 1, W}});
  }

  void add_moe() {
    const int64_t H = c_.hidden_size, E = c_.num_experts, I = c_.expert_width;
    add(Role::kRouter, TensorKind::kRouter, Shard::kReplicated, {"mlp.gate.weight"}, {{E, H}});
    TensorSpec bias = of_layer(Role::kRouterBias, TensorKind::kRouter, Shard::kReplicated, {"mlp.gate.bias"}, {{E}});
    bias.f32 = true;
    add(std::move(bias));
    TensorSpec scale =
        of_layer(Role::kRouterScale, TensorKind::kRouter, Shard::kReplicated, {"mlp.gate.global_scale"}, {{1}, {}});
    scale.optional = true;
    scale.usual = false;
    scale.f32 = true;
    add(std::move(scale));
    for (const auto& [role, shard, name, rows, columns] :
         {std::tuple{Role::kW13, Shard::kRows, "mlp.experts.w13_weight", 2 * I, H},
          std::tuple{Role::kW2, Shard::kColumns, "mlp.experts.w2_weight", H, I}}) {
      TensorSpec s = of_layer(role, TensorKind::kExpert, shard, {name}, {{E, rows, columns}});
      s.packable = true;
      add(std::move(s));
    }
  }

  const ModelConfig& c_;
  const Checkpoint* checkpoint_;
  std::vector<TensorSpec> table_;
  int64_t layer_ = 0;
  std::string p_;
  LayerConfig y_;
};

// ------------------------------------------------------------------------------------------------ first generation

// Original names ("model.llm.layers.3.attn.wq_du.weight") or those of transformers, whose text-only models drop
// "language_model.".
class InklingTable {
 public:
  InklingTable(const ModelConfig& c, const Checkpoint* checkpoint) : c_(c) {
    for (const char* prefix : {"model.language_model.", "model."})
      if (exists(checkpoint, std::string(prefix) + "embed_tokens.weight")) hf_ = prefix;
  }

  std::vector<TensorSpec> build() {
    const int64_t H = c_.hidden_size, V = c_.vocab_size;
    add_top(Role::kEmbed, TensorKind::kEmbed, Shard::kReplicated, "embed.weight", {"embed_tokens.weight"}, {V, H});
    add_top(Role::kUnembed, TensorKind::kHead, Shard::kRows, "unembed.weight", {}, {V, H});
    if (!hf_.empty()) table_.back().names = {"lm_head.weight"};
    add_top(Role::kEmbedNorm, TensorKind::kNorm, Shard::kReplicated, "embed_norm.weight",
            {"embed_norm.weight", "embed_tokens.embed_norm.weight"}, {H});
    add_top(Role::kNorm, TensorKind::kNorm, Shard::kReplicated, "norm.weight", {"norm.weight"}, {H});
    for (layer_ = 0; layer_ < c_.num_layers(); ++layer_) {
      p_ = fmt::format("layers.{}.", layer_);
      add_attention();
      if (c_.layers[layer_].dense)
        add_dense();
      else
        add_moe();
    }
    return std::move(table_);
  }

 private:
  void add_top(Role role, TensorKind kind, Shard shard, const std::string& original, std::vector<std::string> hf,
               Shape shape) {
    TensorSpec s{.role = role, .kind = kind, .shard = shard, .names = {"model.llm." + original}, .shapes = {shape}};
    if (!hf_.empty()) {
      for (std::string& name : hf) name = hf_ + name;
      s.names = std::move(hf);
    }
    table_.push_back(std::move(s));
  }

  TensorSpec& add(Role role, TensorKind kind, Shard shard, const std::string& original, const std::string& hf,
                  Shape shape) {
    table_.push_back({.role = role,
                      .layer = layer_,
                      .kind = kind,
                      .shard = shard,
                      .names = {hf_.empty() ? "model.llm." + p_ + original : hf_ + p_ + hf},
                      .shapes = {std::move(shape)}});
    return table_.back();
  }

  void add_attention() {
    const LayerConfig& y = c_.layers[layer_];
    const int64_t H = c_.hidden_size, W = c_.conv_width, q = y.num_heads * y.head_dim, kv = y.num_kv_heads * y.head_dim;
    const auto attention = TensorKind::kAttention;
    add(Role::kQ, attention, Shard::kRows, "attn.wq_du.weight", "self_attn.q_proj.weight", {q, H});
    add(Role::kK, attention, Shard::kRows, "attn.wk_dv.weight", "self_attn.k_proj.weight", {kv, H});
    add(Role::kV, attention, Shard::kRows, "attn.wv_dv.weight", "self_attn.v_proj.weight", {kv, H});
    add(Role::kR, attention, Shard::kRows, "attn.wr_du.weight", "self_attn.r_proj.weight", {y.num_heads * c_.d_rel, H});
    add(Role::kO, attention, Shard::kColumns, "attn.wo_ud.weight", "self_attn.o_proj.weight", {H, q});
    const auto norm = [&](Role role, const char* original, const char* hf, int64_t width) {
      add(role, TensorKind::kNorm, Shard::kReplicated, original, hf, {width});
    };
    norm(Role::kAttnNorm, "attn_norm.weight", "input_layernorm.weight", H);
    norm(Role::kMlpNorm, "mlp_norm.weight", "post_attention_layernorm.weight", H);
    norm(Role::kQNorm, "attn.q_norm.weight", "self_attn.q_norm.weight", y.head_dim);
    norm(Role::kKNorm, "attn.k_norm.weight", "self_attn.k_norm.weight", y.head_dim);
    add(Role::kTable, TensorKind::kOther, Shard::kReplicated, "attn.rel_logits_proj.proj",
        "self_attn.rel_logits_proj.proj", {c_.d_rel, y.extent});
    const auto conv = [&](Role role, Shard shard, const std::string& original, const std::string& hf,
                          int64_t channels) {
      add(role, TensorKind::kConv, shard, original + ".weight", hf + ".conv1d.weight", {channels, 1, W});
    };
    conv(Role::kKTaps, Shard::kRows, "attn.k_sconv", "self_attn.k_sconv", kv);
    conv(Role::kVTaps, Shard::kRows, "attn.v_sconv", "self_attn.v_sconv", kv);
    conv(Role::kAttnTaps, Shard::kReplicated, "attn_sconv", "attn_sconv", H);
    conv(Role::kMlpTaps, Shard::kReplicated, "mlp_sconv", "mlp_sconv", H);
  }

  void add_dense() {
    const int64_t H = c_.hidden_size, D = c_.dense_width;
    const auto dense = TensorKind::kDense;
    if (hf_.empty()) {
      add(Role::kDenseW13, dense, Shard::kRows, "mlp.w13_dn.weight", "", {2 * D, H});
    } else {
      add(Role::kDenseGate, dense, Shard::kRows, "", "mlp.gate_proj.weight", {D, H});
      add(Role::kDenseUp, dense, Shard::kRows, "", "mlp.up_proj.weight", {D, H});
    }
    add(Role::kDenseW2, dense, Shard::kColumns, "mlp.w2_md.weight", "mlp.down_proj.weight", {H, D});
    add(Role::kDenseScale, TensorKind::kOther, Shard::kReplicated, "mlp.global_scale", "mlp.global_scale", {1})
        .shapes.push_back({});
  }

  void add_moe() {
    const int64_t H = c_.hidden_size, E = c_.num_experts, S = c_.num_shared_experts, I = c_.expert_width;
    const auto router = TensorKind::kRouter;
    add(Role::kRouter, router, Shard::kReplicated, "mlp.gate.weight", "mlp.gate.weight", {E + S, H});
    add(Role::kRouterBias, router, Shard::kReplicated, "mlp.gate.bias", "mlp.gate.e_score_correction_bias", {E}).f32 =
        true;
    TensorSpec& scale =
        add(Role::kRouterScale, router, Shard::kReplicated, "mlp.gate.global_scale", "mlp.gate.global_scale", {1});
    scale.shapes.push_back({});
    scale.f32 = true;
    TensorSpec& w13 = add(Role::kW13, TensorKind::kExpert, Shard::kRows, "mlp.experts.w13_weight",
                          "mlp.experts.gate_up_proj", {E, 2 * I, H});
    w13.packable = true;
    w13.halves = !hf_.empty();
    add(Role::kW2, TensorKind::kExpert, Shard::kColumns, "mlp.experts.w2_weight", "mlp.experts.down_proj", {E, H, I})
        .packable = true;
    if (S) add_shared();
  }

  void add_shared() {
    const int64_t H = c_.hidden_size, S = c_.num_shared_experts, I = c_.expert_width;
    const auto dense = TensorKind::kDense;
    if (hf_.empty()) {
      add(Role::kSharedW13, dense, Shard::kRows, "mlp.shared_experts.shared_w13_weight", "", {S, 2 * I, H});
    } else {
      add(Role::kSharedGate, dense, Shard::kRows, "", "mlp.shared_experts.gate_proj", {S, I, H});
      add(Role::kSharedUp, dense, Shard::kRows, "", "mlp.shared_experts.up_proj", {S, I, H});
    }
    add(Role::kSharedW2, dense, Shard::kColumns, "mlp.shared_experts.shared_w2_weight", "mlp.shared_experts.down_proj",
        {S, H, I});
  }

  const ModelConfig& c_;
  std::string hf_;  // empty: original names
  std::vector<TensorSpec> table_;
  int64_t layer_ = 0;
  std::string p_;
};

}  // namespace

std::string_view name(TensorKind kind) {
  constexpr std::string_view kNames[kNumTensorKinds] = {"experts", "attention",    "dense", "head",    "embedding",
                                                        "router",  "convolutions", "norms", "queries", "other"};
  return kNames[static_cast<int>(kind)];
}

std::vector<TensorSpec> tensor_table(const ModelConfig& config, const Checkpoint* checkpoint) {
  if (config.generation == Generation::kInkling2) return Inkling2Table(config, checkpoint).build();
  return InklingTable(config, checkpoint).build();
}

}  // namespace nib
