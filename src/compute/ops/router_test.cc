#include "compute/ops/router.h"

#include <algorithm>
#include <numeric>

#include "compute/ops/test_support.h"

namespace nib {
namespace {

struct Routed {
  Routed(int64_t tokens, int64_t top_k, int64_t shared)
      : ids(tokens * top_k, -7),
        weights(tokens, top_k),
        shared_weights(tokens, std::max<int64_t>(1, shared)),
        top_k(top_k),
        shared(shared) {}
  std::vector<int32_t> ids;
  Matrix<float> weights, shared_weights;
  int64_t top_k, shared;
  int32_t id(int64_t t, int64_t j) const { return ids[t * top_k + j]; }
};

Routed route(Isa isa, const Matrix<float>& logits, int64_t top_k, int64_t shared, const RouterParams& p) {
  Machine m(isa, 2);
  Routed r(logits.rows(), top_k, shared);
  ops::router(m.cx, View<int32_t, 2>(r.ids.data(), {logits.rows(), top_k}), r.weights.view(),
              shared ? r.shared_weights.view() : View<float, 2>(), logits.view(), p);
  return r;
}

// The worked example of the first generation: 4 experts, 2 shared, top 2, scales 8 * 0.5.
TEST(Router, SharedExpertsTakePartInTheWeightsButNotInTheChoice) {
  const float z[6] = {0.2f, -1, 1.5f, 0.9f, 0, -0.5f}, bias[4] = {0.6f, 0, -0.3f, 0.05f};
  for (Isa isa : available_isas())
    for (int64_t shared : {2, 0}) {
      Matrix<float> logits(1, 4 + shared);
      for (int64_t i = 0; i < 4 + shared; ++i) logits(0, i) = z[i];
      const Routed r = route(isa, logits, 2, shared, {View<const float, 1>(bias, {4}), 4.0f});
      EXPECT_EQ(r.ids, (std::vector<int32_t>{0, 3}));
      EXPECT_NEAR(r.weights(0, 0), shared ? 1.028533 : 1.744420, 2e-6);
      EXPECT_NEAR(r.weights(0, 1), shared ? 1.329919 : 2.255580, 2e-6);
      if (!shared) continue;
      EXPECT_NEAR(r.shared_weights(0, 0), 0.935312, 2e-6);
      EXPECT_NEAR(r.shared_weights(0, 1), 0.706237, 2e-6);
    }
}

struct Case {
  int64_t experts, top_k, shared;
  bool softmax, normalise;
};
constexpr Case kCases[] = {{16, 4, 0, false, true}, {384, 8, 0, false, true}, {128, 8, 2, false, true},
                           {9, 3, 0, true, true},   {33, 5, 0, false, false}, {20, 20, 1, true, false}};

TEST(Router, AgreesWithASortInDoublePrecision) {
  for (Isa isa : available_isas())
    for (const Case& c : kCases) {
      SCOPED_TRACE(fmt::format("{} experts {} top {}", name(isa), c.experts, c.top_k));
      Rng rng(1);
      const Matrix<float> logits = random_matrix<float>(rng, 30, c.experts + c.shared, 2.0f, 1);
      const Matrix<float> bias = random_matrix<float>(rng, 1, c.experts, 0.3f);
      const Routed r = route(isa, logits, c.top_k, c.shared, {vector_view(bias), 2.5f, c.softmax, c.normalise});
      for (int64_t t = 0; t < 30; ++t) {
        std::vector<double> score(c.experts + c.shared);
        double total = 0, chosen = 0;
        for (int64_t i = 0; i < c.experts + c.shared; ++i) total += std::exp(static_cast<double>(logits(t, i)));
        for (int64_t i = 0; i < c.experts + c.shared; ++i)
          score[i] = c.softmax ? std::exp(static_cast<double>(logits(t, i))) / total
                               : 1 / (1 + std::exp(-static_cast<double>(logits(t, i))));
        std::vector<int32_t> order(c.experts);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int a, int b) { return score[a] + bias(0, a) > score[b] + bias(0, b); });
        for (int64_t j = 0; j < c.top_k; ++j) chosen += score[order[j]];
        for (int64_t s = 0; s < c.shared; ++s) chosen += score[c.experts + s];
        for (int64_t j = 0; j < c.top_k; ++j) {
          ASSERT_EQ(r.id(t, j), order[j]) << "token " << t;
          const double want = 2.5 * score[order[j]] / (c.normalise ? chosen : 1);
          ASSERT_NEAR(r.weights(t, j), want, 2e-6 * want + 1e-9);
        }
      }
    }
}

TEST(Router, TiesGoToTheLowestId) {
  Matrix<float> logits(1, 7);
  for (int i = 0; i < 7; ++i) logits(0, i) = i == 5 ? 1.0f : 0.25f;
  for (Isa isa : available_isas()) EXPECT_EQ(route(isa, logits, 3, 0, {}).ids, (std::vector<int32_t>{5, 0, 1}));
}

TEST(Router, VeryNegativeLogitsStillShareTheWeight) {
  Matrix<float> logits(1, 4);
  for (int i = 0; i < 4; ++i) logits(0, i) = -200.0f;
  for (Isa isa : available_isas()) EXPECT_NEAR(route(isa, logits, 2, 0, {}).weights(0, 0), 0.5, 1e-6);
}

TEST(Router, ABrokenRowGetsDistinctIdsInRange) {
  for (Isa isa : available_isas())
    for (bool softmax : {false, true}) {
      Matrix<float> logits(2, 8);  // all NaN
      for (int i = 0; i < 8; ++i) logits(1, i) = i == 2 ? NAN : 8.0f - i;
      const Routed r = route(isa, logits, 4, 0, {{}, 1.0f, softmax});
      std::vector<int32_t> ids(r.ids.begin(), r.ids.begin() + 4);
      EXPECT_EQ(ids, (std::vector<int32_t>{0, 1, 2, 3})) << name(isa);
      if (!softmax) {
        EXPECT_EQ(r.ids[6], 3) << name(isa);
      }
    }
}

}  // namespace
}  // namespace nib
