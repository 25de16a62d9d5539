#include "model/drafter_config.h"

#include <algorithm>
#include <array>

#include "model/checkpoint.h"
#include "model/json_fields.h"

namespace nib {

namespace {

constexpr int64_t kMaxSize = 1 << 24;  // of any one axis
constexpr const char* kFile = "config.json";

using Object = Result<const Json*>;

// The object under a key, null if there is none.
Object nested(const Json& config, const char* key) {
  if (!config.contains(key) || config[key].is_null()) return nullptr;
  if (!config[key].is_object()) return invalid("{}: {} must be an object", kFile, key);
  return &config[key];
}

void merge(Json& flat, const Json& object) {
  for (const auto& [key, value] : object.items())
    if (!value.is_null()) flat[key] = value;
}

// A drafter's own object made flat: what stands at its top wins over transformer_layer_config, dflash_config over both.
Status add_own(Json& flat, const Json& own) {
  NIB_ASSIGN(const Json* layers, nested(own, "transformer_layer_config"));
  NIB_ASSIGN(const Json* dflash, nested(own, "dflash_config"));
  if (layers) merge(flat, *layers);
  merge(flat, own);
  if (dflash) merge(flat, *dflash);
  return {};
}

// The keys dspark_x of a target's config, as x; two have a name of their own elsewhere.
Json without_prefix(const Json& config) {
  constexpr std::string_view kPrefix = "dspark_";
  Json own = Json::object();
  for (const auto& [key, value] : config.items())
    if (key.starts_with(kPrefix)) own[key.substr(kPrefix.size())] = value;
  if (own.contains("noise_token_id")) own["mask_token_id"] = own["noise_token_id"];
  if (config.contains("num_nextn_predict_layers")) own["num_draft_layers"] = config["num_nextn_predict_layers"];
  return own;
}

// Of the target a drafter takes what it shares with it, and never the geometry of its layers.
Json shared_with_target(const Json& target) {
  Json flat = Json::object();
  for (const char* key : {"hidden_size", "vocab_size", "rms_norm_eps"})
    if (target.contains(key)) flat[key] = target[key];
  return flat;
}

// One flat object of a drafter's own config.json, or of what its target's says of it.
Result<Json> flattened(const Json& config) {
  if (!config.is_object()) return invalid("{}: expected a JSON object", kFile);
  NIB_ASSIGN(const Json* text, nested(config, "text_config"));
  for (const Json* object : {&config, text})
    for (const char* key : {"dspark_config", "mtp_config", "draft_config"}) {
      if (!object) continue;
      NIB_ASSIGN(const Json* own, nested(*object, key));
      if (!own) continue;
      Json flat = shared_with_target(text ? *text : config);
      NIB_TRY(add_own(flat, *own));
      return flat;
    }
  for (const Json* object : {&config, text}) {
    if (!object || !object->contains("dspark_block_size")) continue;
    Json flat = shared_with_target(*object);
    NIB_TRY(add_own(flat, without_prefix(*object)));
    return flat;
  }
  Json flat = Json::object();
  NIB_TRY(add_own(flat, config));
  return flat;
}

// rope_parameters {rope_theta, rope_type}, or rope_theta beside rope_scaling {type}.
double read_rope_theta(Fields& f, const Json& flat) {
  double theta = f.number("rope_theta", 1, 1e12, 10000);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!flat.contains(key)) continue;
    if (!flat[key].is_object()) {
      f.fail(invalid("{}: {} must be an object", kFile, key));
      continue;
    }
    Fields rope(flat[key], fmt::format("{}: {}", kFile, key));
    theta = rope.number("rope_theta", 1, 1e12, theta);
    const std::string type = rope.text("rope_type", rope.text("type", "default"));
    if (type != "default")
      rope.fail(Status(Code::kUnimplemented,
                       fmt::format("{}: {} has the type {}, drafters with default are supported", kFile, key, type)));
    f.fail(rope.status());
  }
  return theta;
}

