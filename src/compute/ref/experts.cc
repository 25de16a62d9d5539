#include <cmath>

#include "compute/ref/ref.h"

namespace nib {

float activate(const Activation& a, float gate, float up) {
  const float sigmoid = 1.0f / (1.0f + std::exp(-gate));
  if (a.kind == Activation::Kind::kSwiglu) return gate * sigmoid * up;
  const float g = a.beta > 0 ? a.beta * std::tanh(gate / a.beta) : gate;
  const float u = a.linear_beta > 0 ? a.linear_beta * std::tanh(up / a.linear_beta) : up;
  return g * sigmoid * u;
}

namespace ref {

template <class T>
void activation(Context&, View<T, 2> y, View<const T, 2> h, View<const float, 1> weight, const Activation& a) {
  for (int64_t t = 0; t < y.dim(0); ++t)
    for (int64_t i = 0; i < y.dim(1); ++i) {
      const float act = activate(a, as_float(h(t, 2 * i)), as_float(h(t, 2 * i + 1)));
      y(t, i) = to<T>(weight.empty() ? act : weight(t) * act);
    }
}

template <class T>
void experts(Context& cx, View<T, 2> y, View<const T, 2> x, View<const int32_t, 2> ids, View<const float, 2> weights,
             const ExpertWeights& w, bool accumulate) {
  const int64_t width = w.w2[0].in, hidden = y.dim(1);
  Workspace::Scope scope(cx.workspace);
  const View<T, 2> h = cx.workspace.take<T, 2>({1, 2 * width}), act = cx.workspace.take<T, 2>({1, width});
  const View<float, 2> part = cx.workspace.take<float, 2>({1, hidden}), sum = cx.workspace.take<float, 2>({1, hidden});
  for (int64_t t = 0; t < x.dim(0); ++t) {
    for (int64_t c = 0; c < hidden; ++c) sum(0, c) = accumulate ? as_float(y(t, c)) : 0.0f;
    for (int64_t j = 0; j < ids.dim(1); ++j) {
      const View<const float, 1> weight(&weights(t, j), {1});
      gemm<T, T>(cx, h, rows(x, t, t + 1), w.w13[ids(t, j)]);
      activation<T>(cx, act, h, w.weight_before_w2 ? weight : View<const float, 1>(), w.activation);
      gemm<T, float>(cx, part, act, w.w2[ids(t, j)]);
      for (int64_t c = 0; c < hidden; ++c)
        sum(0, c) += w.weight_before_w2 ? part(0, c) : weight(0) * as_float(to<T>(part(0, c)));
    }
    for (int64_t c = 0; c < hidden; ++c) y(t, c) = to<T>(sum(0, c));
  }
}

#define NIB_INSTANTIATE(T)                                                                                    \
  template void activation(Context&, View<T, 2>, View<const T, 2>, View<const float, 1>, const Activation&);  \
  template void experts(Context&, View<T, 2>, View<const T, 2>, View<const int32_t, 2>, View<const float, 2>, \
                        const ExpertWeights&, bool);
NIB_INSTANTIATE(float)
NIB_INSTANTIATE(bf16)

}  // namespace ref
}  // namespace nib
