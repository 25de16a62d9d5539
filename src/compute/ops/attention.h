// Causal attention over a paged cache with a learned bias by distance, sliding windows and sinks.
//   ops::write_kv(cx, kv, k, v, batch);
//   ops::relative_attention(cx, out, q, kv, profile, sink, batch, params);
#pragma once

#include "compute/ops/batch.h"
#include "compute/tensor/context.h"
#include "compute/tensor/dtype.h"
#include "compute/tensor/view.h"

namespace nib {

// The K and V rows of one layer in blocks lent by the engine: a view, owns nothing. The row of position p of sequence s
// lies in block block_tables(s, p / block_size), at offset p % block_size. Blocks behind a window may be gone: their
// entry is -1.
template <class T>
struct PagedKv {
  View<T, 4> k, v;                      // [blocks, block_size, kv_heads, head_dim]
  View<const int32_t, 2> block_tables;  // [sequences, max_blocks]
  int64_t block_size() const { return k.dim(1); }
};

struct AttentionParams {
  float scale = 1.0f;                // of q . k
  int64_t window = 0;                // keys p-window+1 .. p are visible; 0 = all
  int64_t extent = 0;                // distances 0 .. extent-1 have a bias
  bool clamp_beyond_extent = false;  // bias of the last distance goes on; else zero
};

// Log-length scaling of the query at position p: 1 + alpha * ln(max(1, (p+1) / floor)); floor 0: 1.
struct Tau {
  double floor = 0, alpha = 0;
  float operator()(int64_t position) const;
};

namespace ops {

// Copies row t of k, v ([tokens, kv_heads * head_dim]) to its place in the cache.
template <class T>
void write_kv(Context& cx, const PagedKv<T>& kv, View<const T, 2> k, View<const T, 2> v,
              std::span<const SequenceRows> batch);

// Bias by distance:  b[t, h, e] = round_T( sum_d r[t, h, d] * table[d, e] ),  then round_T(b * tau[t]) if tau is not
// empty r: [tokens, heads * d_rel]   table: [d_rel, extent (+1)]   profile: [tokens, heads, columns of table]   tau:
// [tokens] or empty
template <class T>
void relative_profile(Context& cx, View<T, 3> profile, View<const T, 2> r, View<const T, 2> table,
                      View<const float, 1> tau);

// a(s) = scale * (q[t,h] . k[s]) + profile[t, h, p - s]      j = h / (heads / kv_heads);  s from max(0, p-window+1) to
// p out[t, h, :] = round( sum_s exp(a(s)) v[s] / (sum_s exp(a(s)) + exp(sink[t, h])) )        FP32 inside q, out:
// [tokens, heads * head_dim]   sink: [tokens, heads] (F32) or empty (no sink)   all rows' own keys are in the cache
// already Law: key blocks and their merge order are functions of absolute positions and of the row's own position only.
template <class T>
void relative_attention(Context& cx, View<T, 2> out, View<const T, 2> q, const PagedKv<T>& kv, View<const T, 3> profile,
                        View<const float, 2> sink, std::span<const SequenceRows> batch, const AttentionParams& p);

// Workspace that relative_attention takes at most.
int64_t attention_workspace_bytes(int64_t heads, int64_t head_dim, int64_t num_threads);

// Per head of x [tokens, heads * head_dim], in place, FP32 inside, one rounding (plus one for tau):
//   y = scales * x (scales: [head_dim], [heads * head_dim] or empty);  y *= min(1, limit / ||y||)   (limit 0: no clip;
//   zero stays zero) then y = round_T(y), and y = round_T(y * tau[t]) if tau is not empty
template <class T>
void clip_heads(Context& cx, View<T, 2> x, int64_t head_dim, float limit, View<const T, 1> scales,
                View<const float, 1> tau);

// Per head of x, in place: y = round( x * rsqrt(mean(x^2) + eps) * weight ), then tau as above.  weight: [head_dim] or
// empty (1)
template <class T>
void norm_heads(Context& cx, View<T, 2> x, int64_t head_dim, View<const T, 1> weight, float eps,
                View<const float, 1> tau);

// y[t, c] = round( y[t, c] * act(gate[t, c]) ); gate: [tokens, heads] (one a head) or [tokens, heads * head_dim]
enum class GateAct { kSigmoid, kSilu, kTanh, kNone };
template <class T>
void apply_gate(Context& cx, View<T, 2> y, View<const T, 2> gate, int64_t heads, GateAct act);

// logits[i] = cap * tanh(logits[i] / mup / cap); cap 0: logits / mup.     in place, FP32
void soft_cap(Context& cx, View<float, 2> logits, float mup, float cap);

}  // namespace ops
}  // namespace nib
