#include "model/generation_config.h"

#include "model/checkpoint.h"
#include "model/json_fields.h"

namespace nib {

namespace {

constexpr const char* kFile = "generation_config.json";

std::optional<double> number(Fields& f, const char* key, double least, double most) {
  if (!f.has_value(key)) return std::nullopt;
  return f.number(key, least, most);
}

std::optional<int64_t> integer(Fields& f, const char* key, int64_t least, int64_t most) {
  if (!f.has_value(key)) return std::nullopt;
  return f.integer(key, least, most);
}

}  // namespace

Result<GenerationDefaults> GenerationDefaults::from_json(const Json& config) {
  if (!config.is_object()) return invalid("{}: is not a JSON object", kFile);
  Fields f(config, kFile);
  GenerationDefaults d;
  d.temperature = number(f, "temperature", 0, 100);
  d.top_p = number(f, "top_p", 1e-9, 1);
  d.top_k = integer(f, "top_k", -1, INT32_MAX);
  d.min_p = number(f, "min_p", 0, 1);
  d.repetition_penalty = number(f, "repetition_penalty", 1e-9, 100);
  d.max_new_tokens = integer(f, "max_new_tokens", 1, INT32_MAX);
  if (f.has_value("eos_token_id"))
    for (int64_t id : f.integer_or_list("eos_token_id", 0, INT32_MAX))
      d.eos_token_ids.push_back(static_cast<int32_t>(id));
  NIB_TRY(f.status());
  return d;
}

Result<GenerationDefaults> GenerationDefaults::load(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::exists(folder / kFile, error)) return GenerationDefaults{};
  NIB_ASSIGN(const Json json, read_json_file(folder / kFile));
  return from_json(json);
}

}  // namespace nib
