// The tensors of a DSpark drafter, found under any of the published spellings and checked.
//   NIB_ASSIGN(DrafterWeights<float> w, load_drafter_weights<float>(config, std::move(checkpoint), nullptr));
//   w.layers[0].q;   w.fc;
#pragma once

#include <memory>
#include <vector>

#include "compute/ops/gemm.h"
#include "model/checkpoint.h"
#include "model/drafter_config.h"

namespace nib {

// What a drafter without tables of its own borrows from its target. Must outlive the drafter.
struct SharedTables {
  Weight embed;    // [vocab, d]
  Weight unembed;  // [valid ids, d]
  float mup = 1;   // divisor of the logits
  // The norm of the target's embedding [1, d] and its epsilon, for drafters that were trained on normed rows.
  Weight embed_norm;
  float embed_norm_eps = 1e-6f;
};

// d: hidden size, r: markov rank, w: state width (r but for recurrent heads, whose own rows decide), V: valid ids
template <class T>
struct DrafterWeights {
  struct Layer {
    View<const T, 1> input_norm, post_attention_norm;  // [d]
    Weight qkv;                                        // [(heads + 2 kv_heads) * head_dim, d]: q, k, v
    Weight o;                                          // [d, heads * head_dim]
    View<const T, 1> q_norm, k_norm;                   // [head_dim]
    Weight w13, w2;                                    // [2 * ffn, d] rows alternate gate and up, [d, ffn]
  };
  Weight fc;                           // [d, taps * width of the target]
  View<const T, 1> hidden_norm, norm;  // [d]
  Weight embed, unembed;               // [vocab, d], [V, d]
  View<const T, 1> embed_norm;         // [d], or empty: raw rows enter
  float embed_norm_eps = 0;
  View<const T, 1> mask;        // [d]: a row before embed_norm
  float mup = 1;                // divisor of the base logits
  Weight markov_w1, markov_w2;  // [vocab, r], [V, w]; empty without a head
  // The mixer, cut by what it reads; empty for vanilla heads. rnn: rows g, c, o of joint_proj; gated: gate_proj.
  Weight mix_hidden;  // [3w, d]      or [r, d]
  Weight mix_token;   // [3w, w + r]  or [r, r]: state and previous token, or the latter alone
  bool recurrent = false;
  View<const float, 1> mix_bias;         // [3w] or [r], or empty
  View<const float, 1> confidence;       // [d + r] or [d]; empty: no confidence head
  View<const float, 1> confidence_bias;  // [1] or empty
  std::vector<Layer> layers;
  std::shared_ptr<const void> owner;

  int64_t vocab() const { return unembed.out; }
  int64_t state_width() const { return recurrent ? mix_token.out / 3 : 0; }
};

// The drafter's file in its own folder or in its target's: mtp.safetensors, else mtp-0000N-of-0000M.safetensors, else
// the folder's checkpoint.
Result<Checkpoint> open_drafter_checkpoint(const std::filesystem::path& folder);

// Prefixes tried in order: model.mtp., mtp., model.dspark., dspark., model., none. Refuses, by name, a tensor that is
// missing, has another shape or dtype than the config says, or that nothing reads. `shared` may be null for a drafter
// that brings embed_tokens and lm_head.
template <class T>
Result<DrafterWeights<T>> load_drafter_weights(const DrafterConfig& config, Checkpoint checkpoint,
                                               const SharedTables* shared);

}  // namespace nib
