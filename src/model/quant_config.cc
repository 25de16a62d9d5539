#include "model/quant_config.h"

#include <algorithm>

namespace nib {

namespace fs = std::filesystem;

namespace {

std::string text(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

WeightFormat format_of(const std::string& algo) {
  return algo == "NVFP4" ? WeightFormat::kNvfp4 : algo == "MXFP8" ? WeightFormat::kMxfp8 : WeightFormat::kBF16;
}

void read_object(const Json& object, DeclaredPrecision& d) {
  if (const std::string algo = text(object, "quant_algo"); !algo.empty()) d.default_algo = algo;
  for (const char* key : {"exclude_modules", "ignore"})
    if (object.contains(key) && object[key].is_array())
      for (const Json& module : object[key])
        if (module.is_string()) d.excluded.push_back(module.get<std::string>());
  if (!object.contains("quantized_layers") || !object["quantized_layers"].is_object()) return;
  for (const auto& [module, settings] : object["quantized_layers"].items()) {
    if (!settings.is_object()) continue;
    d.modules[module] = text(settings, "quant_algo");
  }
}

// An excluded name covers what stands below it: "layers.5.attn" covers "layers.5.attn.wq_du", not "layers.5.attn_norm".
bool covers(const std::string& excluded, const std::string& module) {
  return module == excluded || (module.starts_with(excluded) && module[excluded.size()] == '.');
}

}  // namespace

std::string_view name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "F32";
    case WeightFormat::kBF16:
      return "BF16";
    case WeightFormat::kNvfp4:
      return "NVFP4";
    case WeightFormat::kMxfp8:
      return "MXFP8";
  }
  NIB_CHECK(false, "format {}", static_cast<int>(format));
}

WeightFormat DeclaredPrecision::experts_format(int64_t layer) const {
  for (const char* prefix : {"model.llm", "model.language_model", "model"}) {
    const std::string module = fmt::format("{}.layers.{}.mlp.experts", prefix, layer);
    if (const auto it = modules.find(module); it != modules.end()) return format_of(it->second);
    if (std::any_of(excluded.begin(), excluded.end(), [&](const std::string& e) { return covers(e, module); }))
      return WeightFormat::kBF16;
  }
  return format_of(default_algo);
}

DeclaredPrecision DeclaredPrecision::from_json(const Json& config) {
  DeclaredPrecision d;
  if (!config.is_object()) return d;
  read_object(config, d);
  for (const char* key : {"quantization", "quantization_config"})
    if (config.contains(key) && config[key].is_object()) read_object(config[key], d);
  return d;
}

Result<DeclaredPrecision> DeclaredPrecision::load(const fs::path& folder_or_file) {
  std::error_code error;
  if (!fs::is_directory(folder_or_file, error)) {
    NIB_ASSIGN(const Json json, read_json_file(folder_or_file));
    return from_json(json);
  }
  const fs::path sidecar = folder_or_file / "hf_quant_config.json";
  NIB_ASSIGN(const Json json, read_json_file(fs::exists(sidecar, error) ? sidecar : folder_or_file / "config.json"));
  return from_json(json);
}

std::vector<std::string> cross_check(const DeclaredPrecision& declared, const Binding& binding) {
  std::vector<std::string> warnings;
  if (declared.default_algo.empty()) return warnings;
  int64_t differing = 0;
  std::string first;
  for (const auto& [key, b] : binding.tensors) {
    if (!b.spec.packable || b.format == WeightFormat::kF32) continue;
    const WeightFormat said = declared.experts_format(b.spec.layer);
    if (said == b.format) continue;
    if (differing++ == 0) first = fmt::format("{} is {} but declared {}", b.info->name, name(b.format), name(said));
  }
  if (differing)
    warnings.push_back(
        fmt::format("{} expert tensors differ from the declared precision (the first: {}); the tensors "
                    "decide",
                    differing, first));
  return warnings;
}

}  // namespace nib
