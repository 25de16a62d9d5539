#include <algorithm>
#include <cmath>

#include "compute/ref/ref.h"

namespace nib::ref {

namespace {

template <class T>
float logit(const T* v, const float* query, int64_t hidden, const DepthMixParams& p) {
  float squares = 0, dot = 0;
  for (int64_t i = 0; i < hidden; ++i) squares += as_float(v[i]) * as_float(v[i]);
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(hidden) + p.source_eps);
  for (int64_t i = 0; i < hidden; ++i) dot += query[i] * (as_float(v[i]) * r);
  return p.logit_scale * dot;
}

// mixed = sum_j softmax_j(logit_j) v_j[t]
template <class T>
void mix(float* mixed, std::span<const View<const T, 2>> sources, const float* query, int64_t t, int64_t hidden,
         const DepthMixParams& p) {
  float a[16], total = 0;
  for (size_t j = 0; j < sources.size(); ++j) a[j] = logit(sources[j].row(t), query, hidden, p);
  const float top = *std::max_element(a, a + sources.size());
  for (size_t j = 0; j < sources.size(); ++j) total += a[j] = std::exp(a[j] - top);
  std::fill_n(mixed, hidden, 0.0f);
  for (size_t j = 0; j < sources.size(); ++j)
    for (int64_t i = 0; i < hidden; ++i) mixed[i] += a[j] / total * as_float(sources[j](t, i));
}

}  // namespace

template <class T>
void depth_mix_norm(Context& cx, std::span<const View<T, 2>> outputs, std::span<const View<const T, 2>> sources,
                    std::span<const View<const float, 1>> queries, std::span<const View<const T, 1>> gains,
                    const DepthMixParams& p) {
  const int64_t hidden = sources[0].dim(1);
  Workspace::Scope scope(cx.workspace);
  float* h = cx.workspace.take<float, 1>({hidden}).data();
  for (size_t m = 0; m < outputs.size(); ++m)
    for (int64_t t = 0; t < outputs[m].dim(0); ++t) {
      if (queries[m].empty())
        for (int64_t i = 0; i < hidden; ++i) h[i] = as_float(sources[0](t, i));
      else
        mix(h, sources, queries[m].data(), t, hidden, p);
      if (gains[m].empty()) {
        for (int64_t i = 0; i < hidden; ++i) outputs[m](t, i) = to<T>(h[i]);
        continue;
      }
      float squares = 0;
      for (int64_t i = 0; i < hidden; ++i) squares += h[i] * h[i];
      const float r = 1.0f / std::sqrt(squares / static_cast<float>(hidden) + p.norm_eps);
      for (int64_t i = 0; i < hidden; ++i) outputs[m](t, i) = to<T>(h[i] * r * as_float(gains[m](i)));
    }
}

#define NIB_INSTANTIATE(T)                                                                               \
  template void depth_mix_norm(Context&, std::span<const View<T, 2>>, std::span<const View<const T, 2>>, \
                               std::span<const View<const float, 1>>, std::span<const View<const T, 1>>, \
                               const DepthMixParams&);
NIB_INSTANTIATE(float)
NIB_INSTANTIATE(bf16)

}  // namespace nib::ref
