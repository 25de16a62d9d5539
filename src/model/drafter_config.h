// The constants of a DSpark drafter, read from its own config.json or from its own place in the target's.
//   NIB_ASSIGN(DrafterConfig c, DrafterConfig::load(folder));
//   c.max_draft_tokens();                       // 7
//   NIB_TRY(c.check_draft_length(num_speculative_tokens));
//   NIB_TRY(check_target(c, model_config));
// Placements read, the first that is there: an object "dspark_config", "mtp_config" or "draft_config" in the target's
// config.json (or in its text_config); keys "dspark_..." there; all keys at the top. In each of them some may stand in
// "dflash_config" (which wins) or "transformer_layer_config". From the target come hidden_size, vocab_size and
// rms_norm_eps if the drafter does not say them, never heads or widths of layers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "model/config.h"
#include "model/taps.h"

namespace nib {

struct DrafterConfig {
  int64_t hidden_size = 0, num_layers = 0, intermediate_size = 0, vocab_size = 0;
  int64_t target_hidden_size = 0, num_target_layers = 0;  // of the target it was made for; 0 layers: not said
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  double rms_norm_eps = 1e-6, rope_theta = 10000;
  int64_t block_size = 0;          // slots of the trained block, the anchor's included
  int32_t mask_token_id = 0;       // the id in every slot behind the anchor
  std::vector<Tap> taps;           // of target_layer_ids and target_tap
  bool sample_from_anchor = true;  // slot 0 predicts too; false: 1 + K, a mask predicts its own position
  enum class Head { kNone, kVanilla, kGated, kRnn } head = Head::kNone;
  int64_t markov_rank = 0;  // width of a previous token's embedding
  // nullopt: the file decides.
  std::optional<bool> confidence_head, confidence_with_markov;
  bool embed_norm = false;  // rows of the embedding enter through the target's norm of it, else raw
  double mup = 1;           // divisor of the logits of the drafter's own output head

  int64_t num_taps() const { return static_cast<int64_t>(taps.size()); }
  int64_t max_draft_tokens() const { return sample_from_anchor ? block_size : block_size - 1; }
  // Fewer than trained is fine: the whole block runs and the first ones are kept.
  Status check_draft_length(int64_t num_tokens) const {
    if (1 <= num_tokens && num_tokens <= max_draft_tokens()) return {};
    return invalid("num_speculative_tokens must be from 1 to {}, the drafter's trained block, got {}",
                   max_draft_tokens(), num_tokens);
  }

  static Result<DrafterConfig> from_json(const Json& config);
  // The folder's dspark_config.json, a drafter's own beside the target's config.json; else its config.json.
  static Result<DrafterConfig> load(const std::filesystem::path& folder);
  bool operator==(const DrafterConfig&) const = default;
};

// A drafter made for another target (width, vocabulary, a tap beyond its layers) is refused with a sentence.
Status check_target(const DrafterConfig& drafter, const ModelConfig& target);

}  // namespace nib