// Three spellings; the last one says the opposite.
bool read_sample_from_anchor(Fields& f) {
  if (f.has("sample_from_anchor")) return f.boolean("sample_from_anchor", true);
  if (f.has("query_zero_predicts_next")) return f.boolean("query_zero_predicts_next", true);
  return !f.boolean("dspark_bonus_anchor", false);
}

Tap::Kind read_tap_kind(Fields& f, const std::string& kind) {
  constexpr std::array kNames = {"block_sum", "mixture", "output_mixture", "output_normed"};  // in the order of Kind
  const auto found = std::find(kNames.begin(), kNames.end(), kind);
  if (found == kNames.end()) f.fail(invalid("{}: target_tap must hold {}, got \"{}\"", kFile, join(kNames), kind));
  return static_cast<Tap::Kind>(found == kNames.end() ? 0 : found - kNames.begin());
}

// eagle_aux_hidden_state_layer_ids names the layer whose input is tapped: one more. target_tap: one kind for all, or
// one an id.
std::vector<Tap> read_taps(Fields& f, const Json& flat) {
  const bool inputs = !f.has("target_layer_ids") && f.has("eagle_aux_hidden_state_layer_ids");
  const std::vector<int64_t> ids = inputs ? f.integers("eagle_aux_hidden_state_layer_ids", 0, kMaxSize)
                                          : f.integers("target_layer_ids", -1, kMaxSize);
  if (ids.empty()) f.fail(invalid("{}: target_layer_ids is empty, a drafter needs at least one tap", kFile));
  std::vector<std::string> kinds = {"block_sum"};
  if (flat.contains("target_tap"))
    kinds = flat["target_tap"].is_string() ? std::vector{f.text("target_tap", "")} : f.texts("target_tap", {});
  if (kinds.size() == 1) kinds.resize(ids.size(), kinds[0]);
  if (kinds.size() != ids.size()) {
    f.fail(invalid("{}: target_tap has {} kinds for {} taps", kFile, kinds.size(), ids.size()));
    return {};
  }
  std::vector<Tap> taps;
  for (size_t i = 0; i < ids.size(); ++i) taps.push_back({inputs ? ids[i] - 1 : ids[i], read_tap_kind(f, kinds[i])});
  return taps;
}

void read_head(Fields& f, DrafterConfig& c) {
  c.markov_rank = f.integer("markov_rank", 0, kMaxSize, 0);
  const int usual = c.markov_rank > 0 ? 1 : 0;
  c.head = static_cast<DrafterConfig::Head>(f.choice("markov_head_type", {"none", "vanilla", "gated", "rnn"}, usual));
  if (c.head != DrafterConfig::Head::kNone && c.markov_rank == 0)
    f.fail(invalid("{}: markov_rank must be at least 1 for the head that markov_head_type names", kFile));
  if (c.head == DrafterConfig::Head::kNone) c.markov_rank = 0;
  if (f.has("enable_confidence_head")) c.confidence_head = f.boolean("enable_confidence_head", false);
  if (f.has("confidence_head_with_markov")) c.confidence_with_markov = f.boolean("confidence_head_with_markov", true);
}

// What would change the numbers and is not there is refused, not passed over.
void refuse_unsupported(Fields& f) {
  const auto refuse = [&](bool wrong, const char* what) {
    if (wrong) f.fail(Status(Code::kUnimplemented, fmt::format("{}: {} is not supported in a drafter", kFile, what)));
  };
  refuse(f.boolean("is_causal", false) || f.boolean("causal", false), "attention that is causal within the block");
  refuse(f.boolean("use_sliding_window", false), "use_sliding_window");
  refuse(f.boolean("attention_bias", false), "attention_bias");
  refuse(!f.boolean("is_neox_style", true) || !f.boolean("rope_is_neox_style", true), "interleaved rotary pairing");
  for (const std::string& type : f.texts("layer_types", {})) refuse(type != "full_attention", "a sliding-window layer");
  f.choice("hidden_act", {"silu"}, 0);
}

