#include "compute/ops/rope.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "compute/ref/ref.h"

namespace nib::ref {

namespace {

// softmax and weighted sum in one pass: what was summed shrinks whenever a larger score appears.
struct RunningSoftmax {
  View<float, 1> sum;  // [head_dim]
  float largest = -std::numeric_limits<float>::infinity(), total = 0;

  template <class T>
  void add(float score, const T* value) {
    if (score > largest) {
      const float shrink = std::exp(largest - score);
      for (int64_t d = 0; d < sum.dim(0); ++d) sum(d) *= shrink;
      total *= shrink;
      largest = score;
    }
    const float weight = std::exp(score - largest);
    for (int64_t d = 0; d < sum.dim(0); ++d) sum(d) += weight * as_float(value[d]);
    total += weight;
  }
};

template <class T>
void add_rows(RunningSoftmax& softmax, const T* q, const KeyValueRows<T>& rows, int64_t column, float scale) {
  const int64_t head_dim = softmax.sum.dim(0);
  for (int64_t s = 0; s < rows.k.dim(0); ++s) {
    const T* k = rows.k.row(s) + column;
    float dot = 0;
    for (int64_t d = 0; d < head_dim; ++d) dot += as_float(q[d]) * as_float(k[d]);
    softmax.add(scale * dot, rows.v.row(s) + column);
  }
}

}  // namespace

template <class T>
void rope(Context&, View<T, 2> x, int64_t head_dim, int64_t start, View<const float, 1> inverse_frequencies) {
  const int64_t half = head_dim / 2;
  for (int64_t t = 0; t < x.dim(0); ++t)
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(start + t) * inverse_frequencies(i);
      const float cosine = std::cos(angle), sine = std::sin(angle);
      for (T* head = x.row(t); head < x.row(t) + x.dim(1); head += head_dim) {
        const float a = as_float(head[i]), b = as_float(head[i + half]);
        head[i] = to<T>(a * cosine - b * sine);
        head[i + half] = to<T>(b * cosine + a * sine);
      }
    }
}

template <class T>
void block_attention(Context& cx, View<T, 2> out, View<const T, 2> q, const KeyValueRows<T>& context,
                     const KeyValueRows<T>& block, int64_t head_dim, float scale) {
  const int64_t heads = q.dim(1) / head_dim, group = heads / (block.k.dim(1) / head_dim);
  Workspace::Scope scope(cx.workspace);
  const View<float, 2> sums = cx.workspace.take<float, 2>({cx.pool.num_threads(), head_dim});
  cx.pool.parallel_for(q.dim(0) * heads, [&](int64_t i, int thread) {
    const int64_t t = i / heads, h = i % heads, column = h / group * head_dim;
    RunningSoftmax softmax{View<float, 1>(sums.row(thread), {head_dim})};
    std::fill_n(sums.row(thread), head_dim, 0.0f);
    const T* query = q.row(t) + h * head_dim;
    add_rows(softmax, query, context, column, scale);
    add_rows(softmax, query, block, column, scale);
    T* y = out.row(t) + h * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) y[d] = to<T>(softmax.sum(d) / softmax.total);
  });
}

#define NIB_INSTANTIATE(T)                                                                      \
  template void rope(Context&, View<T, 2>, int64_t, int64_t, View<const float, 1>);             \
  template void block_attention(Context&, View<T, 2>, View<const T, 2>, const KeyValueRows<T>&, \
                                const KeyValueRows<T>&, int64_t, float);
NIB_INSTANTIATE(float)
NIB_INSTANTIATE(bf16)

}  // namespace nib::ref
