// The text network's constants, read from config.json of either generation and checked once.
//   Result<ModelConfig> c = ModelConfig::from_json(json);   // or ::load(folder)
//   c->layers[5].full;
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "compute/ops/experts.h"

namespace nib {

enum class Generation { kInkling, kInkling2 };

// Constants of one layer's attention; kept per layer because the first generation has other heads in sliding layers.
struct LayerConfig {
  bool full = false;   // full attention; else a sliding window
  bool dense = false;  // first generation: dense MLP instead of experts
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t window = 0;  // tokens, the current one included; 0 in full layers
  int64_t extent = 0;  // distances with a learned bias; 0 = from the table's width (Inkling 2 full layers)
};

struct ModelConfig {
  Generation generation = Generation::kInkling2;
  std::string architecture;         // as spelled in the file
  int64_t hidden_size = 0;          // H
  int64_t vocab_size = 0;           // rows of embed and unembed
  int64_t unpadded_vocab_size = 0;  // valid logits
  int64_t max_position = 0;         // model_max_length
  int64_t d_rel = 0;
  int64_t conv_width = 4;  // W
  int64_t num_experts = 0, top_k = 0, expert_width = 0, num_shared_experts = 0, dense_width = 0;
  double rms_norm_eps = 1e-6;
  double route_scale = 1;
  double tau_floor = 0, tau_alpha = 0;  // floor 0: tau is 1
  double mup = 1;                       // logits divisor
  double soft_cap = 0;                  // 0: none
  std::vector<LayerConfig> layers;
  std::vector<int32_t> eos_token_ids;  // of config.json, may be empty
  std::vector<std::string>
      placeholders;  // keys given as {"value": x, "placeholder": true}: not public; serve refuses them

  // Inkling 2 only; every open choice of the specification with its default.
  int64_t layers_per_block = 0;                 // n_layers_per_attnres_block
  double q_clip = 0, k_clip = 0, rel_clip = 0;  // 0: no clip
  Activation activation;
  bool value_norm = true;
  double attn_res_eps = 1e-6, depth_logit_scale = 1;
  bool gate_softmax = false, norm_after_topk = true;
  enum class Source { kQ, kK, kV };  // which of the three attention inputs is read
  enum class GateAct { kSigmoid, kSilu, kTanh, kNone } attn_gate_act = GateAct::kSigmoid;
  Source attn_gate_input = Source::kQ, sink_input = Source::kQ, rel_input = Source::kQ;
  enum class Sink { kLinear, kRelTable, kNone } sink_source = Sink::kLinear;
  bool sink_tau = false, tau_on_q = true, tau_on_profile = true;
  bool rel_clamp = false;  // rel_beyond_extent
  std::vector<std::string> qkvr_order = {"q", "k", "v", "r", "gate", "sink"};
  enum class TapInput { kOwn, kQ, kRaw } tap_input = TapInput::kOwn;
  GateAct tap_act = GateAct::kNone;
  bool tap_static = false, tap_skip = true;
  bool conv_first = true;

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }

  static Result<ModelConfig> from_json(const Json& config);
  static Result<ModelConfig> load(const std::filesystem::path& folder_or_file);
};

}  // namespace nib
