#include "compute/ops/experts.h"

#include <algorithm>

#include "compute/ops/test_support.h"
#include "compute/ref/ref.h"

namespace nib {
namespace {

double silu_sigmoid(double g) { return 1 / (1 + std::exp(-g)); }

double activate_exactly(const Activation& a, double g, double u) {
  if (a.kind == Activation::Kind::kSwiglu) return g * silu_sigmoid(g) * u;
  return (a.beta > 0 ? a.beta * std::tanh(g / a.beta) : g) * silu_sigmoid(g) *
         (a.linear_beta > 0 ? a.linear_beta * std::tanh(u / a.linear_beta) : u);
}

constexpr Activation kActivations[] = {{Activation::Kind::kSwiglu, 0, 0},
                                       {Activation::Kind::kSitu, 4, 25},
                                       {Activation::Kind::kSitu, 0, 25},
                                       {Activation::Kind::kSitu, 4, 0}};

template <class T>
void run_activation(Isa isa) {
  Rng rng(1);
  Machine m(isa, 2);
  for (const Activation& a : kActivations)
    for (int64_t width : {1, 16, 37, 96})
      for (bool weighted : {false, true}) {
        Matrix<T> h = random_matrix<T>(rng, 5, 2 * width, 4.0f, 2);
        h(0, 0) = to<T>(-95.0f), h(1, 0) = to<T>(95.0f);
        const Matrix<float> weight = random_matrix<float>(rng, 1, 5);
        Matrix<T> y(5, width, 1), alone(5, width);
        ops::activation<T>(m.cx, y.view(), h.view(), weighted ? vector_view(weight) : View<const float, 1>(), a);
        for (int64_t t = 0; t < 5; ++t) {
          for (int64_t i = 0; i < width; ++i) {
            const double want =
                (weighted ? weight(0, t) : 1.0) * activate_exactly(a, as_float(h(t, 2 * i)), as_float(h(t, 2 * i + 1)));
            ASSERT_NEAR(as_float(y(t, i)), want, (kRounding<T> + 2e-6) * std::abs(want) + kSumError) << name(isa);
          }
          ops::activation<T>(m.cx, rows(alone.view(), t, t + 1), rows(View<const T, 2>(h.view()), t, t + 1),
                             weighted ? View<const float, 1>(&weight(0, t), {1}) : View<const float, 1>(), a);
        }
        EXPECT_TRUE(same_bits(y, alone));
      }
}

TEST(Experts, ActivationAgreesWithDoublePrecision) {
  for (Isa isa : available_isas()) run_activation<float>(isa), run_activation<bf16>(isa);
}

struct Case {
  int64_t experts, top_k, hidden, width;
  WeightFormat format;
};
constexpr Case kCases[] = {
    {16, 4, 224, 96, WeightFormat::kNvfp4},                                       // nano
    {16, 4, 224, 96, WeightFormat::kMxfp8}, {8, 2, 64, 32, WeightFormat::kBF16},  // the oracles
    {8, 2, 64, 32, WeightFormat::kNvfp4},   {4, 3, 40, 24, WeightFormat::kF32},  {3, 3, 96, 16, WeightFormat::kNvfp4},
};

struct Layer {
  Layer(Rng& rng, const Case& c) {
    for (int64_t e = 0; e < c.experts; ++e) {
      owned.push_back(random_weight(rng, c.format, 2 * c.width, c.hidden));
      owned.push_back(random_weight(rng, c.format, c.hidden, c.width));
    }
    for (int64_t e = 0; e < c.experts; ++e) w13.push_back(owned[2 * e].weight), w2.push_back(owned[2 * e + 1].weight);
  }
  ExpertWeights weights(const Activation& a, bool before) const { return {w13, w2, a, before}; }
  std::vector<RandomWeight> owned;
  std::vector<Weight> w13, w2;
};

// Distinct experts for each token, as a router gives them.
std::vector<int32_t> random_ids(Rng& rng, int64_t tokens, const Case& c) {
  std::vector<int32_t> ids, all(c.experts);
  for (int64_t e = 0; e < c.experts; ++e) all[e] = e;
  for (int64_t t = 0; t < tokens; ++t) {
    std::shuffle(all.begin(), all.end(), rng);
    ids.insert(ids.end(), all.begin(), all.begin() + c.top_k);
  }
  return ids;
}

// A weight decoded once, outer scale included.
struct Decoded {
  explicit Decoded(const Weight& w) : out(w.out), in(w.in), values(w.out * w.in) {
    for (int64_t n = 0; n < out; ++n) ref::decode_row(&values[n * in], w, n);
    for (float& v : values) v *= w.outer;
  }
  std::vector<double> multiply(const std::vector<double>& x) const {
    std::vector<double> y(out, 0);
    for (int64_t n = 0; n < out; ++n)
      for (int64_t k = 0; k < in; ++k) y[n] += x[k] * values[n * in + k];
    return y;
  }
  int64_t out, in;
  std::vector<float> values;
};

template <class T>
void run_experts(Isa isa, const Case& c, bool before, bool accumulate) {
  SCOPED_TRACE(fmt::format("{} hidden {} width {} format {} before {}", name(isa), c.hidden, c.width,
                           static_cast<int>(c.format), before));
  constexpr int64_t kTokens = 23;
  Rng rng(2);
  Machine m(isa, 2);
  const Layer layer(rng, c);
  const ExpertWeights w = layer.weights(kActivations[1], before);
  const Matrix<T> x = random_matrix<T>(rng, kTokens, c.hidden, 1, 2);
  const std::vector<int32_t> ids = random_ids(rng, kTokens, c);
  Matrix<float> weights = random_matrix<float>(rng, kTokens, c.top_k);
  const Matrix<T> start = random_matrix<T>(rng, kTokens, c.hidden);
  Matrix<T> y = accumulate ? start : Matrix<T>(kTokens, c.hidden);
  ops::experts<T>(m.cx, y.view(), x.view(), View<const int32_t, 2>(ids.data(), {kTokens, c.top_k}), weights.view(), w,
                  accumulate);

  std::vector<Decoded> w13(layer.w13.begin(), layer.w13.end()), w2(layer.w2.begin(), layer.w2.end());
  // Rounded to T where the header says so, in double precision elsewhere: a flipped rounding of an intermediate value
  // moves the result by its share only, hence a tolerance relative to the whole row.
  for (int64_t t = 0; t < kTokens; ++t) {
    std::vector<double> want(c.hidden, 0), row(c.hidden);
    for (int64_t i = 0; i < c.hidden; ++i) row[i] = as_float(x(t, i)), want[i] = accumulate ? as_float(start(t, i)) : 0;
    for (int64_t j = 0; j < c.top_k; ++j) {
      const int32_t e = ids[t * c.top_k + j];
      const std::vector<double> h = w13[e].multiply(row);
      std::vector<double> act(c.width);
      for (int64_t i = 0; i < c.width; ++i)
        act[i] =
            as_float(to<T>((before ? weights(t, j) : 1.0) *
                           activate_exactly(w.activation, as_float(to<T>(h[2 * i])), as_float(to<T>(h[2 * i + 1])))));
      const std::vector<double> part = w2[e].multiply(act);
      for (int64_t i = 0; i < c.hidden; ++i) want[i] += before ? part[i] : weights(t, j) * as_float(to<T>(part[i]));
    }
    double largest = 0;
    for (double v : want) largest = std::max(largest, std::abs(v));
    for (int64_t i = 0; i < c.hidden; ++i)
      ASSERT_NEAR(as_float(y(t, i)), want[i], 2 * kRounding<T> * largest + 1e-6) << t;
  }

  // The same rows alone, and in a random part of the batch.
  const auto run_rows = [&](const std::vector<int64_t>& order, int threads) {
    Machine other(isa, threads);
    const int64_t n = order.size();
    const Matrix<T> px = pick(x, order);
    const Matrix<float> pw = pick(weights, order);
    Matrix<T> py = accumulate ? pick(start, order) : Matrix<T>(n, c.hidden);
    std::vector<int32_t> pids;
    for (int64_t t : order) pids.insert(pids.end(), &ids[t * c.top_k], &ids[t * c.top_k] + c.top_k);
    ops::experts<T>(other.cx, py.view(), px.view(), View<const int32_t, 2>(pids.data(), {n, c.top_k}), pw.view(), w,
                    accumulate);
    EXPECT_TRUE(same_bits(py, pick(y, order))) << n << " rows, " << threads << " threads";
    EXPECT_LE(other.workspace.peak(),
              ops::experts_workspace_bytes({n, c.top_k, c.hidden, c.width, c.experts}, threads));
  };
  for (int64_t t = 0; t < kTokens; t += 5) run_rows({t}, 1 + t % 3);
  for (int threads : {1, 2, 3}) run_rows(random_rows(rng, uniform(rng, 2, 23), kTokens), threads);
}

TEST(Experts, AgreeWithDoublePrecisionAndRowsStandAlone) {
  for (Isa isa : available_isas())
    for (const Case& c : kCases)
      for (bool before : {false, true}) {
        run_experts<bf16>(isa, c, before, false);
        run_experts<bf16>(isa, c, before, true);
        run_experts<float>(isa, c, before, false);
      }
}

}  // namespace
}  // namespace nib
