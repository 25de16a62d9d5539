// Chooses the experts of each token and their weights.
//   ops::router(cx, ids, weights, shared, logits, RouterParams{...});
#pragma once

#include "compute/tensor/context.h"
#include "compute/tensor/view.h"

namespace nib {

struct RouterParams {
  View<const float, 1> bias;  // [experts], added to the scores for the choice only
  float scale = 1.0f;         // route_scale * global_scale
  bool softmax = false;       // scores: softmax over all experts; else sigmoid of each
  bool normalise = true;      // over the chosen (and the shared) experts
};

namespace ops {

// z = logits[t, :];  chosen: top_k of score(z_i) + bias_i over the routed experts, strongest first, ties to the lowest
// id weight_j = score_j / sum over chosen and shared of score * scale                          all FP32 logits:
// [tokens, experts + shared]   ids, weights: [tokens, top_k]   shared_weights: [tokens, shared] or empty
void router(Context& cx, View<int32_t, 2> ids, View<float, 2> weights, View<float, 2> shared_weights,
            View<const float, 2> logits, const RouterParams& p);

}  // namespace ops
}  // namespace nib
