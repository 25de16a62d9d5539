#include "compute/ops/block_attention.h"

#include <algorithm>
#include <cmath>

#include "compute/ref/ref.h"

namespace nib::ref {

namespace {

// softmax and weighted sum in one pass: what was summed shrinks whenever a larger score appears.
struct RunningSoftmax {
  View<float, 1> sum;  // [head_dim]
  float largest = -INFINITY, total = 0;

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
float dot(const T* a, const T* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += as_float(a[i]) * as_float(b[i]);
  return sum;
}

}  // namespace

template <class T>
void block_attention(Context& cx, View<T, 2> out, View<const T, 2> q, View<const T, 2> k, View<const T, 2> v,
                     const PagedKv<T>& context, std::span<const BlockRows> blocks, float scale) {
  const int64_t kv_heads = context.k.dim(2), head_dim = context.k.dim(3), heads = q.dim(1) / head_dim;
  Workspace::Scope scope(cx.workspace);
  const View<float, 1> sum = cx.workspace.take<float, 1>({head_dim});
  for (size_t b = 0; b < blocks.size(); ++b)
    for (int64_t t = blocks[b].begin; t < blocks[b].begin + blocks[b].count; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t j = h / (heads / kv_heads);
        const T* query = q.row(t) + h * head_dim;
        RunningSoftmax softmax{sum};
        std::fill_n(sum.data(), head_dim, 0.0f);
        for (int64_t s = blocks[b].context_begin; s < blocks[b].context_end; ++s) {
          const int64_t block = context.block_tables(b, s / context.block_size()), offset = s % context.block_size();
          softmax.add(scale * dot(query, &context.k(block, offset, j, 0), head_dim), &context.v(block, offset, j, 0));
        }
        for (int64_t s = blocks[b].begin; s < blocks[b].begin + blocks[b].count; ++s)
          softmax.add(scale * dot(query, k.row(s) + j * head_dim, head_dim), v.row(s) + j * head_dim);
        for (int64_t d = 0; d < head_dim; ++d) out.row(t)[h * head_dim + d] = to<T>(sum(d) / softmax.total);
      }
}

#define NIB_INSTANTIATE(T)                                                                                  \
  template void block_attention(Context&, View<T, 2>, View<const T, 2>, View<const T, 2>, View<const T, 2>, \
                                const PagedKv<T>&, std::span<const BlockRows>, float);
NIB_INSTANTIATE(float)
NIB_INSTANTIATE(bf16)

}  // namespace nib::ref
