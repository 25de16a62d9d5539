#include "compute/ops/short_conv.h"

#include "compute/ops/test_support.h"

namespace nib {
namespace {

struct Case {
  int64_t channels, heads;  // heads of the generated taps; 0: none
  bool fixed, skip, residual;
  int64_t width, ring;
};
constexpr Case kCases[] = {
    {224, 0, true, true, true, 4, 3},    // attention and MoE output of nano
    {128, 2, false, true, false, 4, 3},  // dynamic K and V of full layers
    {32, 2, true, true, false, 4, 8},    // both kinds of taps, a ring for rejected rows
    {37, 0, true, false, false, 4, 5},   // odd channels, no skip
    {48, 3, false, false, true, 3, 4},   // another width
    {2048, 0, true, true, true, 4, 3},
};

// Two sequences of 12 and 9 tokens whose histories are known whole.
template <class T>
struct Problem {
  Problem(Rng& rng, const Case& c) : c(c) {
    for (int64_t n : {12, 9}) {
      x.push_back(random_matrix<T>(rng, n, c.channels));
      residual.push_back(random_matrix<T>(rng, n, c.channels));
      generated.push_back(random_matrix<T>(rng, n, std::max<int64_t>(1, c.heads) * c.width, 0.5f));
    }
    fixed = random_matrix<T>(rng, c.channels, c.width, 0.5f);
  }
  const Case& c;
  std::vector<Matrix<T>> x, residual, generated;
  Matrix<T> fixed{0, 0};

