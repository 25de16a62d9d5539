// The operations at the speed of the machine, for every instruction set above plain loops.
//   Context cx{Isa::kAvx512, pool, workspace};
//   cpu::gemm(cx, y, x, w);        // formulas, shapes and rounding: the header of the same name in compute/ops
// Law: for one instruction set the bits of a row do not depend on the rows beside it, on their number or on the
// threads.
#pragma once

#include "compute/ops/attention.h"
#include "compute/ops/block_attention.h"
#include "compute/ops/depth_mix.h"
#include "compute/ops/experts.h"
#include "compute/ops/norm.h"
#include "compute/ops/router.h"
#include "compute/ops/short_conv.h"

namespace nib::cpu {

template <class T, class Y>
void gemm(Context& cx, View<Y, 2> y, View<const T, 2> x, const Weight& w);
template <class T>
void gemm_all(Context& cx, std::span<const ops::Product<T>> products);

template <class T>
void experts(Context& cx, View<T, 2> y, View<const T, 2> x, View<const int32_t, 2> ids, View<const float, 2> weights,
             const ExpertWeights& w, bool accumulate);
template <class T>
void activation(Context& cx, View<T, 2> y, View<const T, 2> h, View<const float, 1> weight, const Activation& a);

template <class T>
void rms_norm(Context& cx, View<T, 2> y, View<const T, 2> x, View<const T, 1> weight, float eps);
template <class T>
void embed_norm(Context& cx, View<T, 2> y, View<const int32_t, 1> tokens, const Weight& table, View<const T, 1> weight,
                float eps);
template <class T>
void add(Context& cx, View<T, 2> y, View<const T, 2> x, View<const T, 2> delta);

void router(Context& cx, View<int32_t, 2> ids, View<float, 2> weights, View<float, 2> shared_weights,
            View<const float, 2> logits, const RouterParams& p);

template <class T>
void short_conv(Context& cx, View<T, 2> y, View<const T, 2> x, const ConvState<T>& state,
                std::span<const SequenceRows> batch, const ConvTaps<T>& taps, View<const T, 2> residual);

template <class T>
void depth_mix_norm(Context& cx, std::span<const View<T, 2>> outputs, std::span<const View<const T, 2>> sources,
                    std::span<const View<const float, 1>> queries, std::span<const View<const T, 1>> gains,
                    const DepthMixParams& p);

template <class T>
void relative_profile(Context& cx, View<T, 3> profile, View<const T, 2> r, View<const T, 2> table,
                      View<const float, 1> tau);
template <class T>
void relative_attention(Context& cx, View<T, 2> out, View<const T, 2> q, const PagedKv<T>& kv, View<const T, 3> profile,
                        View<const float, 2> sink, std::span<const SequenceRows> batch, const AttentionParams& p);
template <class T>
void clip_heads(Context& cx, View<T, 2> x, int64_t head_dim, float limit, View<const T, 1> scales,
                View<const float, 1> tau);
template <class T>
void norm_heads(Context& cx, View<T, 2> x, int64_t head_dim, View<const T, 1> weight, float eps,
                View<const float, 1> tau);
template <class T>
void apply_gate(Context& cx, View<T, 2> y, View<const T, 2> gate, int64_t heads, ops::GateAct act);
void soft_cap(Context& cx, View<float, 2> logits, float mup, float cap);

template <class T>
void rope(Context& cx, View<T, 2> x, View<const float, 2> table);
template <class T>
void block_attention(Context& cx, View<T, 2> out, View<const T, 2> q, View<const T, 2> k, View<const T, 2> v,
                     const PagedKv<T>& context, std::span<const BlockRows> blocks, float scale);

}  // namespace nib::cpu
