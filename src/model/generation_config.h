// Sampling defaults that a checkpoint ships in generation_config.json.
//   Result<GenerationDefaults> d = GenerationDefaults::load(folder);   // no file: no defaults
//   d->temperature.value_or(1.0);
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace nib {

// An absent or null key is no value: the server's own default holds.
struct GenerationDefaults {
  std::optional<double> temperature;         // >= 0
  std::optional<double> top_p;               // (0, 1]
  std::optional<int64_t> top_k;              // 0 or -1: all
  std::optional<double> min_p;               // [0, 1]
  std::optional<double> repetition_penalty;  // > 0
  std::optional<int64_t> max_new_tokens;     // >= 1
  std::vector<int32_t> eos_token_ids;

  static Result<GenerationDefaults> from_json(const Json& config);
  static Result<GenerationDefaults> load(const std::filesystem::path& folder);
};

}  // namespace nib
