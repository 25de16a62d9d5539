#include "compute/ops/depth_mix.h"

#include "compute/ops/test_support.h"

namespace nib {
namespace {

struct Case {
  int64_t hidden;
  int outputs, sources;
};
constexpr Case kCases[] = {{64, 1, 2}, {224, 3, 3}, {96, 1, 9}, {4608, 3, 9}, {33, 2, 16}, {224, 1, 1}};

template <class T>
std::vector<double> mixture(const std::vector<Matrix<T>>& sources, const Matrix<float>& query, const DepthMixParams& p,
                            int64_t t) {
  const int64_t hidden = query.columns();
  std::vector<double> a(sources.size()), h(hidden, 0);
  double total = 0;
  for (size_t j = 0; j < sources.size(); ++j) {
    double squares = 0, dot = 0;
    for (int64_t i = 0; i < hidden; ++i) {
      const double v = as_float(sources[j](t, i));
      squares += v * v, dot += v * query(0, i);
    }
    total += a[j] = std::exp(p.logit_scale * dot / std::sqrt(squares / hidden + p.source_eps));
  }
  for (size_t j = 0; j < sources.size(); ++j)
    for (int64_t i = 0; i < hidden; ++i) h[i] += a[j] / total * as_float(sources[j](t, i));
  return h;
}

template <class T>
struct Problem {
  Problem(Rng& rng, const Case& c) {
    for (int j = 0; j < c.sources; ++j) sources.push_back(random_matrix<T>(rng, kTokens, c.hidden, 1.0f + j, j));
    for (int m = 0; m < c.outputs; ++m) {
      queries.push_back(random_matrix<float>(rng, 1, c.hidden, 1 / std::sqrt(static_cast<float>(c.hidden))));
      gains.push_back(random_matrix<T>(rng, 1, c.hidden));
    }
  }
  static constexpr int64_t kTokens = 6;
  std::vector<Matrix<T>> sources, gains;
  std::vector<Matrix<float>> queries;

  std::vector<Matrix<T>> run(Isa isa, int threads, int64_t begin, int64_t end, bool mixed, const DepthMixParams& p,
                             bool normed = true) const {
    Machine m(isa, threads);
    std::vector<Matrix<T>> y(queries.size(), Matrix<T>(end - begin, gains[0].columns(), 1));
    std::vector<View<T, 2>> outputs;
    std::vector<View<const T, 2>> inputs;
    std::vector<View<const float, 1>> q;
    std::vector<View<const T, 1>> g;
    for (size_t i = 0; i < y.size(); ++i) {
      outputs.push_back(y[i].view());
      q.push_back(mixed ? vector_view(queries[i]) : View<const float, 1>());
      g.push_back(normed ? vector_view(gains[i]) : View<const T, 1>());
    }
    for (const Matrix<T>& s : sources) inputs.push_back(rows(s.view(), begin, end));
    ops::depth_mix_norm<T>(m.cx, outputs, inputs, q, g, p);
    EXPECT_LE(m.workspace.peak(), ops::depth_mix_workspace_bytes(gains[0].columns(), threads));
    return y;
  }
};

template <class T>
void run_case(Isa isa, const Case& c) {
  SCOPED_TRACE(fmt::format("{} hidden {} outputs {} sources {}", name(isa), c.hidden, c.outputs, c.sources));
  Rng rng(1);
  const DepthMixParams p{1.5f, 1e-6f, 1e-5f};
  const Problem<T> problem(rng, c);
  const bool mixed = c.sources > 1;
  const std::vector<Matrix<T>> y = problem.run(isa, 2, 0, 6, mixed, p);
  for (int m = 0; m < c.outputs; ++m)
    for (int64_t t = 0; t < 6; ++t) {
      std::vector<double> h = mixture(problem.sources, problem.queries[m], p, t);
      double squares = 0;
      for (double v : h) squares += v * v;
      for (int64_t i = 0; i < c.hidden; ++i) {
        const double want = h[i] / std::sqrt(squares / c.hidden + p.norm_eps) * as_float(problem.gains[m](0, i));
        ASSERT_NEAR(as_float(y[m](t, i)), want, kRounding<T> * std::abs(want) + 1e-4);
      }
    }
  const std::vector<Matrix<T>> plain = problem.run(isa, 2, 0, 6, mixed, p, /*normed=*/false);
  for (int m = 0; m < c.outputs; ++m)
    for (int64_t t = 0; t < 6; ++t) {
      const std::vector<double> h = mixture(problem.sources, problem.queries[m], p, t);
      for (int64_t i = 0; i < c.hidden; ++i)
        ASSERT_NEAR(as_float(plain[m](t, i)), h[i], kRounding<T> * std::abs(h[i]) + 1e-4);
    }
  for (int threads : {1, 3})
    for (int64_t t = 0; t < 6; ++t) {
      const std::vector<Matrix<T>> alone = problem.run(isa, threads, t, t + 1, mixed, p);
      for (int m = 0; m < c.outputs; ++m) EXPECT_TRUE(same_bits(alone[m].row(0), y[m].row(t), c.hidden));
    }
}

TEST(DepthMix, AgreesWithDoublePrecisionAndRowsStandAlone) {
  for (Isa isa : available_isas())
    for (const Case& c : kCases) run_case<float>(isa, c), run_case<bf16>(isa, c);
}

}  // namespace
}  // namespace nib
