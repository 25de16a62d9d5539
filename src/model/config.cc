#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "model/checkpoint.h"
#include "model/json_fields.h"

namespace nib {

namespace {

constexpr int64_t kMaxSize = 1 << 24;  // of any one axis: far above every real model, far below any overflow
constexpr double kHuge = 1e30;
constexpr const char* kFile = "config.json";

std::string architecture_of(const Json& top, const Json& text) {
  if (top.contains("architectures") && top["architectures"].is_array() && !top["architectures"].empty() &&
      top["architectures"][0].is_string())
    return top["architectures"][0].get<std::string>();
  for (const Json* object : {&top, &text})
    if (object->contains("model_type") && (*object)["model_type"].is_string())
      return (*object)["model_type"].get<std::string>();
  return {};
}

Result<Generation> generation_of(const Json& top, const Json& text, const std::string& architecture) {
  static const std::set<std::string> kFirst = {"InklingForConditionalGeneration", "InklingForCausalLM",
                                               "inkling_mm_model", "inkling_model", "inkling_text"};
  static const std::set<std::string> kSecond = {"Inkling2ForConditionalGeneration", "Inkling2ForCausalLM", "inkling2",
                                                "inkling2_text"};
  if (top.contains("model_type") && top["model_type"] == "inkling2_loop")
    return Status(Code::kUnimplemented, "config.json: model_type inkling2_loop (looped depth) is not supported");
  const bool first = kFirst.contains(architecture), second = kSecond.contains(architecture);
  if (!first && !second)
    return invalid("config.json: the architecture \"{}\" is unknown; Inkling and Inkling 2 are supported",
                   architecture);
  // A second-generation model may be described in the spelling of the first: its depth blocks give it away.
  return second || text.contains("n_layers_per_attnres_block") ? Generation::kInkling2 : Generation::kInkling;
}

// Sliding layers by index; local_layer_ids and layer_types say the same in two ways.
std::vector<bool> sliding_layers(Fields& f, int64_t layers) {
  std::vector<bool> sliding(layers, false);
  if (!f.has_value("local_layer_ids") && f.has_value("layer_types")) {
    const std::vector<std::string> types = f.texts("layer_types", {});
    if (static_cast<int64_t>(types.size()) != layers)
      f.fail(invalid("{}: layer_types has {} entries for {} layers", kFile, types.size(), layers));
    for (size_t i = 0; i < types.size() && i < sliding.size(); ++i) {
      sliding[i] = types[i] == "hybrid_sliding";
      if (!sliding[i] && types[i] != "hybrid")
        f.fail(invalid("{}: layer_types must hold hybrid or hybrid_sliding, got {}", kFile, types[i]));
    }
    return sliding;
  }
  for (int64_t i : f.integers("local_layer_ids", 0, layers - 1)) sliding[i] = true;
  return sliding;
}

std::string first_present(const Fields& f, const char* name, const char* alias) {
  return !f.has(name) && f.has(alias) ? alias : name;
}

// Heads of full layers, and of sliding ones where the file tells them apart.
void read_heads(Fields& f, const std::string& prefix, LayerConfig& layer) {
  layer.num_heads = f.integer(prefix + "num_attention_heads", 1, kMaxSize);
  layer.num_kv_heads = f.integer(prefix + "num_key_value_heads", 1, kMaxSize);
  layer.head_dim = f.integer(prefix + "head_dim", 1, kMaxSize);
  if (layer.num_heads % layer.num_kv_heads)
    f.fail(invalid("{}: {}num_attention_heads {} is no multiple of {}num_key_value_heads {}", kFile, prefix,
                   layer.num_heads, prefix, layer.num_kv_heads));
  if (f.integer(prefix + "v_head_dim", 1, kMaxSize, layer.head_dim) != layer.head_dim)
    f.fail(invalid("{}: {}v_head_dim must equal {}head_dim", kFile, prefix, prefix));
}

void read_layers(Fields& f, ModelConfig& c) {
  const int64_t layers = f.integer("num_hidden_layers", 1, 4096);
  LayerConfig full{.full = true}, sliding;
  read_heads(f, "", full);
  if (f.has_value("swa_num_attention_heads") || f.has_value("swa_num_key_value_heads") || f.has_value("swa_head_dim"))
    read_heads(f, "swa_", sliding);
  else
    read_heads(f, "", sliding);
  sliding.window = f.integer(first_present(f, "sliding_window_size", "sliding_window"), 1, kMaxSize);
  sliding.extent = sliding.window;
  full.extent = c.generation == Generation::kInkling ? f.integer("rel_extent", 1, kMaxSize)
                                                     : f.integer("rel_extent", 1, kMaxSize, 0);
  for (bool is_sliding : sliding_layers(f, layers)) c.layers.push_back(is_sliding ? sliding : full);
}

void read_common(Fields& f, ModelConfig& c) {
  c.hidden_size = f.integer("hidden_size", 1, kMaxSize);
  c.vocab_size = f.integer("vocab_size", 1, kMaxSize);
  c.unpadded_vocab_size = std::min(c.vocab_size, f.integer("unpadded_vocab_size", 1, kMaxSize, c.vocab_size));
  c.max_position = f.integer(first_present(f, "model_max_length", "max_position_embeddings"), 1, int64_t{1} << 31);
  c.d_rel = f.integer("d_rel", 1, kMaxSize);
  c.conv_width = f.integer(first_present(f, "sconv_kernel_size", "conv_kernel_size"), 1, 64, 4);
  c.num_experts = f.integer("n_routed_experts", 1, kMaxSize);
  c.top_k = f.integer("num_experts_per_tok", 1, kMaxSize);
  if (c.top_k > c.num_experts)
    f.fail(invalid("{}: num_experts_per_tok {} exceeds n_routed_experts {}", kFile, c.top_k, c.num_experts));
  c.rms_norm_eps = f.number("rms_norm_eps", 0, 1, 1e-6);
  c.tau_alpha = f.number("log_scaling_alpha", 0, kHuge, 0.1);
  // null switches the scaling off, an absent key means the family's value
  c.tau_floor = f.has("log_scaling_n_floor") ? f.number("log_scaling_n_floor", 0, kHuge, 0) : 128000;
  c.soft_cap = f.number("final_logit_softcapping", 0, kHuge, 0);
}

// Refuses a key whose value this network does not compute.
void require(Fields& f, const char* key, bool wanted) {
  if (f.boolean(key, wanted) != wanted) f.fail(invalid("{}: {} must be {} here", kFile, key, wanted));
}

void read_dense_layers(Fields& f, ModelConfig& c) {
  if (f.has_value("mlp_layer_types") && !f.has_value("dense_mlp_idx")) {
    const std::vector<std::string> types = f.texts("mlp_layer_types", {});
    if (types.size() != c.layers.size())
      f.fail(invalid("{}: mlp_layer_types has {} entries for {} layers", kFile, types.size(), c.layers.size()));
    for (size_t i = 0; i < types.size() && i < c.layers.size(); ++i) {
      c.layers[i].dense = types[i] == "dense";
      if (!c.layers[i].dense && types[i] != "sparse")
        f.fail(invalid("{}: mlp_layer_types must hold dense or sparse, got {}", kFile, types[i]));
    }
    return;
  }
  const int64_t dense = f.integer("dense_mlp_idx", 0, c.num_layers());
  for (int64_t i = 0; i < dense && i < c.num_layers(); ++i) c.layers[i].dense = true;
}

// The two spellings give intermediate_size opposite meanings: in the first it is the experts' width.
void read_widths(Fields& f, ModelConfig& c) {
  const bool hf = f.has_value("moe_intermediate_size") && !f.has_value("dense_intermediate_size");
  const bool any_dense = std::any_of(c.layers.begin(), c.layers.end(), [](const LayerConfig& l) { return l.dense; });
  c.expert_width =
      f.integer(hf || !f.has_value("intermediate_size") ? "moe_intermediate_size" : "intermediate_size", 1, kMaxSize);
  if (any_dense) c.dense_width = f.integer(hf ? "intermediate_size" : "dense_intermediate_size", 1, kMaxSize);
}

void read_inkling(Fields& f, ModelConfig& c) {
  read_dense_layers(f, c);
  read_widths(f, c);
  c.num_shared_experts = f.integer("n_shared_experts", 0, kMaxSize);
  c.route_scale = f.number("route_scale", 0, kHuge);
  c.mup = f.number(first_present(f, "logits_mup_width_multiplier", "embedding_multiplier"), 1e-6, kHuge);
  c.activation.kind = Activation::Kind::kSwiglu;
  for (const char* key : {"use_embed_norm", "use_sconv", "use_gate_bias", "use_global_scale", "norm_after_topk",
                          "inference_moe_w13_interleaved"})
    require(f, key, true);
  for (const char* key : {"q_bias", "o_bias", "tie_word_embeddings"}) require(f, key, false);
  if (c.num_shared_experts) require(f, "shared_expert_sink", true);
  f.choice("gate_activation", {"sigmoid"}, 0);
  f.choice("hidden_act", {"silu"}, 0);
}

// A limit that must be in the file; null and 0 mean none.
double required_limit(Fields& f, const std::string& key, const char* meaning) {
  if (!f.has(key)) f.fail(invalid("{}: {} is missing; give the {}, or 0 for none", kFile, key, meaning));
  return f.number(key, 0, kHuge, 0);
}

ModelConfig::GateAct read_act(Fields& f, const char* key, ModelConfig::GateAct absent) {
  return static_cast<ModelConfig::GateAct>(
      f.choice(key, {"sigmoid", "silu", "tanh", "none"}, static_cast<int>(absent)));
}

ModelConfig::Source read_source(Fields& f, const char* key) {
  return static_cast<ModelConfig::Source>(f.choice(key, {"q", "k", "v"}, 0));
}

void read_tau_targets(Fields& f, ModelConfig& c) {
  const std::vector<std::string> targets = f.texts("tau_targets", {"q", "profile"});
  c.tau_on_q = c.tau_on_profile = false;
  for (const std::string& t : targets) {
    if (t == "q") c.tau_on_q = true;
    if (t == "profile") c.tau_on_profile = true;
    if (t != "q" && t != "profile") f.fail(invalid("{}: tau_targets must hold q and profile, got {}", kFile, t));
  }
}

void read_qkvr_order(Fields& f, ModelConfig& c) {
  const std::vector<std::string> parts = c.qkvr_order;
  c.qkvr_order = f.texts("qkvr_order", parts);
  if (!std::is_permutation(c.qkvr_order.begin(), c.qkvr_order.end(), parts.begin(), parts.end()))
    f.fail(invalid("{}: qkvr_order must hold each of {} once", kFile, join(parts)));
}

// The open questions of the specification, section 9, in its order.
void read_inkling2(Fields& f, ModelConfig& c) {
  c.layers_per_block = f.integer("n_layers_per_attnres_block", 1, 4096);
  c.q_clip = required_limit(f, "q_l2_clip", "limit of the length of each query head");
  c.k_clip = required_limit(f, "k_l2_clip", "limit of the length of each key head");
  c.rel_clip = required_limit(f, "rel_l2_clip", "limit of the length of each relative head");
  c.activation.kind = Activation::Kind::kSitu;
  c.activation.beta = static_cast<float>(required_limit(f, "situ_beta", "cap of the gate"));
  c.activation.linear_beta = static_cast<float>(required_limit(f, "situ_linear_beta", "cap of the linear half"));
  c.mup = f.number("logits_mup_width_multiplier", 1e-6, kHuge, 1);
  c.route_scale = f.number("route_scale", 0, kHuge, 1);
  if (c.route_scale == 0) c.route_scale = 1;  // "absent or zero": no scale
  c.gate_softmax = f.choice("gate_activation", {"sigmoid", "softmax"}, 0) == 1;
  c.norm_after_topk = f.boolean("norm_after_topk", true);
  c.attn_gate_act = read_act(f, "attn_gate_act", ModelConfig::GateAct::kSigmoid);
  c.attn_gate_input = read_source(f, "attn_gate_input");
  c.sink_source = static_cast<ModelConfig::Sink>(f.choice("sink_source", {"linear", "rel_table", "none"}, 0));
  c.sink_input = read_source(f, "sink_input");
  c.sink_tau = f.boolean("sink_tau", false);
  read_qkvr_order(f, c);
  c.tap_input = static_cast<ModelConfig::TapInput>(f.choice("dyn_tap_input", {"own", "q", "raw"}, 0));
  c.tap_act = read_act(f, "dyn_tap_act", ModelConfig::GateAct::kNone);
  c.tap_static = f.boolean("dyn_tap_static", false);
  c.tap_skip = f.boolean("dyn_skip", true);
  c.rel_clamp = f.choice("rel_beyond_extent", {"zero", "clamp"}, 0) == 1;
  c.rel_input = read_source(f, "rel_input");
  read_tau_targets(f, c);
  c.conv_first = f.boolean("conv_first", true);
  c.depth_logit_scale = f.number("depth_logit_scale", -kHuge, kHuge, 1);
  c.attn_res_eps = f.number("attn_res_eps", 0, 1, c.rms_norm_eps);
  c.value_norm = f.boolean("use_value_norm_no_gamma", true);
  read_widths(f, c);
  require(f, "tie_word_embeddings", false);
  for (const char* key : {"n_shared_experts", "dense_mlp_idx"}) f.integer(key, 0, 0, 0);
  if (!c.layers.empty() && c.layers[0].full) f.fail(invalid("{}: layer 0 must be a sliding layer", kFile));
}

std::vector<int32_t> read_eos(Fields& f) {
  std::vector<int32_t> ids;
  if (!f.has_value("eos_token_id")) return ids;
  for (int64_t id : f.integer_or_list("eos_token_id", 0, INT32_MAX)) ids.push_back(static_cast<int32_t>(id));
  return ids;
}

}  // namespace

Result<ModelConfig> ModelConfig::from_json(const Json& top) {
  if (!top.is_object()) return invalid("{}: is not a JSON object", kFile);
  const bool nested = top.contains("text_config") && top["text_config"].is_object();
  const Json& text = nested ? top["text_config"] : top;

  ModelConfig c;
  c.architecture = architecture_of(top, text);
  NIB_ASSIGN(c.generation, generation_of(top, text, c.architecture));
  Fields f(text, kFile), outer(top, kFile);
  read_common(f, c);
  read_layers(f, c);
  if (c.generation == Generation::kInkling)
    read_inkling(f, c);
  else
    read_inkling2(f, c);
  c.eos_token_ids = read_eos(outer.has_value("eos_token_id") ? outer : f);
  c.placeholders = f.placeholders();
  NIB_TRY(outer.status());
  NIB_TRY(f.status());
  return c;
}

Result<ModelConfig> ModelConfig::load(const std::filesystem::path& folder_or_file) {
  std::error_code error;
  const bool folder = std::filesystem::is_directory(folder_or_file, error);
  NIB_ASSIGN(const Json json, read_json_file(folder ? folder_or_file / kFile : folder_or_file));
  return from_json(json);
}

}  // namespace nib
