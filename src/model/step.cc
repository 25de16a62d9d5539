#include "model/step.h"

#include <algorithm>

namespace nib {

namespace {

template <class E>
std::vector<float> to_floats(View<const E, 2> x) {
  std::vector<float> y;
  y.reserve(x.size());
  for (int64_t t = 0; t < x.dim(0); ++t)
    for (int64_t c = 0; c < x.dim(1); ++c) {
      if constexpr (std::is_same_v<E, bf16>)
        y.push_back(as_float(x(t, c)));
      else
        y.push_back(static_cast<float>(x(t, c)));
    }
  return y;
}

template <class E>
void send_floats(const Trace& trace, const std::string& name, View<const E, 2> x) {
  const std::vector<float> y = to_floats(x);
  trace(name, View<const float, 2>(y.data(), x.shape()));
}

// The rows [begin, end) of a step: whose they are, counted from `begin`, and the block tables of those sequences.
struct Tile {
  std::vector<SequenceRows> sequences;
  int64_t first = 0;  // index of the first sequence
  int64_t keys = 0;   // that some row sees, if no window hides them
};

Tile cut(std::span<const SequenceRows> batch, int64_t begin, int64_t end) {
  Tile tile;
  for (size_t s = 0; s < batch.size(); ++s) {
    const int64_t lo = std::max(batch[s].begin, begin), hi = std::min(batch[s].begin + batch[s].count, end);
    if (lo >= hi) continue;
    if (tile.sequences.empty()) tile.first = static_cast<int64_t>(s);
    tile.sequences.push_back({lo - begin, hi - lo, batch[s].start + lo - batch[s].begin});
    tile.keys = std::max(tile.keys, batch[s].start + hi - batch[s].begin);
  }
  return tile;
}

template <class E>
View<E, 1> slice(View<E, 1> x, int64_t begin, int64_t end) {
  return x.empty() ? x : View<E, 1>(x.data() + begin, {end - begin});
}

}  // namespace

template <class T>
Step<T>::Step(Context& cx, const ForwardInput& in, const KvCache& cache, const CacheLayout<T>& layout,
              std::span<const Tap> taps, const Trace* trace)
    : cx(cx), in(in), cache(cache), layout(layout), taps(taps), trace(trace), slots(layout.slots_of(in.block_tables)) {}

template <class T>
bool Step<T>::wants_tap(int64_t visit, Tap::Kind kind) const {
  return !in.taps.empty() && std::find(taps.begin(), taps.end(), Tap{visit, kind}) != taps.end();
}

template <class T>
void Step<T>::tap(int64_t visit, Tap::Kind kind, View<const T, 2> x) const {
  for (size_t i = 0; i < taps.size() && !in.taps.empty(); ++i) {
    if (taps[i] != Tap{visit, kind}) continue;
    const int64_t width = x.dim(1), first = static_cast<int64_t>(i) * width;
    for (int64_t t = 0; t < x.dim(0); ++t)
      std::transform(x.row(t), x.row(t) + width, in.taps.row(t) + first, [](T v) { return as_float(v); });
  }
}

template <class T>
void Step<T>::send(const std::string& name, View<const T, 2> x) const {
  send_floats(*trace, name, x);
}
template <class T>
void Step<T>::send(const std::string& name, View<const int32_t, 2> x) const {
  send_floats(*trace, name, x);
}
template <class T>
void Step<T>::send(const std::string& name, View<const float, 2> x) const requires(!std::is_same_v<T, float>) {
  send_floats(*trace, name, x);
}

template <class T>
View<float, 1> tau_of_rows(const Step<T>& step, const Tau& tau) {
  const View<float, 1> y = step.cx.workspace.template take<float, 1>({step.rows()});
  for (const SequenceRows& s : step.in.sequences)
    for (int64_t i = 0; i < s.count; ++i) y(s.begin + i) = tau(s.start + i);
  return y;
}

template <class T>
void relative_attention_tiled(const Step<T>& step, View<T, 2> out, View<const T, 2> q, View<const T, 2> r,
                              const PagedKv<T>& kv, View<const T, 2> table, View<const float, 1> tau,
                              View<const float, 2> sink, const AttentionParams& p) {
  const int64_t heads = r.dim(1) / table.dim(0);
  for (int64_t begin = 0; begin < step.rows(); begin += kRowTile) {
    const int64_t end = std::min(begin + kRowTile, step.rows());
    const Tile tile = cut(step.in.sequences, begin, end);
    PagedKv<T> tile_kv = kv;
    tile_kv.block_tables = rows(kv.block_tables, tile.first, tile.first + static_cast<int64_t>(tile.sequences.size()));

    Workspace::Scope scope(step.cx.workspace);
    AttentionParams tile_params = p;
    tile_params.extent = std::min(p.extent, tile.keys);
    const View<T, 3> profile = step.cx.workspace.template take<T, 3>({end - begin, heads, tile_params.extent});
    ops::relative_profile<T>(step.cx, profile, rows(r, begin, end), columns(table, 0, tile_params.extent),
                             slice(tau, begin, end));
    ops::relative_attention<T>(step.cx, rows(out, begin, end), rows(q, begin, end), tile_kv, profile,
                               sink.empty() ? sink : rows(sink, begin, end), tile.sequences, tile_params);
  }
}

template <class T>
View<T, 2> take_rows(const Step<T>& step, View<const T, 2> x, std::span<const int32_t> index) {
  const View<T, 2> y = step.take(static_cast<int64_t>(index.size()), x.dim(1));
  for (int64_t i = 0; i < y.dim(0); ++i) std::copy_n(x.row(index[i]), x.dim(1), y.row(i));
  return y;
}

void check_input(const ForwardInput& in, const Network& network, View<float, 2> logits) {
  NIB_CHECK_EQ(in.block_tables.size(), network.cache_specs().size());
  const int64_t num_sequences = static_cast<int64_t>(in.sequences.size());
  for (const View<const int32_t, 2>& table : in.block_tables) NIB_CHECK_EQ(table.dim(0), num_sequences);
  int64_t rows = 0;
  for (const SequenceRows& s : in.sequences) {
    NIB_CHECK(s.begin == rows && s.count > 0 && s.start >= 0, "sequence at row {} of {} rows", s.begin, s.count);
    rows += s.count;
  }
  NIB_CHECK_EQ(rows, in.tokens.dim(0));
  NIB_CHECK_EQ(logits.dim(0), static_cast<int64_t>(in.logit_rows.size()));
  NIB_CHECK(in.taps.empty() || in.taps.dim(0) == rows, "{} rows of taps", in.taps.dim(0));
  NIB_CHECK(in.logit_rows.empty() || logits.dim(1) == network.config().unpadded_vocab_size, "{} columns of logits",
            logits.dim(1));
  for (int32_t row : in.logit_rows) NIB_CHECK(row >= 0 && row < rows, "logit row {} of {}", row, rows);
}

#define NIB_INSTANTIATE(T)                                                                               \
  template struct Step<T>;                                                                               \
  template View<float, 1> tau_of_rows(const Step<T>&, const Tau&);                                       \
  template void relative_attention_tiled(const Step<T>&, View<T, 2>, View<const T, 2>, View<const T, 2>, \
                                         const PagedKv<T>&, View<const T, 2>, View<const float, 1>,      \
                                         View<const float, 2>, const AttentionParams&);                  \
  template View<T, 2> take_rows(const Step<T>&, View<const T, 2>, std::span<const int32_t>);
NIB_INSTANTIATE(float)
NIB_INSTANTIATE(bf16)
#undef NIB_INSTANTIATE

}  // namespace nib
