// Block attention residuals: each sublayer reads its own softmax mixture over the finished depth blocks and the current
// state.
//   ops::depth_mix_norm(cx, {&xq, 1}, sources, queries, gains, params);
#pragma once

#include <span>

#include "compute/tensor/context.h"
#include "compute/tensor/view.h"

namespace nib {

struct DepthMixParams {
  float logit_scale = 1.0f;
  float source_eps = 1e-6f;  // eps of rms0 of the sources
  float norm_eps = 1e-6f;    // eps of the norm of the mixture
};

namespace ops {

// For each output m:  s_j = logit_scale * query_m . rms0(v_j[t]);  a = softmax_j(s);  h = sum_j a_j v_j[t];
//                     y_m[t] = round( h * rsqrt(mean(h^2) + eps) * gain_m )                  all FP32, one rounding
// outputs: up to 3 of [tokens, hidden]   sources: up to 16 of [tokens, hidden]   queries (F32), gains: [hidden] each
// An empty query asks for the only source unmixed, an empty gain for h itself without its norm. Formula: Inkling 2,
// section 2.2.
template <class T>
void depth_mix_norm(Context& cx, std::span<const View<T, 2>> outputs, std::span<const View<const T, 2>> sources,
                    std::span<const View<const float, 1>> queries, std::span<const View<const T, 1>> gains,
                    const DepthMixParams& p);

// Workspace that depth_mix_norm takes at most.
int64_t depth_mix_workspace_bytes(int64_t hidden, int64_t num_threads);

}  // namespace ops
}  // namespace nib
