#include <cmath>

#include "compute/ref/ref.h"

namespace nib::ref {

namespace {

template <class T>
float inverse_rms(const T* x, int64_t n, float eps) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += as_float(x[i]) * as_float(x[i]);
  return 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
}

template <class Y, class X>
void norm_row(Y* y, const X* x, const Y* weight, int64_t n, float eps) {
  const float r = inverse_rms(x, n, eps);
  for (int64_t i = 0; i < n; ++i) y[i] = to<Y>(as_float(x[i]) * r * (weight ? as_float(weight[i]) : 1.0f));
}

}  // namespace

template <class T>
void rms_norm(Context&, View<T, 2> y, View<const T, 2> x, View<const T, 1> weight, float eps) {
  for (int64_t t = 0; t < x.dim(0); ++t) norm_row(y.row(t), x.row(t), weight.data(), x.dim(1), eps);
}

template <class T>
void embed_norm(Context&, View<T, 2> y, View<const int32_t, 1> tokens, const Weight& table, View<const T, 1> weight,
                float eps) {
  for (int64_t t = 0; t < tokens.dim(0); ++t) {
    const int64_t offset = tokens(t) * table.in;
    if (table.format == WeightFormat::kF32)
      norm_row(y.row(t), static_cast<const float*>(table.data) + offset, weight.data(), table.in, eps);
    else
      norm_row(y.row(t), static_cast<const bf16*>(table.data) + offset, weight.data(), table.in, eps);
  }
}

template <class T>
void add(Context&, View<T, 2> y, View<const T, 2> x, View<const T, 2> delta) {
  for (int64_t t = 0; t < x.dim(0); ++t)
    for (int64_t c = 0; c < x.dim(1); ++c) y(t, c) = to<T>(as_float(x(t, c)) + as_float(delta(t, c)));
}

template <class T>
void norm_heads(Context&, View<T, 2> x, int64_t head_dim, View<const T, 1> weight, float eps,
                View<const float, 1> tau) {
  for (int64_t t = 0; t < x.dim(0); ++t)
    for (T* head = x.row(t); head < x.row(t) + x.dim(1); head += head_dim) {
      norm_row(head, head, weight.data(), head_dim, eps);
      if (tau.empty()) continue;
      for (int64_t d = 0; d < head_dim; ++d) head[d] = to<T>(as_float(head[d]) * tau(t));
    }
}

template <class T>
void clip_heads(Context&, View<T, 2> x, int64_t head_dim, float limit, View<const T, 1> scales,
                View<const float, 1> tau) {
  const bool per_head = !scales.empty() && scales.dim(0) != head_dim;
  for (int64_t t = 0; t < x.dim(0); ++t)
    for (int64_t begin = 0; begin < x.dim(1); begin += head_dim) {
      T* head = x.row(t) + begin;
      const T* scale = scales.data() + (per_head ? begin : 0);
      const auto scaled = [&](int64_t d) { return as_float(head[d]) * (scales.empty() ? 1.0f : as_float(scale[d])); };
      float sum = 0;
      for (int64_t d = 0; d < head_dim; ++d) sum += scaled(d) * scaled(d);
      const float length = std::sqrt(sum);
      const float factor = limit > 0 && length > limit ? limit / length : 1.0f;
      for (int64_t d = 0; d < head_dim; ++d) {
        head[d] = to<T>(scaled(d) * factor);
        if (!tau.empty()) head[d] = to<T>(as_float(head[d]) * tau(t));
      }
    }
}

#define NIB_INSTANTIATE(T)                                                                                        \
  template void rms_norm(Context&, View<T, 2>, View<const T, 2>, View<const T, 1>, float);                        \
  template void embed_norm(Context&, View<T, 2>, View<const int32_t, 1>, const Weight&, View<const T, 1>, float); \
  template void add(Context&, View<T, 2>, View<const T, 2>, View<const T, 2>);                                    \
  template void norm_heads(Context&, View<T, 2>, int64_t, View<const T, 1>, float, View<const float, 1>);         \
  template void clip_heads(Context&, View<T, 2>, int64_t, float, View<const T, 1>, View<const float, 1>);
NIB_INSTANTIATE(float)
NIB_INSTANTIATE(bf16)

}  // namespace nib::ref
