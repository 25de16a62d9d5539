// What --speculative-config says, with the keys that vLLM users write and a few of our own.
//   NIB_ASSIGN(SpeculativeConfig c, SpeculativeConfig::from_json(object));
//   for (const std::string& w : c.warnings) log.warn(w);
//   NIB_ASSIGN(c.coupling, SpeculativeConfig::parse_coupling("seeded"));     // --speculation-coupling
// A key that would change results and is not there is refused; a key that means nothing here becomes a warning.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace nib {

struct SpeculativeConfig {
  static constexpr int64_t kMaxCopyTokens = 15;  // with the last sampled token: 16 rows a step

  enum class Method { kNone, kDspark, kNgram };
  // Which sampled requests are verified against the token that their own noise draws, instead of by rejection sampling.
  enum class Coupling { kAlways, kSeeded, kNever };

  Method method = Method::kNone;
  std::string model;                   // "model": folder of the drafter; empty: the target's own
  int64_t num_speculative_tokens = 0;  // drafts a step of DSpark; 0: the drafter's block
  bool probabilistic_drafts = false;   // "draft_sample_method": "probabilistic"
  Coupling coupling = Coupling::kSeeded;
  bool adaptive_verification = false;  // "enable_adaptive_verification"
  std::string cost_table_file;         // "verification_cost_table"; empty: measured while serving
  bool copy_drafts = false;            // copying from the sequence's own context, alone or beside DSpark
  int64_t max_copy_tokens = 0;         // drafts a step of copying; 0 without it
  int64_t prompt_lookup_min = 3, prompt_lookup_max = 24;  // tokens that must match before a copy
  std::vector<std::string> warnings;                      // one sentence for each key that has no effect

  bool enabled() const { return method != Method::kNone; }
  int64_t max_drafts() const { return std::max(num_speculative_tokens, max_copy_tokens); }  // of a sequence in a step

  static Result<SpeculativeConfig> from_json(const Json& object);
  static Result<Coupling> parse_coupling(std::string_view text);
};

}  // namespace nib
