#include "compute/ops/norm.h"

#include "compute/ops/attention.h"
#include "compute/ops/test_support.h"

namespace nib {
namespace {

constexpr int64_t kWidths[] = {1, 7, 16, 64, 96, 224, 1000, 4608};

template <class T>
double mean_square(const T* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(as_float(x[i])) * as_float(x[i]);
  return sum / n;
}

template <class T>
void expect_rounded(T got, double want) {
  ASSERT_NEAR(as_float(got), want, kRounding<T> * std::abs(want) + kSumError);
}

template <class T>
void run_rms_norm(Isa isa) {
  Rng rng(1);
  Machine m(isa, 2);
  for (int64_t width : kWidths)
    for (bool weighted : {false, true}) {
      SCOPED_TRACE(fmt::format("{} width {}", name(isa), width));
      const Matrix<T> x = random_matrix<T>(rng, 5, width, 3.0f, 2), weight = random_matrix<T>(rng, 1, width);
      Matrix<T> y(5, width, 1), alone(5, width);
      const View<const T, 1> gain = weighted ? vector_view(weight) : View<const T, 1>();
      ops::rms_norm<T>(m.cx, y.view(), x.view(), gain, 1e-5f);
      for (int64_t t = 0; t < 5; ++t) {
        const double r = 1 / std::sqrt(mean_square(x.row(t), width) + 1e-5);
        for (int64_t c = 0; c < width; ++c)
          expect_rounded(y(t, c), as_float(x(t, c)) * r * (weighted ? as_float(weight(0, c)) : 1.0));
        ops::rms_norm<T>(m.cx, rows(alone.view(), t, t + 1), rows(x.view(), t, t + 1), gain, 1e-5f);
      }
      EXPECT_TRUE(same_bits(y, alone));
    }
}

TEST(Norm, RmsNormAgreesWithDoublePrecisionAndRowsStandAlone) {
  for (Isa isa : available_isas()) run_rms_norm<float>(isa), run_rms_norm<bf16>(isa);
}

template <class T, class E>
void run_embed_norm(Isa isa, WeightFormat format) {
  Rng rng(2);
  Machine m(isa, 2);
  const RandomWeight table = random_weight(rng, format, 11, 96);
  const Matrix<T> weight = random_matrix<T>(rng, 1, 96);
  const int32_t ids[4] = {10, 0, 3, 3};
  Matrix<T> y(4, 96);
  ops::embed_norm<T>(m.cx, y.view(), View<const int32_t, 1>(ids, {4}), table.weight, vector_view(weight), 1e-6f);
  for (int64_t t = 0; t < 4; ++t) {
    const E* row = static_cast<const E*>(table.weight.data) + ids[t] * 96;
    const double r = 1 / std::sqrt(mean_square(row, 96) + 1e-6);
    for (int64_t c = 0; c < 96; ++c) expect_rounded(y(t, c), as_float(row[c]) * r * as_float(weight(0, c)));
  }
}

TEST(Norm, EmbedNormReadsBothKindsOfTable) {
  for (Isa isa : available_isas()) {
    run_embed_norm<float, float>(isa, WeightFormat::kF32);
    run_embed_norm<float, bf16>(isa, WeightFormat::kBF16);
    run_embed_norm<bf16, float>(isa, WeightFormat::kF32);
    run_embed_norm<bf16, bf16>(isa, WeightFormat::kBF16);
  }
}

template <class T>
void run_add(Isa isa) {
  Rng rng(3);
  Machine m(isa, 2);
  Matrix<T> x = random_matrix<T>(rng, 3, 77, 1, 2);
  const Matrix<T> before = x, delta = random_matrix<T>(rng, 3, 77);
  ops::add<T>(m.cx, x.view(), x.view(), delta.view());
  for (int64_t t = 0; t < 3; ++t)
    for (int64_t c = 0; c < 77; ++c)
      ASSERT_EQ(as_float(x(t, c)), as_float(to<T>(as_float(before(t, c)) + as_float(delta(t, c))))) << name(isa);
}

TEST(Norm, AddRoundsTheExactSumOnceEvenInPlace) {
  for (Isa isa : available_isas()) run_add<float>(isa), run_add<bf16>(isa);
}

struct HeadCase {
  int64_t heads, head_dim;
  float limit;
  int scales;  // 0: none, 1: [head_dim], 2: [heads * head_dim]
  bool tau;
};
constexpr HeadCase kHeadCases[] = {
    {4, 64, 5.0f, 0, false},  {2, 16, 3.5f, 1, true}, {3, 24, 4.0f, 2, true},
    {12, 128, 9.0f, 0, true}, {4, 8, 0.0f, 1, false},  // no limit: the scales alone
    {1, 7, 2.0f, 2, false},
};

template <class T>
void run_clip(Isa isa) {
  Rng rng(4);
  Machine m(isa, 2);
  for (const HeadCase& c : kHeadCases) {
    SCOPED_TRACE(fmt::format("{} heads {} x {}", name(isa), c.heads, c.head_dim));
    const int64_t width = c.heads * c.head_dim;
    Matrix<T> x = random_matrix<T>(rng, 6, width, 1, 3);
    for (int64_t d = 0; d < c.head_dim; ++d) x(2, d) = to<T>(0);  // a zero head stays zero
    const Matrix<T> before = x, scales = random_matrix<T>(rng, 1, c.scales == 1 ? c.head_dim : width);
    Matrix<T> alone = before;
    const Matrix<float> tau = random_matrix<float>(rng, 1, 6);
    const View<const T, 1> s = c.scales ? vector_view(scales) : View<const T, 1>();
    const View<const float, 1> tau_view = c.tau ? vector_view(tau) : View<const float, 1>();
    ops::clip_heads<T>(m.cx, x.view(), c.head_dim, c.limit, s, tau_view);
    for (int64_t t = 0; t < 6; ++t) {
      for (int64_t h = 0; h < c.heads; ++h) {
        std::vector<double> y(c.head_dim);
        double squares = 0;
        for (int64_t d = 0; d < c.head_dim; ++d) {
          const int64_t i = h * c.head_dim + d;
          y[d] = as_float(before(t, i)) * (c.scales == 0 ? 1.0 : as_float(scales(0, c.scales == 1 ? d : i)));
          squares += y[d] * y[d];
        }
        const double factor = c.limit > 0 && squares > 0 ? std::min(1.0, c.limit / std::sqrt(squares)) : 1.0;
        for (int64_t d = 0; d < c.head_dim; ++d) {
          const double want = y[d] * factor * (c.tau ? tau(0, t) : 1.0);
          ASSERT_NEAR(as_float(x(t, h * c.head_dim + d)), want, 2 * kRounding<T> * std::abs(want) + kSumError);
        }
      }
      const View<const float, 1> one = c.tau ? View<const float, 1>(&tau(0, t), {1}) : View<const float, 1>();
      ops::clip_heads<T>(m.cx, rows(alone.view(), t, t + 1), c.head_dim, c.limit, s, one);
    }
    EXPECT_TRUE(same_bits(x, alone));
  }
}

TEST(Norm, ClipShortensLongHeadsAndLeavesShortOnes) {
  for (Isa isa : available_isas()) run_clip<float>(isa), run_clip<bf16>(isa);
}

template <class T>
void run_norm_heads(Isa isa) {
  Rng rng(5);
  Machine m(isa, 2);
  for (const HeadCase& c : kHeadCases) {
    const int64_t width = c.heads * c.head_dim;
    Matrix<T> x = random_matrix<T>(rng, 4, width, 2, 1);
    const Matrix<T> before = x, weight = random_matrix<T>(rng, 1, c.head_dim);
    const Matrix<float> tau = random_matrix<float>(rng, 1, 4);
    const bool weighted = c.scales != 0;
    ops::norm_heads<T>(m.cx, x.view(), c.head_dim, weighted ? vector_view(weight) : View<const T, 1>(), 1e-6f,
                       c.tau ? vector_view(tau) : View<const float, 1>());
    for (int64_t t = 0; t < 4; ++t)
      for (int64_t i = 0; i < width; ++i) {
        const int64_t d = i % c.head_dim;
        const double r = 1 / std::sqrt(mean_square(before.row(t) + i - d, c.head_dim) + 1e-6);
        const double want =
            as_float(before(t, i)) * r * (weighted ? as_float(weight(0, d)) : 1.0) * (c.tau ? tau(0, t) : 1.0);
        ASSERT_NEAR(as_float(x(t, i)), want, 2 * kRounding<T> * std::abs(want) + kSumError) << name(isa);
      }
  }
}

TEST(Norm, NormHeadsWorksPerHead) {
  for (Isa isa : available_isas()) run_norm_heads<float>(isa), run_norm_heads<bf16>(isa);
}

double gate_value(ops::GateAct act, double g) {
  const double sigmoid = 1 / (1 + std::exp(-g));
  return act == ops::GateAct::kSigmoid ? sigmoid
         : act == ops::GateAct::kSilu  ? g * sigmoid
         : act == ops::GateAct::kTanh  ? std::tanh(g)
                                       : g;
}

template <class T>
void run_gate(Isa isa) {
  Rng rng(6);
  Machine m(isa, 2);
  for (int64_t gates : {3, 3 * 24})
    for (auto act : {ops::GateAct::kSigmoid, ops::GateAct::kSilu, ops::GateAct::kTanh, ops::GateAct::kNone}) {
      Matrix<T> y = random_matrix<T>(rng, 5, 3 * 24, 1, 1), gate = random_matrix<T>(rng, 5, gates, 2.0f, 1);
      gate(0, 0) = to<T>(90.0f), gate(1, 0) = to<T>(-90.0f);  // no overflow
      const Matrix<T> before = y;
      Matrix<T> alone = y;
      ops::apply_gate<T>(m.cx, y.view(), gate.view(), 3, act);
      for (int64_t t = 0; t < 5; ++t) {
        for (int64_t c = 0; c < 72; ++c) {
          const double want = as_float(before(t, c)) * gate_value(act, as_float(gate(t, gates == 3 ? c / 24 : c)));
          ASSERT_NEAR(as_float(y(t, c)), want, kRounding<T> * std::abs(want) + kSumError) << name(isa);
        }
        ops::apply_gate<T>(m.cx, rows(alone.view(), t, t + 1), rows(View<const T, 2>(gate.view()), t, t + 1), 3, act);
      }
      EXPECT_TRUE(same_bits(y, alone));
    }
}

TEST(Norm, GatesMultiplyOneHeadOrOneChannel) {
  for (Isa isa : available_isas()) run_gate<float>(isa), run_gate<bf16>(isa);
}

TEST(Norm, SoftCapDividesByMupThenCaps) {
  for (Isa isa : available_isas())
    for (float cap : {0.0f, 30.0f}) {
      Rng rng(7);
      Machine m(isa, 2);
      Matrix<float> z = random_matrix<float>(rng, 3, 1003, 100.0f, 2);
      z(1, 1) = 1e30f;
      const Matrix<float> before = z;
      ops::soft_cap(m.cx, z.view(), 3.0f, cap);
      for (int64_t t = 0; t < 3; ++t)
        for (int64_t i = 0; i < 1003; ++i) {
          const double x = before(t, i) / 3.0, want = cap > 0 ? cap * std::tanh(x / cap) : x;
          ASSERT_NEAR(z(t, i), want, 2e-6 * std::abs(want) + kSumError) << name(isa);
        }
    }
}

}  // namespace
}  // namespace nib
