// The routed experts of one layer: gate/up projection, activation times routing weight, down projection, sum.
//   ops::experts(cx, y, x, ids, weights, w);
#pragma once

#include <optional>
#include <span>

#include "compute/ops/gemm.h"

namespace nib {

// How gate g and up u become one activation.
//   kSwiglu: silu(g) * u
//   kSitu:   beta * tanh(g / beta) * sigmoid(g) * linear_beta * tanh(u / linear_beta); 0 leaves that cap off
struct Activation {
  enum class Kind { kSwiglu, kSitu } kind = Kind::kSwiglu;
  float beta = 0, linear_beta = 0;
};
float activate(const Activation& a, float gate, float up);

// Stacked weights of all experts of a layer; w13 rows alternate gate, up: [g0, u0, g1, u1, ...].
struct ExpertWeights {
  std::span<const Weight> w13;  // experts x [2 * width, hidden]
  std::span<const Weight> w2;   // experts x [hidden, width]
  Activation activation;
  // true (Inkling 2): weight * act is rounded once, then goes through w2. false (first generation): act is rounded,
  // w2's output is rounded, the weight multiplies it in the sum.
  bool weight_before_w2 = true;
};

namespace ops {

// y[t, :] = round( sum over j in router order of  w2[e] . act(w13[e] . x[t]) ),  e = ids(t, j), see ExpertWeights
// x, y: [tokens, hidden]   ids: [tokens, top_k] (I32)   weights: [tokens, top_k] (F32)
// accumulate: y's old value (rounded T) is the first term of the sum; else the sum starts at 0. Sum over j in FP32, one
// rounding. A row stands alone: rows are grouped by expert for speed, but every sum keeps router order.
template <class T>
void experts(Context& cx, View<T, 2> y, View<const T, 2> x, View<const int32_t, 2> ids, View<const float, 2> weights,
             const ExpertWeights& w, bool accumulate = false);

struct ExpertsShape {
  int64_t tokens = 0, top_k = 0, hidden = 0, width = 0, num_experts = 0;
  int64_t element_bytes = 4;  // of an activation
};
// Workspace that experts() takes at most.
int64_t experts_workspace_bytes(const ExpertsShape& shape, int64_t num_threads);

// y[t, i] = round( weight[t] * act(h[t, 2i], h[t, 2i+1]) )      h: [tokens, 2 * width]  y: [tokens, width]
// weight: [tokens] or empty (1).
template <class T>
void activation(Context& cx, View<T, 2> y, View<const T, 2> h, View<const float, 1> weight, const Activation& a);

}  // namespace ops
}  // namespace nib
