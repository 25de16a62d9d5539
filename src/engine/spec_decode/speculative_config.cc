#include "engine/spec_decode/speculative_config.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "model/json_fields.h"

namespace nib {

namespace {

constexpr const char* kFlag = "--speculative-config";
constexpr int64_t kMaxBlock = 1024;        // of any drafter; the one that is loaded says more
constexpr int64_t kMaxLookup = 64;         // tokens
constexpr int64_t kMaxLength = 1ll << 40;  // of a draft context

// What becomes of a key.
enum class Use {
  kRead,     // has a meaning here
  kIgnored,  // cannot change results: a warning
  kRefused,  // would change results and is not there; null, false and [] are fine
};
enum class Kind { kText, kBoolean, kInteger, kAny };

struct Key {
  std::string_view name;
  Use use = Use::kRead;
  Kind kind = Kind::kAny;
  const char* why = "";  // of a warning or of a refusal
};

constexpr Key kKeys[] = {
    {"method"},
    {"model"},
    {"num_speculative_tokens"},
    {"draft_sample_method"},
    {"rejection_sample_method"},
    {"enable_adaptive_verification"},
    {"prompt_lookup_min"},
    {"prompt_lookup_max"},
    {"kv_cache_dtype"},
    {"draft_tensor_parallel_size"},
    {"verification_cost_table"},
    {"copy_drafts"},
    {"max_copy_tokens"},
    {"attention_backend", Use::kIgnored, Kind::kText, "there is one attention"},
    {"moe_backend", Use::kIgnored, Kind::kText, "drafters have no experts"},
    {"enforce_eager", Use::kIgnored, Kind::kBoolean, "there are no graphs to capture"},
    {"max_model_len", Use::kIgnored, Kind::kInteger, "a draft context is as long as its sequence"},
    {"use_local_argmax_reduction", Use::kIgnored, Kind::kBoolean, "there is one rank"},
    {"parallel_drafting", Use::kIgnored, Kind::kBoolean, "DSpark always drafts a block at once"},
    {"disable_eagle_block_drop", Use::kIgnored, Kind::kBoolean, "no block is dropped"},
    {"quantization", Use::kRefused, Kind::kAny, "drafters run in the format of their files"},
    {"revision", Use::kRefused, Kind::kAny, "name the folder of that revision as \"model\" instead"},
    {"dspark_draft_topk", Use::kRefused, Kind::kAny, "drafts are drawn from the whole vocabulary"},
    {"num_speculative_tokens_per_batch_size", Use::kRefused, Kind::kAny,
     "\"enable_adaptive_verification\" chooses the number of drafts by load"},
    {"synthetic_acceptance_rates", Use::kRefused, Kind::kAny, "acceptance is never made up"},
    {"synthetic_acceptance_length", Use::kRefused, Kind::kAny, "acceptance is never made up"},
};

constexpr std::string_view kOtherMethods[] = {"eagle",  "eagle3",      "dflash",        "suffix",
                                              "medusa", "draft_model", "mlp_speculator"};

int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<int64_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int64_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

Status unknown_key(const std::string& key) {
  const Key& nearest = *std::ranges::min_element(kKeys, {}, [&](const Key& k) { return edit_distance(key, k.name); });
  return invalid("{}: unknown key \"{}\", the nearest known one is \"{}\"", kFlag, key, nearest.name);
}

bool says_nothing(const Json& v) { return v.is_null() || v == false || (v.is_array() && v.empty()); }

void check_type(Fields& f, const Key& key) {
  const std::string name(key.name);
  if (key.kind == Kind::kText) f.text(name, "");
  if (key.kind == Kind::kBoolean) f.boolean(name, false);
  if (key.kind == Kind::kInteger) f.integer(name, 1, kMaxLength, 1);
}

// Every key is known; the refused ones say nothing; the others that are not read become warnings.
void check_keys(Fields& f, const Json& object, std::vector<std::string>& warnings) {
  for (const auto& [name, value] : object.items()) {
    const Key* key = std::ranges::find(kKeys, name, &Key::name);
    if (key == std::end(kKeys)) return f.fail(unknown_key(name));
    if (key->use == Use::kRefused && !says_nothing(value))
      f.fail(Status(Code::kUnimplemented, fmt::format("{}: \"{}\" is not supported: {}", kFlag, name, key->why)));
    if (key->use != Use::kIgnored) continue;
    check_type(f, *key);
    if (!says_nothing(value)) warnings.push_back(fmt::format("{}: \"{}\" has no effect: {}", kFlag, name, key->why));
  }
}

// "ngram" may also stand as the model, as vLLM allows.
SpeculativeConfig::Method read_method(Fields& f) {
  using enum SpeculativeConfig::Method;
  const std::string model = f.text("model", "");
  const std::string method = f.text("method", model == "ngram" || model == "[ngram]" ? "ngram" : "");
  if (method == "dspark") return kDspark;
  if (method == "ngram") return kNgram;
  if (method.empty())
    f.fail(invalid("{}: \"method\" is missing, give dspark (a trained drafter) or ngram (copying)", kFlag));
  else if (method == "mtp" || method.ends_with("_mtp"))
    f.fail(Status(Code::kUnimplemented,
                  fmt::format("{}: method {} is not supported: layers that predict further tokens are not run as "
                              "drafters; give \"method\": \"dspark\" with a DSpark drafter",
                              kFlag, method)));
  else if (std::ranges::count(kOtherMethods, method))
    f.fail(Status(Code::kUnimplemented,
                  fmt::format("{}: method {} is not supported, give dspark or ngram", kFlag, method)));
  else
    f.fail(invalid("{}: unknown method \"{}\", give dspark or ngram", kFlag, method));
  return kNone;
}

void read_dspark(Fields& f, SpeculativeConfig& c) {
  c.model = f.text("model", "");
  c.num_speculative_tokens = f.integer("num_speculative_tokens", 1, kMaxBlock, 0);
  c.copy_drafts = f.boolean("copy_drafts", true);
  const int64_t most =
      f.integer("max_copy_tokens", 1, SpeculativeConfig::kMaxCopyTokens, SpeculativeConfig::kMaxCopyTokens);
  c.max_copy_tokens = c.copy_drafts ? most : 0;
}

void read_ngram(Fields& f, SpeculativeConfig& c) {
  c.copy_drafts = true;
  c.max_copy_tokens =
      f.integer("num_speculative_tokens", 1, SpeculativeConfig::kMaxCopyTokens, SpeculativeConfig::kMaxCopyTokens);
  if (!f.boolean("copy_drafts", true)) f.fail(invalid("{}: \"copy_drafts\" is what method ngram does", kFlag));
  if (f.has_value("max_copy_tokens"))
    f.fail(invalid("{}: give \"num_speculative_tokens\" instead of \"max_copy_tokens\" with method ngram", kFlag));
  const std::string model = f.text("model", "ngram");
  if (model != "ngram" && model != "[ngram]")
    f.fail(invalid("{}: method ngram has no model, leave \"model\" out", kFlag));
  if (c.probabilistic_drafts)
    c.warnings.push_back(fmt::format("{}: \"draft_sample_method\" has no effect: a copy is no draw", kFlag));
}

// One bound alone stands for both, as in vLLM.
void read_lookup(Fields& f, SpeculativeConfig& c) {
  const bool has_min = f.has_value("prompt_lookup_min"), has_max = f.has_value("prompt_lookup_max");
  const int64_t least = f.integer("prompt_lookup_min", 1, kMaxLookup, c.prompt_lookup_min);
  const int64_t most = f.integer("prompt_lookup_max", 1, kMaxLookup, c.prompt_lookup_max);
  c.prompt_lookup_min = has_min || !has_max ? least : most;
  c.prompt_lookup_max = has_max || !has_min ? most : least;
  if (c.prompt_lookup_min > c.prompt_lookup_max)
    f.fail(invalid("{}: prompt_lookup_min {} is greater than prompt_lookup_max {}", kFlag, c.prompt_lookup_min,
                   c.prompt_lookup_max));
}

// Values of keys that are read, but of which one value only is there.
void check_single_values(Fields& f) {
  const std::string rejection = f.text("rejection_sample_method", "standard");
  if (rejection == "block" || rejection == "synthetic")
    f.fail(Status(Code::kUnimplemented,
                  fmt::format("{}: rejection_sample_method {} is not supported, give standard", kFlag, rejection)));
  f.choice("rejection_sample_method", {"standard"}, 0);
  f.choice("kv_cache_dtype", {"auto", "bfloat16"}, 0);
  if (const int64_t ranks = f.integer("draft_tensor_parallel_size", 1, kMaxBlock, 1); ranks > 1)
    f.fail(invalid("{}: draft_tensor_parallel_size must be 1, there is one rank, got {}", kFlag, ranks));
}

}  // namespace

Result<SpeculativeConfig> SpeculativeConfig::from_json(const Json& object) {
  if (!object.is_object()) return invalid("{}: a JSON object is expected, got {}", kFlag, object.type_name());
  Fields f(object, kFlag);
  SpeculativeConfig c;
  check_keys(f, object, c.warnings);
  c.method = read_method(f);
  c.probabilistic_drafts = f.choice("draft_sample_method", {"greedy", "probabilistic"}, 0) == 1;
  if (c.method == Method::kDspark) read_dspark(f, c);
  if (c.method == Method::kNgram) read_ngram(f, c);
  c.adaptive_verification = f.boolean("enable_adaptive_verification", false);
  c.cost_table_file = f.text("verification_cost_table", "");
  read_lookup(f, c);
  check_single_values(f);
  if (!f.status().ok()) return f.status();
  return c;
}

Result<SpeculativeConfig::Coupling> SpeculativeConfig::parse_coupling(std::string_view text) {
  if (text == "always") return Coupling::kAlways;
  if (text == "seeded") return Coupling::kSeeded;
  if (text == "never") return Coupling::kNever;
  return invalid("--speculation-coupling: always, seeded or never is expected, got \"{}\"", text);
}

}  // namespace nib
