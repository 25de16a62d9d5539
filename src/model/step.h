// What one forward pass carries from sublayer to sublayer, and the sublayer parts that both generations share.
//   Step<bf16> step(cx, in, cache, layout, trace);
//   View<bf16, 2> q = project(step, x, layer.q);
//   relative_attention_tiled(step, out, q, r, kv, table, tau, sink, params);
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "compute/ops/attention.h"
#include "compute/ops/experts.h"
#include "compute/ops/gemm.h"
#include "compute/ops/short_conv.h"
#include "model/cache_layout.h"
#include "model/network.h"

namespace nib {

// Lives as long as one call of forward. Views taken from it lie in the workspace and end with the caller's Scope.
template <class T>
struct Step {
  Step(Context& cx, const ForwardInput& in, const KvCache& cache, const CacheLayout<T>& layout,
       std::span<const Tap> taps, const Trace* trace);

  Context& cx;
  const ForwardInput& in;
  const KvCache& cache;
  const CacheLayout<T>& layout;
  const std::span<const Tap> taps;  // columns of in.taps
  const Trace* trace;
  const std::vector<int32_t> slots;  // of the convolution rings, one a sequence

  int64_t rows() const { return in.tokens.dim(0); }
  template <class E = T>
  View<E, 2> take(int64_t rows, int64_t width) const {
    return cx.workspace.take<E, 2>({rows, width});
  }
  PagedKv<T> kv(int64_t layer) const { return layout.kv(cache, in.block_tables, layer); }
  ConvState<T> conv(int64_t layer, ConvStream stream) const { return layout.conv(cache, slots, layer, stream); }

  bool wants_tap(int64_t visit, Tap::Kind kind) const;
  // Copies x to the columns of every such tap.
  void tap(int64_t visit, Tap::Kind kind, View<const T, 2> x) const;

  // Hands an intermediate to the trace, if there is one; `name` is a format of the layer: "P_{}_attn".
  template <class E>
  void keep(std::string_view name, View<E, 2> x, int64_t layer = 0) const {
    if (trace != nullptr) send(fmt::format(fmt::runtime(name), layer), x);
  }

 private:
  void send(const std::string& name, View<const T, 2> x) const;
  void send(const std::string& name, View<const int32_t, 2> x) const;
  void send(const std::string& name, View<const float, 2> x) const requires(!std::is_same_v<T, float>);
};

// y = x . W^T in fresh workspace, rounded to T.
template <class T>
View<T, 2> project(const Step<T>& step, View<const T, 2> x, const Weight& w) {
  const View<T, 2> y = step.take(x.dim(0), w.out);
  ops::gemm<T, T>(step.cx, y, x, w);
  return y;
}

// The log-length factors of all rows: [rows].
template <class T>
View<float, 1> tau_of_rows(const Step<T>& step, const Tau& tau);

// Attention of all rows over K and V that are in the cache already. The profile of every distance is wide, so rows go
// through in tiles of kRowTile and only one tile's profile exists at a time; a row stands alone, so no bit changes.
// r: [rows, heads * d_rel]   table: [d_rel, columns >= p.extent]   tau: of the profile, or empty.
inline constexpr int64_t kRowTile = 64;
template <class T>
void relative_attention_tiled(const Step<T>& step, View<T, 2> out, View<const T, 2> q, View<const T, 2> r,
                              const PagedKv<T>& kv, View<const T, 2> table, View<const float, 1> tau,
                              View<const float, 2> sink, const AttentionParams& p);

// y[i, :] = x[index[i], :] in fresh workspace.
template <class T>
View<T, 2> take_rows(const Step<T>& step, View<const T, 2> x, std::span<const int32_t> index);

// Bytes that Workspace::take of [rows, width] takes.
template <class T>
int64_t workspace_size(int64_t rows, int64_t width) {
  return (rows * width * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
}

// Stops on an input that does not fit the network: the engine made it.
void check_input(const ForwardInput& in, const Network& network, View<float, 2> logits);

}  // namespace nib
