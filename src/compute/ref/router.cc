#include <algorithm>
#include <cmath>

#include "compute/ref/ref.h"

namespace nib::ref {

namespace {

float sigmoid(float z) { return 1.0f / (1.0f + std::exp(-z)); }
float log_sigmoid(float z) { return std::min(z, 0.0f) - std::log1p(std::exp(-std::abs(z))); }

// One token. A NaN counts as the weakest score, so that a broken row still gets ids in range.
class Row {
 public:
  Row(const float* z, int64_t columns, int64_t experts, const RouterParams& p) : z_(z), experts_(experts), p_(p) {
    if (!p.softmax) return;
    top_ = *std::max_element(z, z + columns);
    for (int64_t i = 0; i < columns; ++i) total_ += std::exp(z[i] - top_);
  }

  float score(int64_t i) const { return p_.softmax ? std::exp(z_[i] - top_) / total_ : sigmoid(z_[i]); }
  // The score up to a factor common to all experts, as a logarithm: finite where the score itself underflows.
  float log_score(int64_t i) const { return p_.softmax ? z_[i] : log_sigmoid(z_[i]); }

  // Strongest expert that comes after `previous` in the order of falling selection score, ties to the lowest id.
  int32_t next(int32_t previous) const {
    int32_t best = -1;
    for (int32_t i = 0; i < experts_; ++i)
      if ((previous < 0 || before(previous, i)) && (best < 0 || before(i, best))) best = i;
    return best;
  }

 private:
  float selection(int64_t i) const {
    const float s = score(i) + (p_.bias.empty() ? 0.0f : p_.bias(i));
    return std::isnan(s) ? -INFINITY : s;
  }
  bool before(int32_t a, int32_t b) const {
    const float x = selection(a), y = selection(b);
    return x > y || (x == y && a < b);
  }

  const float* z_;
  int64_t experts_;
  const RouterParams& p_;
  float top_ = 0, total_ = 0;
};

}  // namespace

void router(Context&, View<int32_t, 2> ids, View<float, 2> weights, View<float, 2> shared_weights,
            View<const float, 2> logits, const RouterParams& p) {
  const int64_t shared = shared_weights.empty() ? 0 : shared_weights.dim(1);
  const int64_t experts = logits.dim(1) - shared, top_k = ids.dim(1);
  for (int64_t t = 0; t < logits.dim(0); ++t) {
    const Row row(logits.row(t), logits.dim(1), experts, p);
    for (int64_t j = 0; j < top_k; ++j) ids(t, j) = row.next(j ? ids(t, j - 1) : -1);

    // The weight of slot j: the chosen experts, then the shared ones.
    const auto expert = [&](int64_t j) { return j < top_k ? ids(t, j) : experts + j - top_k; };
    const auto weight = [&](int64_t j) -> float& { return j < top_k ? weights(t, j) : shared_weights(t, j - top_k); };
    float top = -INFINITY, total = 0;
    for (int64_t j = 0; j < top_k + shared; ++j) top = std::max(top, row.log_score(expert(j)));
    for (int64_t j = 0; j < top_k + shared; ++j) total += std::exp(row.log_score(expert(j)) - top);
    for (int64_t j = 0; j < top_k + shared; ++j)
      weight(j) = p.scale * (p.normalise ? std::exp(row.log_score(expert(j)) - top) / total : row.score(expert(j)));
  }
}

}  // namespace nib::ref