void check_heads(Fields& f, const DrafterConfig& c) {
  if (c.num_heads % c.num_kv_heads != 0)
    f.fail(invalid("{}: num_attention_heads {} is no multiple of num_key_value_heads {}", kFile, c.num_heads,
                   c.num_kv_heads));
  if (c.head_dim % 2 != 0) f.fail(invalid("{}: head_dim {} is odd, rotary positions need pairs", kFile, c.head_dim));
  if (c.mask_token_id >= c.vocab_size)
    f.fail(invalid("{}: mask_token_id {} is outside the vocabulary of {}", kFile, c.mask_token_id, c.vocab_size));
}

}  // namespace

Result<DrafterConfig> DrafterConfig::from_json(const Json& config) {
  NIB_ASSIGN(const Json flat, flattened(config));
  Fields f(flat, kFile);
  DrafterConfig c;
  c.hidden_size = f.integer("hidden_size", 1, kMaxSize);
  c.num_layers = f.integer(f.has_value("num_draft_layers") ? "num_draft_layers" : "num_hidden_layers", 1, 1024);
  c.intermediate_size = f.integer("intermediate_size", 1, kMaxSize);
  c.vocab_size = f.integer("vocab_size", 1, kMaxSize);
  c.num_heads = f.integer("num_attention_heads", 1, 1 << 16);
  c.num_kv_heads = f.integer("num_key_value_heads", 1, 1 << 16, c.num_heads);
  c.head_dim = f.integer("head_dim", 2, 1 << 16, c.hidden_size / c.num_heads);
  c.rms_norm_eps = f.number("rms_norm_eps", 0, 1, 1e-6);
  c.rope_theta = read_rope_theta(f, flat);
  c.sample_from_anchor = read_sample_from_anchor(f);
  c.block_size = f.integer("block_size", c.sample_from_anchor ? 1 : 2, 1024);
  c.mask_token_id = static_cast<int32_t>(f.integer("mask_token_id", 0, kMaxSize));
  c.taps = read_taps(f, flat);
  c.embed_norm = f.boolean("embed_norm", false);
  c.target_hidden_size = f.integer("target_hidden_size", 1, kMaxSize, c.hidden_size);
  c.num_target_layers = f.integer("num_target_layers", 0, kMaxSize, 0);
  c.mup = f.number("logits_mup_width_multiplier", 1e-6, 1e6, 1);
  read_head(f, c);
  refuse_unsupported(f);
  check_heads(f, c);
  NIB_TRY(f.status());
  return c;
}

Status check_target(const DrafterConfig& drafter, const ModelConfig& target) {
  if (drafter.target_hidden_size != target.hidden_size)
    return invalid("the drafter was made for a target of hidden size {}, this one's is {}", drafter.target_hidden_size,
                   target.hidden_size);
  if (drafter.vocab_size < target.unpadded_vocab_size || drafter.vocab_size > target.vocab_size)
    return invalid("the drafter was made for a vocabulary of {}, the target's is {} (padded to {})", drafter.vocab_size,
                   target.unpadded_vocab_size, target.vocab_size);
  if (drafter.num_target_layers != 0 && drafter.num_target_layers != target.num_layers())
    return invalid("the drafter was made for a target of {} layers, this one has {}", drafter.num_target_layers,
                   target.num_layers());
  return resolve_taps(drafter.taps, target.num_layers()).status();
}

Result<DrafterConfig> DrafterConfig::load(const std::filesystem::path& folder) {
  std::error_code error;
  const bool own = std::filesystem::exists(folder / "dspark_config.json", error);
  NIB_ASSIGN(const Json json, read_json_file(folder / (own ? "dspark_config.json" : kFile)));
  return from_json(json);
}

}  // namespace nib
