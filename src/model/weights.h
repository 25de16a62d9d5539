// The weights of a network as its forward pass reads them: matrices in place in the mapped checkpoint, small vectors in
// the activation type.
//   Result<Inkling2Weights<bf16>> w = load_inkling2<bf16>(config, std::move(checkpoint));
//   w->layers[3].q;
// Views and Weights point into memory that `owner` keeps alive. An absent part is an empty view.
#pragma once

#include <memory>
#include <vector>

#include "compute/ops/experts.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/view.h"
#include "model/checkpoint.h"
#include "model/config.h"

namespace nib {

// Inkling 2; names and shapes: the table of tensor_table.h.
template <class T>
struct Inkling2Weights {
  struct Layer {
    std::vector<View<const float, 1>> queries;  // depth queries Q, K, V (3) or one; none in layer 0      [hidden] each
    std::vector<View<const T, 1>> norms;        // input norms, 3 in full layers, else 1                  [hidden] each
    Weight q, k, v, r;       // [heads * head_dim, H], [kv_heads * head_dim, H] twice, [heads * d_rel, H]
    Weight gate;             // [heads * head_dim, H], [heads, H] or empty
    Weight sink;             // [heads, H] or empty
    Weight o;                // [H, heads * head_dim]
    View<const T, 2> table;  // [d_rel, extent (+1 with rel_table sinks)]
    View<const T, 1> q_scale, k_scale, r_scale;  // learned clip scales, or empty
    View<const T, 2> k_taps, v_taps;             // static taps [kv_heads * head_dim, W], or empty
    Weight k_tap_proj, v_tap_proj;               // generators [kv_heads * W, H], full layers
    View<const T, 2> attn_taps, mlp_taps;        // [H, W]
    View<const float, 1> mlp_query;              // [H]
    View<const T, 1> mlp_norm;                   // [H]
    Weight router;                               // [experts, H]
    View<const float, 1> router_bias;            // [experts]
    float router_global_scale = 1.0f;
    std::vector<Weight> w13, w2;  // one per expert
  };
  Weight embed, unembed;              // [vocab, H]; unembed is cut to unpadded_vocab_size rows
  View<const T, 1> embed_norm, norm;  // [H]
  View<const float, 1> output_query;  // [H]
  std::vector<Layer> layers;
  std::shared_ptr<const void> owner;
};

// First generation.
template <class T>
struct InklingWeights {
  struct Layer {
    View<const T, 1> attn_norm, mlp_norm;  // [H]
    Weight q, k, v, r, o;
    View<const T, 1> q_norm, k_norm;                       // [head_dim]
    View<const T, 2> table;                                // [d_rel, extent]
    View<const T, 2> k_taps, v_taps, attn_taps, mlp_taps;  // [channels, W]
    Weight dense_w13, dense_w2;  // dense layers: [2 * dense_width, H] interleaved, [H, dense_width]
    float dense_global_scale = 1.0f;
    Weight router;                     // [experts + shared, H]
    View<const float, 1> router_bias;  // [experts]
    float router_global_scale = 1.0f;
    std::vector<Weight> w13, w2;                // routed experts
    std::vector<Weight> shared_w13, shared_w2;  // shared experts
  };
  Weight embed, unembed;
  View<const T, 1> embed_norm, norm;
  std::vector<Layer> layers;
  std::shared_ptr<const void> owner;
};

// Fails with a sentence that names the tensor and what was expected: missing, misshapen, wrong dtype, companion without
// base, a tensor under model.llm. that nothing reads, a NaN or negative E4M3 scale, an E8M0 NaN (scales are scanned
// when `check_scales`).
template <class T>
Result<Inkling2Weights<T>> load_inkling2(const ModelConfig& config, Checkpoint checkpoint, bool check_scales);
template <class T>
Result<InklingWeights<T>> load_inkling(const ModelConfig& config, Checkpoint checkpoint, bool check_scales);

}  // namespace nib
