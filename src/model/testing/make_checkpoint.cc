#include "model/testing/make_checkpoint.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "compute/ops/quantize.h"
#include "model/safetensors.h"
#include "model/tensor_table.h"

namespace nib {

namespace fs = std::filesystem;

namespace {

// A tensor before it is stored.
struct Drawn {
  TensorSpec spec;
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

int64_t count(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

uint64_t hash(std::string_view text, uint64_t seed) {  // FNV-1a
  uint64_t h = 14695981039346656037u ^ seed * 1099511628211u;
  for (unsigned char c : text) h = (h ^ c) * 1099511628211u;
  return h;
}

// Values that BF16, F16 and F32 hold alike.
float snap(float x) { return std::fabs(x) < 0x1p-14f ? 0.0f : float(bf16::from(x)); }

struct Spread {
  float std = 1, mean = 0;
};

class Maker {
 public:
  Maker(const TinyOptions& o, const ModelConfig& c) : o_(o), c_(c) {}

  std::vector<OutTensor> make() {
    for (const TensorSpec& spec : tensor_table(c_, nullptr))
      if (wanted(spec)) draw(spec);
    if (o_.fused_qkvr) fuse_projections();
    if (o_.stacked_norms) stack_norms();
    for (Drawn& d : drawn_) store(d);
    return std::move(out_);
  }

 private:
  bool wanted(const TensorSpec& s) const {
    switch (s.role) {
      case Role::kGate:
        return o_.gate != TinyOptions::Gate::kNone;
      case Role::kQScale:
      case Role::kKScale:
      case Role::kRScale:
        return o_.clip_scales;
      case Role::kRouterScale:
        return o_.global_scale || c_.generation == Generation::kInkling;
      default:
        return !s.optional;  // the depth query of layer 0 stays away
    }
  }

  Spread spread(const TensorSpec& s, int64_t in) const {
    const float unit = 1.0f / std::sqrt(static_cast<float>(in));
    switch (s.role) {
      case Role::kEmbed:
        return {1.0f};
      case Role::kUnembed:
        return {2 * unit};
      case Role::kEmbedNorm:
      case Role::kNorm:
      case Role::kAttnNorm:
      case Role::kMlpNorm:
      case Role::kQNorm:
      case Role::kKNorm:
        return {0.15f, 1};
      case Role::kQScale:
      case Role::kKScale:
      case Role::kRScale:
      case Role::kRouterScale:
      case Role::kDenseScale:
        return {0.2f, 1};
      case Role::kKTaps:
      case Role::kVTaps:
      case Role::kAttnTaps:
      case Role::kMlpTaps:
        return {0.3f};
      case Role::kKTapProj:
      case Role::kVTapProj:
        return {0.35f * unit};
      case Role::kTable:
        return {0.9f / std::sqrt(static_cast<float>(c_.d_rel))};
      case Role::kRouterBias:
        return {0.3f};
      case Role::kO:
        return {2 * unit};
      case Role::kW13:
      case Role::kSharedW13:
      case Role::kDenseW13:
        return {1.1f * unit};
      case Role::kW2:
      case Role::kSharedW2:
      case Role::kDenseW2:
        return {1.3f * unit};
      default:
        return {unit};
    }
  }

  void draw(const TensorSpec& s) {
    Drawn d{.spec = s, .name = s.names[0], .shape = s.shapes[0], .values = {}};
    if (s.role == Role::kGate && o_.gate == TinyOptions::Gate::kHead) d.shape = s.shapes[1];
    if (o_.plain_tap_names && (s.role == Role::kKTapProj || s.role == Role::kVTapProj))
      d.name.erase(d.name.rfind("_proj"), 5);
    std::mt19937_64 rng(hash(d.name, o_.seed));
    std::normal_distribution<float> normal;
    const Spread spread = this->spread(s, d.shape.empty() ? 1 : d.shape.back());
    for (int64_t i = count(d.shape); i > 0; --i) d.values.push_back(snap(spread.mean + spread.std * normal(rng)));
    drawn_.push_back(std::move(d));
  }

  Drawn take(const std::string& name) {
    for (size_t i = 0; i < drawn_.size(); ++i)
      if (drawn_[i].name == name) {
        Drawn d = std::move(drawn_[i]);
        drawn_.erase(drawn_.begin() + static_cast<int64_t>(i));
        return d;
      }
    return {};
  }

  // Rows of several tensors, one after the other, under one name.
  void concatenate(const std::vector<std::string>& names, const std::string& to, std::vector<int64_t> shape) {
    Drawn joined;
    for (const std::string& name : names) {
      Drawn d = take(name);
      if (joined.name.empty() && !d.name.empty()) joined.spec = d.spec;
      joined.values.insert(joined.values.end(), d.values.begin(), d.values.end());
    }
    joined.name = to;
    const int64_t width = shape.back();
    joined.shape = {static_cast<int64_t>(joined.values.size()) / width, width};
    drawn_.push_back(std::move(joined));
  }

  void fuse_projections() {
    for (int64_t l = 0; l < c_.num_layers(); ++l) {
      const std::string p = fmt::format("model.llm.layers.{}.attn.", l);
      std::vector<std::string> names;
      for (const std::string& part : c_.qkvr_order)
        names.push_back(p + (part == "q"      ? "wq_du.weight"
                             : part == "k"    ? "wk_dv.weight"
                             : part == "v"    ? "wv_dv.weight"
                             : part == "r"    ? "wr_du.weight"
                             : part == "gate" ? "wg_du.weight"
                                              : "wz_du.weight"));
      concatenate(names, p + "qkvr.weight", {0, c_.hidden_size});
    }
  }

  void stack_norms() {
    for (int64_t l = 0; l < c_.num_layers(); ++l) {
      const std::string p = fmt::format("model.llm.layers.{}.", l);
      if (!c_.layers[l].full) continue;
      concatenate({p + "attn_norms.0.weight", p + "attn_norms.1.weight", p + "attn_norms.2.weight"},
                  p + "attn_norm.weight", {3, c_.hidden_size});
    }
  }

  // ---------------------------------------------------------------------------------------------- storing

  void store(const Drawn& d) {
    const bool packed = d.spec.packable && o_.experts != TinyOptions::Experts::kPlain;
    if (o_.hf_names && c_.generation == Generation::kInkling) return store_hf(d, packed);
    if (packed)
      store_packed(d, d.name);
    else
      store_plain(d.name, d.shape, d.values, d.spec.f32);
  }

  void put(std::string name, DType dtype, std::vector<int64_t> shape, const void* data) {
    OutTensor t{std::move(name), dtype, std::move(shape), {}};
    t.bytes.resize(size_in_bytes(dtype, count(t.shape)));
    std::memcpy(t.bytes.data(), data, t.bytes.size());
    out_.push_back(std::move(t));
  }

  static uint16_t f16_from_float(float x) {  // exact: snapped values fit
    const uint32_t u = std::bit_cast<uint32_t>(x);
    if (x == 0) return static_cast<uint16_t>(u >> 16);
    return static_cast<uint16_t>((u >> 16 & 0x8000) | (((u >> 23 & 255) - 112) << 10) | (u >> 13 & 1023));
  }

  void store_plain(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values, bool f32) {
    const DType dtype = f32 ? DType::kF32 : o_.dtype;
    if (dtype == DType::kF32) return put(name, dtype, std::move(shape), values.data());
    std::vector<uint16_t> half;
    for (float v : values) half.push_back(dtype == DType::kBF16 ? bf16::from(v).bits : f16_from_float(v));
    put(name, dtype, std::move(shape), half.data());
  }

  bool is_nvfp4(const Drawn& d) const {
    if (o_.experts == TinyOptions::Experts::kMixed) return d.spec.layer < std::lround(c_.num_layers() * 5 / 6.0);
    return o_.experts == TinyOptions::Experts::kNvfp4;
  }

  void store_packed(const Drawn& d, const std::string& name) {
    const int64_t E = d.shape[0], N = d.shape[1], K = d.shape[2];
    const bool nvfp4 = is_nvfp4(d);
    const int64_t code_bytes = nvfp4 ? K / 2 : K, groups = nvfp4 ? K / 16 : K / 32;
    std::vector<uint8_t> codes(E * N * code_bytes), scales(E * N * groups);
    std::vector<float> amax(E), outer(E);
    for (int64_t e = 0; e < E; ++e) {
      const View<const float, 2> x(d.values.data() + e * N * K, {N, K});
      const QuantizedRows out{View<uint8_t, 2>(codes.data() + e * N * code_bytes, {N, code_bytes}),
                              View<uint8_t, 2>(scales.data() + e * N * groups, {N, groups}),
                              View<float, 1>(&outer[e], {1}),
                              {}};
      const View<float, 1> largest(&amax[e], {1});
      ops::absolute_maxima(largest, x, ScaleScope::kTensor);
      if (nvfp4)
        ops::quantize_nvfp4(out, x, largest,
                            {.rule = o_.denominator == 1536 ? Nvfp4Rule::kFourOverSix : Nvfp4Rule::kSix,
                             .ceiling = static_cast<float>(o_.denominator) / 6,
                             .scope = ScaleScope::kTensor});
      else
        ops::quantize_mxfp8(out, x, MxRule::kCeil);
    }
    const auto companions = nvfp4 ? o_.companions : TinyOptions::Companions::kUsual;
    const bool first = c_.generation == Generation::kInkling && companions == TinyOptions::Companions::kUsual && nvfp4;
    put(name + (companions == TinyOptions::Companions::kCompressedTensors ? "_packed" : ""),
        nvfp4 ? DType::kU8 : DType::kE4M3, {E, N, code_bytes}, codes.data());
    put(name + (first ? ".scale" : "_scale"),
        nvfp4          ? DType::kE4M3
        : o_.u8_scales ? DType::kU8
                       : DType::kE8M0,
        {E, N, groups}, scales.data());
    if (nvfp4) store_outer(name, d, amax);
  }

  void store_outer(const std::string& name, const Drawn& d, const std::vector<float>& amax) {
    const int64_t E = d.shape[0];
    std::vector<float> multiplier(E), reciprocal(E), denominator(E, static_cast<float>(o_.denominator));
    for (int64_t e = 0; e < E; ++e) {
      multiplier[e] = amax[e] / denominator[e];
      reciprocal[e] = denominator[e] / amax[e];
    }
    if (o_.companions == TinyOptions::Companions::kModelOpt)
      return put(name + "_scale_2", DType::kF32, {E}, multiplier.data());
    if (o_.companions == TinyOptions::Companions::kCompressedTensors)
      return put(name + "_global_scale", DType::kF32, {E}, reciprocal.data());
    if (c_.generation == Generation::kInkling) {
      const uint16_t input_amax = bf16::from(6.0f).bits;
      put(name + ".scale2", DType::kF32, {E}, multiplier.data());
      put(name + ".input_amax", DType::kBF16, {1}, &input_amax);
      return put(name + ".original_shape", DType::kI64, {3}, d.shape.data());
    }
    put(name + "_amax", DType::kF32, {E}, amax.data());
    const auto shape = o_.denominator_shape == TinyOptions::DenominatorShape::kScalar ? std::vector<int64_t>{}
                       : o_.denominator_shape == TinyOptions::DenominatorShape::kOne  ? std::vector<int64_t>{1}
                                                                                      : std::vector<int64_t>{E};
    put(name + "_outer_scale_denominator", DType::kF32, shape, denominator.data());
  }

  // ---------------------------------------------------------------------------------------------- transformers

  // Gates first, then ups, from rows that alternate; per expert where there are several.
  static std::vector<float> halves(const Drawn& d) {
    const int64_t in = d.shape.back(), rows = d.shape[d.shape.size() - 2], n = count(d.shape) / (rows * in);
    std::vector<float> out(d.values.size());
    for (int64_t e = 0; e < n; ++e)
      for (int64_t r = 0; r < rows; ++r)
        std::copy_n(d.values.data() + (e * rows + r) * in, in,
                    out.data() + (e * rows + (r % 2) * rows / 2 + r / 2) * in);
    return out;
  }

  void store_hf(const Drawn& d, bool packed) {
    std::string name = hf_name(d);
    if (d.spec.role == Role::kW13) {
      Drawn split = d;
      split.values = halves(d);
      return packed ? store_packed(split, name) : store_plain(name, d.shape, split.values, false);
    }
    if (packed) return store_packed(d, name);
    if (d.spec.role != Role::kDenseW13 && d.spec.role != Role::kSharedW13)
      return store_plain(name, d.shape, d.values, d.spec.f32);
    store_gate_and_up(d, name);
  }

  // name: with a {} where "gate" or "up" goes.
  void store_gate_and_up(const Drawn& d, const std::string& name) {
    const int64_t in = d.shape.back(), rows = d.shape[d.shape.size() - 2];
    std::vector<int64_t> shape = d.shape;
    shape[shape.size() - 2] /= 2;
    for (int half = 0; half < 2; ++half) {
      std::vector<float> part;
      for (int64_t r = 0; r < count(d.shape) / in; ++r)
        if (r % rows % 2 == half) part.insert(part.end(), d.values.begin() + r * in, d.values.begin() + (r + 1) * in);
      std::string full = name;
      full.replace(full.find("{}"), 2, half ? "up" : "gate");
      store_plain(full, shape, part, false);
    }
  }

  static std::string hf_name(const Drawn& d) {
    const auto suffix = [&]() -> std::string {
      switch (d.spec.role) {
        case Role::kEmbed:
          return "embed_tokens.weight";
        case Role::kEmbedNorm:
          return "embed_norm.weight";
        case Role::kNorm:
          return "norm.weight";
        case Role::kAttnNorm:
          return "input_layernorm.weight";
        case Role::kMlpNorm:
          return "post_attention_layernorm.weight";
        case Role::kQ:
          return "self_attn.q_proj.weight";
        case Role::kK:
          return "self_attn.k_proj.weight";
        case Role::kV:
          return "self_attn.v_proj.weight";
        case Role::kR:
          return "self_attn.r_proj.weight";
        case Role::kO:
          return "self_attn.o_proj.weight";
        case Role::kQNorm:
          return "self_attn.q_norm.weight";
        case Role::kKNorm:
          return "self_attn.k_norm.weight";
        case Role::kTable:
          return "self_attn.rel_logits_proj.proj";
        case Role::kKTaps:
          return "self_attn.k_sconv.conv1d.weight";
        case Role::kVTaps:
          return "self_attn.v_sconv.conv1d.weight";
        case Role::kAttnTaps:
          return "attn_sconv.conv1d.weight";
        case Role::kMlpTaps:
          return "mlp_sconv.conv1d.weight";
        case Role::kDenseW13:
          return "mlp.{}_proj.weight";
        case Role::kDenseW2:
          return "mlp.down_proj.weight";
        case Role::kDenseScale:
          return "mlp.global_scale";
        case Role::kRouter:
          return "mlp.gate.weight";
        case Role::kRouterBias:
          return "mlp.gate.e_score_correction_bias";
        case Role::kRouterScale:
          return "mlp.gate.global_scale";
        case Role::kW13:
          return "mlp.experts.gate_up_proj";
        case Role::kW2:
          return "mlp.experts.down_proj";
        case Role::kSharedW13:
          return "mlp.shared_experts.{}_proj";
        case Role::kSharedW2:
          return "mlp.shared_experts.down_proj";
        default:
          NIB_CHECK(false, "{} has no name in transformers", d.name);
      }
    };
    if (d.spec.role == Role::kUnembed) return "lm_head.weight";
    const std::string layer = d.spec.layer < 0 ? "" : fmt::format("layers.{}.", d.spec.layer);
    return "model.language_model." + layer + suffix();
  }

  const TinyOptions& o_;
  const ModelConfig& c_;
  std::vector<Drawn> drawn_;
  std::vector<OutTensor> out_;
};

std::vector<int64_t> local_layers(const TinyOptions& o) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < o.num_layers; ++i)
    if ((i + 1) % o.layers_per_block) ids.push_back(i);
  return ids;
}

Json text_config_of_inkling2(const TinyOptions& o) {
  return {{"num_attention_heads", o.num_heads},
          {"num_key_value_heads", o.num_kv_heads},
          {"head_dim", o.head_dim},
          {"local_layer_ids", local_layers(o)},
          {"n_layers_per_attnres_block", o.layers_per_block},
          {"moe_intermediate_size", o.expert_width},
          {"log_scaling_n_floor", 8},
          {"log_scaling_alpha", 0.3},
          {"route_scale", 1.8},
          {"situ_beta", 1.0},
          {"situ_linear_beta", 1.25},
          {"final_logit_softcapping", 2.5},
          {"logits_mup_width_multiplier", 1.5},
          {"q_l2_clip", 3.5},
          {"k_l2_clip", 4.0},
          {"rel_l2_clip", 1.9}};
}

Json text_config_of_inkling(const TinyOptions& o) {
  Json text = {{"num_attention_heads", o.num_heads},
               {"num_key_value_heads", o.num_kv_heads},
               {"head_dim", o.head_dim},
               {"swa_num_attention_heads", o.num_heads},
               {"swa_num_key_value_heads", o.num_kv_heads * (o.num_heads % (2 * o.num_kv_heads) ? 1 : 2)},
               {"swa_head_dim", o.head_dim},
               {"n_shared_experts", o.num_shared_experts},
               {"shared_expert_sink", true},
               {"log_scaling_n_floor", 12},
               {"log_scaling_alpha", 0.1},
               {"route_scale", 2.0},
               {"logits_mup_width_multiplier", 2.0}};
  if (!o.hf_names) {
    text["local_layer_ids"] = local_layers(o);
    text["dense_mlp_idx"] = o.num_dense_layers;
    text["dense_intermediate_size"] = o.dense_width;
    text["intermediate_size"] = o.expert_width;
    return text;
  }
  for (int64_t i = 0; i < o.num_layers; ++i) {
    text["layer_types"].push_back((i + 1) % o.layers_per_block ? "hybrid_sliding" : "hybrid");
    text["mlp_layer_types"].push_back(i < o.num_dense_layers ? "dense" : "sparse");
  }
  text["intermediate_size"] = o.dense_width;
  text["moe_intermediate_size"] = o.expert_width;
  return text;
}

// Neighbouring tensors go to neighbouring shards, so that companions lie apart.
Status write_shards(const fs::path& folder, std::vector<OutTensor> tensors, int n) {
  if (n == 1) return write_safetensors(folder / "model.safetensors", tensors);
  std::vector<std::vector<OutTensor>> shards(n);
  Json index = {{"weight_map", Json::object()}};
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i % n + 1, n);
    index["weight_map"][tensors[i].name] = file;
    shards[i % n].push_back(std::move(tensors[i]));
  }
  for (int s = 0; s < n; ++s)
    NIB_TRY(write_safetensors(folder / fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, n), shards[s]));
  return write_json_file(folder / "model.safetensors.index.json", index);
}

}  // namespace