  double tap(int s, int64_t t, int64_t ch, int64_t j) const {
    double tap = c.fixed ? as_float(fixed(ch, j)) : 0;
    if (c.heads) tap += as_float(generated[s](t, ch / (c.channels / c.heads) * c.width + j));
    return tap;
  }
  double want(int s, int64_t t, int64_t ch) const {
    double sum = c.skip ? as_float(x[s](t, ch)) : 0;
    for (int64_t j = 0; j < c.width; ++j)
      if (t - (c.width - 1) + j >= 0) sum += tap(s, t, ch, j) * as_float(x[s](t - (c.width - 1) + j, ch));
    return c.residual ? as_float(to<T>(sum)) + as_float(residual[s](t, ch)) : sum;
  }
};

// Feeds the sequences in the given chunks (rows of sequence 0, rows of sequence 1 in each step) and gathers the
// outputs.
template <class T>
std::vector<Matrix<T>> run(Isa isa, const Problem<T>& p, const std::vector<std::pair<int64_t, int64_t>>& steps,
                           int threads) {
  const Case& c = p.c;
  Machine m(isa, threads);
  std::vector<T> ring(4 * c.ring * c.channels, to<T>(NAN));  // what lies before position 0 must not be read
  const int32_t slots[2] = {3, 1};
  std::vector<Matrix<T>> out = {Matrix<T>(12, c.channels), Matrix<T>(9, c.channels)};
  int64_t done[2] = {0, 0};
  for (auto [first, second] : steps) {
    const int64_t counts[2] = {first, second}, total = first + second;
    Matrix<T> x(total, c.channels, 2), y(total, c.channels, 1), residual(total, c.channels),
        generated(total, p.generated[0].columns());
    std::vector<SequenceRows> batch;
    std::vector<int32_t> used;
    int64_t row = 0;
    for (int s = 0; s < 2; ++s) {
      if (counts[s] == 0) continue;
      batch.push_back({row, counts[s], done[s]});
      used.push_back(slots[s]);
      for (int64_t i = 0; i < counts[s]; ++i, ++row) {
        std::copy_n(p.x[s].row(done[s] + i), c.channels, &x(row, 0));
        std::copy_n(p.residual[s].row(done[s] + i), c.channels, &residual(row, 0));
        std::copy_n(p.generated[s].row(done[s] + i), generated.columns(), &generated(row, 0));
      }
    }
    ConvTaps<T> taps;
    if (c.fixed) taps.fixed = p.fixed.view();
    if (c.heads) taps.generated = View<const T, 2>(generated.view());
    taps.skip = c.skip, taps.width = c.width;
    if (c.residual) y = residual;  // in place
    ops::short_conv<T>(m.cx, y.view(), x.view(), ConvState<T>{View<T, 3>(ring.data(), {4, c.ring, c.channels}), used},
                       batch, taps, c.residual ? View<const T, 2>(y.view()) : View<const T, 2>());
    row = 0;
    for (int s = 0; s < 2; ++s)
      for (int64_t i = 0; i < counts[s]; ++i, ++row) std::copy_n(y.row(row), c.channels, &out[s](done[s]++, 0));
  }
  return out;
}

template <class T>
void run_case(Isa isa, const Case& c) {
  SCOPED_TRACE(
      fmt::format("{} channels {} heads {} width {} ring {}", name(isa), c.channels, c.heads, c.width, c.ring));
  Rng rng(1);
  const Problem<T> p(rng, c);
  const std::vector<Matrix<T>> whole = run(isa, p, {{12, 9}}, 2);
  for (int s = 0; s < 2; ++s)
    for (int64_t t = 0; t < p.x[s].rows(); ++t)
      for (int64_t ch = 0; ch < c.channels; ++ch) {
        const double want = p.want(s, t, ch);
        // with a residual, the inner rounding comes on top
        ASSERT_NEAR(as_float(whole[s](t, ch)), want, 2 * kRounding<T> * (std::abs(want) + 1) + kSumError);
      }

  std::vector<std::vector<std::pair<int64_t, int64_t>>> cuts;
  for (int64_t cut = 0; cut <= 12; ++cut) cuts.push_back({{cut, 0}, {12 - cut, 9}});
  cuts.push_back({});
  for (int i = 0; i < 12; ++i) cuts.back().push_back({1, i < 9});  // token by token
  cuts.push_back({{5, 1}, {1, 1}, {1, 6}, {5, 1}});
  for (auto& steps : cuts) {
    std::erase(steps, std::pair<int64_t, int64_t>{0, 0});
    const std::vector<Matrix<T>> parts = run(isa, p, steps, 1 + steps.size() % 3);
    EXPECT_TRUE(same_bits(parts[0], whole[0])) << steps[0].first;
    EXPECT_TRUE(same_bits(parts[1], whole[1])) << steps[0].first;
  }
}

TEST(ShortConv, AnyCutGivesTheSameBits) {
  for (Isa isa : available_isas())
    for (const Case& c : kCases) run_case<float>(isa, c), run_case<bf16>(isa, c);
}

// Rows that are computed and then taken back leave the ring as if they had never been, when it is long enough.
TEST(ShortConv, RejectedRowsNeedNoRollback) {
  for (Isa isa : available_isas()) {
    Rng rng(2);
    Machine m(isa, 1);
    const Matrix<float> x = random_matrix<float>(rng, 10, 16), taps = random_matrix<float>(rng, 16, 4);
    const Matrix<float> draft = random_matrix<float>(rng, 4, 16);
    std::vector<float> ring(7 * 16, NAN);
    const int32_t slot = 0;
    const ConvState<float> state{View<float, 3>(ring.data(), {1, 7, 16}), {&slot, 1}};
    Matrix<float> want(10, 16), got(10, 16), scratch(4, 16);
    const auto feed = [&](Matrix<float>& y, const Matrix<float>& from, int64_t begin, int64_t end, int64_t start) {
      const SequenceRows s{0, end - begin, start};
      ops::short_conv<float>(m.cx, rows(y.view(), begin, end), rows(from.view(), begin, end), state, {&s, 1},
                             {taps.view(), {}, true, 4}, {});
    };
    feed(want, x, 0, 10, 0);
    feed(got, x, 0, 5, 0);
    feed(scratch, draft, 0, 4, 5);  // four wrong rows at positions 5 to 8
    feed(got, x, 5, 10, 5);
    EXPECT_TRUE(same_bits(got, want)) << name(isa);
  }
}

}  // namespace
}  // namespace nib
