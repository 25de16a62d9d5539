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
};

// d: hidden size, r: markov rank, w: state width (r but for recurrent heads, whose own rows decide), V: valid ids
template <class T>
struct DrafterWeights {
  struct Layer {
    View<const T, 1> input_norm, post_attention_norm;  // [d]
    Weight q, k, v, o;
    View<const T, 1> q_norm, k_norm;  // [head_dim]
    Weight w13, w2;                   // [2 * ffn, d] rows alternate gate and up, [d, ffn]
  };
  Weight fc;                             // [d, taps * width of the target]
  View<const T, 1> hidden_norm, norm;    // [d]
  Weight embed, unembed;                 // [vocab, d], [V, d]
  View<const T, 1> mask_embedding;       // [d], or empty: the row of mask_token_id
  float mup = 1;                         // divisor of the base logits
  Weight markov_w1, markov_w2;           // [vocab, r], [V, w]; empty without a head
  Weight mixer;                          // rnn: joint_proj [3w, w+r+d]; gated: gate_proj [r, d+r]; else empty
  View<const float, 1> mixer_bias;       // [mixer rows] or empty
  Weight confidence;                     // [1, d+r] or [1, d]; empty: no confidence head
  View<const float, 1> confidence_bias;  // [1] or empty
  std::vector<Layer> layers;
  std::shared_ptr<const void> owner;

  int64_t vocab() const { return unembed.out; }
};

// Prefixes tried in order: model.mtp., mtp., model.dspark., dspark., model., none. Refuses, by name, a tensor that is
// missing, has another shape or dtype than the config says, or that nothing reads. `shared` may be null for a drafter
// that brings embed_tokens and lm_head.
template <class T>
Result<DrafterWeights<T>> load_drafter_weights(const DrafterConfig& config, Checkpoint checkpoint,
                                               const SharedTables* shared);

}  // namespace nib