Status write_json_file(const fs::path& file, const Json& json) {
  std::ofstream out(file);
  out << json.dump(1) << "\n";
  return out.good() ? Status() : invalid("{}: cannot be written", file.string());
}

Json tiny_config(const TinyOptions& o) {
  const bool second = o.generation == Generation::kInkling2;
  Json text = second ? text_config_of_inkling2(o) : text_config_of_inkling(o);
  text.update(Json{{"vocab_size", o.vocab_size},
                   {"unpadded_vocab_size", o.unpadded_vocab_size},
                   {"hidden_size", o.hidden_size},
                   {"num_hidden_layers", o.num_layers},
                   {"sliding_window_size", o.window},
                   {"rel_extent", o.extent},
                   {"d_rel", o.d_rel},
                   {"sconv_kernel_size", 4},
                   {"rms_norm_eps", 1e-6},
                   {"n_routed_experts", o.num_experts},
                   {"num_experts_per_tok", o.top_k},
                   {"model_max_length", o.max_position}});
  text.update(o.text_config);
  return {{"architectures", {second ? "Inkling2ForConditionalGeneration" : "InklingForConditionalGeneration"}},
          {"model_type", second ? "inkling2" : "inkling_mm_model"},
          {"text_config", text}};
}

Result<fs::path> make_tiny_checkpoint(const TinyOptions& options, const fs::path& folder) {
  const Json json = tiny_config(options);
  NIB_ASSIGN(const ModelConfig config, ModelConfig::from_json(json));
  std::error_code error;
  fs::create_directories(folder, error);
  NIB_TRY(write_json_file(folder / "config.json", json));
  NIB_TRY(write_shards(folder, Maker(options, config).make(), options.num_shards));
  return folder;
}

TempFolder::TempFolder() {
  std::string name = (fs::temp_directory_path() / "nib-test-XXXXXX").string();
  NIB_CHECK(::mkdtemp(name.data()) != nullptr, "{}", name);
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace nib
