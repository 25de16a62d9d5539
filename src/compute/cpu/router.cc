#include <algorithm>
#include <cmath>

#include "compute/cpu/cpu.h"
#include "compute/cpu/gemm.h"
#include "compute/cpu/rows.h"

namespace nib::cpu {

namespace {

float log_sigmoid(float z) { return std::min(z, 0.0f) - std::log1p(std::exp(-std::abs(z))); }

// The strongest few of a stream of (id, score) with rising ids, strongest first, ties to the lowest id.
class TopK {
 public:
  TopK(int32_t* ids, float* scores, int64_t k) : ids_(ids), scores_(scores), k_(k) {}
  void offer(int32_t id, float score) {
    if (count_ == k_ && !(score > scores_[k_ - 1])) return;
    int64_t at = count_ < k_ ? count_++ : k_ - 1;
    for (; at > 0 && score > scores_[at - 1]; --at) ids_[at] = ids_[at - 1], scores_[at] = scores_[at - 1];
    ids_[at] = id, scores_[at] = score;
  }

 private:
  int32_t* ids_;
  float* scores_;
  int64_t k_, count_ = 0;
};

struct Row {
  const float* z;
  int64_t columns, experts;
  const RouterParams& p;
  void (*sigmoid)(float* y, const float* x, int64_t n);
  float top = 0, total = 0;  // of the softmax

  Row(const float* z, int64_t columns, int64_t experts, const RouterParams& p, Isa isa)
      : z(z), columns(columns), experts(experts), p(p), sigmoid(row_kernels<float>(isa).sigmoid) {
    if (!p.softmax) return;
    top = *std::max_element(z, z + columns);
    for (int64_t i = 0; i < columns; ++i) total += std::exp(z[i] - top);
  }

  void scores(float* out, int64_t begin, int64_t count) const {
    if (!p.softmax) return sigmoid(out, z + begin, count);
    for (int64_t i = 0; i < count; ++i) out[i] = std::exp(z[begin + i] - top) / total;
  }
  // The score up to a factor common to all experts, as a logarithm: finite where the score itself underflows.
  float log_score(int64_t i) const { return p.softmax ? z[i] : log_sigmoid(z[i]); }

  // scores is used for the scores of the chosen.
  void choose(int32_t* ids, float* scores_of_chosen, int64_t top_k) const {
    constexpr int64_t kBlock = 64;
    TopK best(ids, scores_of_chosen, top_k);
    for (int64_t begin = 0; begin < experts; begin += kBlock) {
      float score[kBlock];
      const int64_t count = std::min(kBlock, experts - begin);
      scores(score, begin, count);
      for (int64_t i = 0; i < count; ++i) {
        const float s = score[i] + (p.bias.empty() ? 0.0f : p.bias(begin + i));
        best.offer(begin + i, std::isnan(s) ? -INFINITY : s);
      }
    }
  }
};

}  // namespace

void router(Context& cx, View<int32_t, 2> ids, View<float, 2> weights, View<float, 2> shared_weights,
            View<const float, 2> logits, const RouterParams& p) {
  const int64_t shared = shared_weights.empty() ? 0 : shared_weights.dim(1);
  const int64_t experts = logits.dim(1) - shared, top_k = ids.dim(1);
  run_parallel(cx, logits.dim(0), logits.size() * 16, [&](int64_t t, int) {
    const Row row(logits.row(t), logits.dim(1), experts, p, cx.isa);
    row.choose(ids.row(t), weights.row(t), top_k);

    // The weight of slot j: the chosen experts, then the shared ones.
    const auto expert = [&](int64_t j) { return j < top_k ? ids(t, j) : experts + j - top_k; };
    const auto weight = [&](int64_t j) -> float& { return j < top_k ? weights(t, j) : shared_weights(t, j - top_k); };
    float top = -INFINITY, total = 0;
    for (int64_t j = 0; j < top_k + shared; ++j) {
      if (p.normalise)
        weight(j) = row.log_score(expert(j));
      else
        row.scores(&weight(j), expert(j), 1);
      top = std::max(top, weight(j));
    }
    if (p.normalise)
      for (int64_t j = 0; j < top_k + shared; ++j) total += weight(j) = std::exp(weight(j) - top);
    for (int64_t j = 0; j < top_k + shared; ++j) weight(j) *= p.normalise ? p.scale / total : p.scale;
  });
}

}  // namespace nib::cpu
