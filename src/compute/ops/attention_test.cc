#include "compute/ops/attention.h"

#include <algorithm>
#include <numeric>

#include "compute/ops/test_support.h"

namespace nib {
namespace {

TEST(Attention, TauGrowsWithTheLogarithmOfThePosition) {
  const Tau tau{100, 0.1}, none{};
  EXPECT_EQ(tau(0), 1.0f);
  EXPECT_EQ(tau(99), 1.0f);
  EXPECT_NEAR(tau(999), 1 + 0.1 * std::log(10.0), 1e-6);
  EXPECT_EQ(none(1 << 20), 1.0f);
}

template <class T>
void run_profile(Isa isa, int64_t heads, int64_t d_rel, int64_t columns, bool with_tau) {
  Rng rng(1);
  Machine m(isa, 2);
  const Matrix<T> r = random_matrix<T>(rng, 5, heads * d_rel, 1, 3),
                  table = random_matrix<T>(rng, d_rel, columns, 1, 1);
  const Matrix<float> tau = random_matrix<float>(rng, 1, 5);
  const View<const float, 1> tau_view = with_tau ? vector_view(tau) : View<const float, 1>();
  Matrix<T> profile(5, heads * columns), alone(5, heads * columns);
  const auto view = [&](Matrix<T>& p, int64_t begin, int64_t end) {
    return View<T, 3>(&p(begin, 0), {end - begin, heads, columns});
  };
  ops::relative_profile<T>(m.cx, view(profile, 0, 5), r.view(), table.view(), tau_view);
  for (int64_t t = 0; t < 5; ++t) {
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t e = 0; e < columns; ++e) {
        double sum = 0, terms = 0;
        for (int64_t d = 0; d < d_rel; ++d) {
          const double term = static_cast<double>(as_float(r(t, h * d_rel + d))) * as_float(table(d, e));
          sum += term, terms += std::abs(term);
        }
        const double scale = with_tau ? tau(0, t) : 1;
        ASSERT_NEAR(as_float(profile(t, h * columns + e)), sum * scale,
                    std::abs(scale) * (2 * kRounding<T> * std::abs(sum) + kSumError * terms));
      }
    ops::relative_profile<T>(m.cx, view(alone, t, t + 1), rows(r.view(), t, t + 1), table.view(),
                             with_tau ? View<const float, 1>(&tau(0, t), {1}) : View<const float, 1>());
  }
  EXPECT_TRUE(same_bits(profile, alone));
}

TEST(Attention, TheProfileIsAProductWithTheTable) {
  for (Isa isa : available_isas())
    for (bool tau : {false, true}) {
      run_profile<float>(isa, 4, 16, 256, tau), run_profile<bf16>(isa, 4, 16, 256, tau);
      run_profile<float>(isa, 3, 8, 33, tau), run_profile<bf16>(isa, 3, 8, 33, tau);
      run_profile<bf16>(isa, 12, 64, 1025, tau);
    }
}

struct Case {
  int64_t heads, kv_heads, head_dim, block_size;
  int64_t window, extent;
  bool clamp, sink;
  int64_t length;
};
constexpr Case kCases[] = {
    {4, 2, 64, 16, 32, 32, false, true, 150},    // nano's shape, a window of two blocks
    {4, 2, 64, 16, 0, 48, false, true, 150},     // full attention, zero bias beyond the extent
    {4, 1, 16, 8, 0, 16, true, false, 90},       // the last bias goes on
    {2, 2, 16, 4, 7, 7, false, true, 70},        // a window that no block divides
    {3, 1, 24, 16, 100, 0, false, false, 130},   // no bias at all; an odd head size
    {12, 2, 128, 64, 0, 200, false, true, 200},  // a rank of Inkling 2 Small
    {1, 1, 8, 16, 1, 1, false, true, 20},        // a row sees itself alone
};

// Two sequences whose queries, keys and biases are known whole; block 0 and all unused blocks stay poisoned.
template <class T>
struct Problem {
  Problem(Rng& rng, const Case& c) : c(c) {
    for (int64_t n : {c.length, c.length / 2 + 1}) {
      q.push_back(random_matrix<T>(rng, n, c.heads * c.head_dim));
      k.push_back(random_matrix<T>(rng, n, c.kv_heads * c.head_dim));
      v.push_back(random_matrix<T>(rng, n, c.kv_heads * c.head_dim));
      profile.push_back(random_matrix<T>(rng, n, c.heads * columns()));
      sink.push_back(random_matrix<float>(rng, n, c.heads));
    }
    sink[0](0, 0) = 80, sink[0](1, 0) = -80;
    params = {1 / std::sqrt(static_cast<float>(c.head_dim)), c.window, c.extent, c.clamp};
  }
  int64_t columns() const { return c.extent + 1; }
  int64_t first(int64_t p) const { return c.window ? std::max<int64_t>(0, p - c.window + 1) : 0; }

  double score(int s, int64_t p, int64_t h, int64_t key) const {
    double dot = 0;
    for (int64_t d = 0; d < c.head_dim; ++d)
      dot += static_cast<double>(as_float(q[s](p, h * c.head_dim + d))) *
             as_float(k[s](key, h / (c.heads / c.kv_heads) * c.head_dim + d));
    const int64_t distance = p - key, e = distance < c.extent ? distance : c.clamp && c.extent ? c.extent - 1 : -1;
    return params.scale * dot + (e < 0 ? 0.0 : as_float(profile[s](p, h * columns() + e)));
  }
  std::vector<double> want(int s, int64_t p, int64_t h) const {
    std::vector<double> out(c.head_dim, 0);
    double total = c.sink ? std::exp(static_cast<double>(sink[s](p, h))) : 0;
    for (int64_t key = first(p); key <= p; ++key) {
      const double weight = std::exp(score(s, p, h, key));
      total += weight;
      for (int64_t d = 0; d < c.head_dim; ++d)
        out[d] += weight * as_float(v[s](key, h / (c.heads / c.kv_heads) * c.head_dim + d));
    }
    for (double& x : out) x /= total;
    return out;
  }

  const Case& c;
  std::vector<Matrix<T>> q, k, v, profile;
  std::vector<Matrix<float>> sink;
  AttentionParams params;
};

// Runs the sequences in steps of (rows of sequence 0, rows of sequence 1), with blocks in random places and the blocks
// behind the window taken away and poisoned.
template <class T>
class Runner {
 public:
  Runner(const Problem<T>& p, Isa isa, int threads, uint32_t seed) : p_(p), m_(isa, threads), rng_(seed) {
    blocks_each_ = (p.c.length + p.c.block_size - 1) / p.c.block_size + 1;
    const int64_t blocks = 2 * blocks_each_ + 3, block = p.c.block_size * p.c.kv_heads * p.c.head_dim;
    k_.assign(blocks * block, to<T>(NAN)), v_ = k_;
    free_.resize(blocks);
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), rng_);
    tables_.assign(2, std::vector<int32_t>(blocks_each_, -1));
    for (const Matrix<T>& q : p.q) out_.emplace_back(q.rows(), q.columns());
  }

  void step(int64_t first, int64_t second) {
    const Case& c = p_.c;
    const int64_t counts[2] = {first, second}, total = first + second;
    Matrix<T> q(total, c.heads * c.head_dim, 1), k(total, c.kv_heads * c.head_dim, 2),
        v = k, out(total, c.heads * c.head_dim, 3);
    Matrix<T> profile(total, c.heads * p_.columns());
    Matrix<float> sink(total, c.heads, 1);
    std::vector<SequenceRows> batch;
    std::vector<int32_t> tables;
    int64_t row = 0;
    for (int s = 0; s < 2; ++s) {
      if (counts[s] == 0) continue;
      batch.push_back({row, counts[s], done_[s]});
      prepare_blocks(s, done_[s], counts[s]);
      tables.insert(tables.end(), tables_[s].begin(), tables_[s].end());
      for (int64_t t = done_[s]; t < done_[s] + counts[s]; ++t, ++row) {
        std::copy_n(p_.q[s].row(t), q.columns(), &q(row, 0));
        std::copy_n(p_.k[s].row(t), k.columns(), &k(row, 0));
        std::copy_n(p_.v[s].row(t), v.columns(), &v(row, 0));
        std::copy_n(p_.profile[s].row(t), profile.columns(), &profile(row, 0));
        std::copy_n(p_.sink[s].row(t), c.heads, &sink(row, 0));
      }
    }
    const int64_t sequences = batch.size(), blocks = k_.size() / (c.block_size * c.kv_heads * c.head_dim);
    const PagedKv<T> kv{View<T, 4>(k_.data(), {blocks, c.block_size, c.kv_heads, c.head_dim}),
                        View<T, 4>(v_.data(), {blocks, c.block_size, c.kv_heads, c.head_dim}),
                        View<const int32_t, 2>(tables.data(), {sequences, blocks_each_})};
    ops::write_kv<T>(m_.cx, kv, k.view(), v.view(), batch);
    ops::relative_attention<T>(m_.cx, out.view(), q.view(), kv,
                               View<const T, 3>(profile.row(0), {total, c.heads, p_.columns()}),
                               c.sink ? View<const float, 2>(sink.view()) : View<const float, 2>(), batch, p_.params);
    row = 0;
    for (int s = 0; s < 2; ++s)
      for (int64_t i = 0; i < counts[s]; ++i, ++row) std::copy_n(out.row(row), out.columns(), &out_[s](done_[s]++, 0));
    EXPECT_LE(m_.workspace.peak(), ops::attention_workspace_bytes(c.heads, c.head_dim, m_.pool.num_threads()));
  }
  const std::vector<Matrix<T>>& outputs() const { return out_; }

 private:
  void prepare_blocks(int s, int64_t start, int64_t count) {
    const Case& c = p_.c;
    const int64_t size = c.block_size * c.kv_heads * c.head_dim;
    for (int64_t b = start / c.block_size; b <= (start + count - 1) / c.block_size; ++b)
      if (tables_[s][b] < 0) tables_[s][b] = free_.back(), free_.pop_back();
    for (int64_t b = 0; (b + 1) * c.block_size <= p_.first(start); ++b) {
      if (tables_[s][b] < 0) continue;
      std::fill_n(&k_[tables_[s][b] * size], size, to<T>(NAN));
      std::fill_n(&v_[tables_[s][b] * size], size, to<T>(NAN));
      free_.insert(free_.begin(), tables_[s][b]);
      tables_[s][b] = -1;
    }
  }

  const Problem<T>& p_;
  Machine m_;
  Rng rng_;
  int64_t blocks_each_, done_[2] = {0, 0};
  std::vector<T> k_, v_;
  std::vector<int32_t> free_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<Matrix<T>> out_;
};

template <class T>
void run_case(Isa isa, const Case& c) {
  SCOPED_TRACE(
      fmt::format("{} heads {} dim {} window {} extent {}", name(isa), c.heads, c.head_dim, c.window, c.extent));
  Rng rng(2);
  const Problem<T> p(rng, c);
  const int64_t second = p.q[1].rows();
  Runner<T> whole(p, isa, 2, 1);
  whole.step(c.length, second);
  for (int s = 0; s < 2; ++s)
    for (int64_t t = 0; t < p.q[s].rows(); t += t < 3 ? 1 : 7)
      for (int64_t h = 0; h < c.heads; ++h) {
        const std::vector<double> want = p.want(s, t, h);
        for (int64_t d = 0; d < c.head_dim; ++d)
          ASSERT_NEAR(as_float(whole.outputs()[s](t, h * c.head_dim + d)), want[d],
                      kRounding<T> * std::abs(want[d]) + 1e-5)
              << "sequence " << s << " position " << t << " head " << h;
      }

  const auto expect_same = [&](const Runner<T>& parts) {
    for (int s = 0; s < 2; ++s) EXPECT_TRUE(same_bits(parts.outputs()[s], whole.outputs()[s])) << "sequence " << s;
  };
  Runner<T> alone(p, isa, 1, 2);  // token by token, the sequences together where both go on
  for (int64_t t = 0; t < c.length; ++t) alone.step(1, t < second);
  expect_same(alone);
  for (uint32_t seed = 3; seed < 6; ++seed) {  // random chunks
    Runner<T> parts(p, isa, seed - 2, seed);
    for (int64_t a = 0, b = 0; a < c.length || b < second;) {
      const int64_t x = std::min<int64_t>(uniform(rng, 0, 40), c.length - a),
                    y = std::min<int64_t>(uniform(rng, 0, 30), second - b);
      if (x + y == 0) continue;
      parts.step(x, y);
      a += x, b += y;
    }
    expect_same(parts);
  }
}

TEST(Attention, AgreesWithDoublePrecisionAndAnyCutGivesTheSameBits) {
  for (Isa isa : available_isas())
    for (const Case& c : kCases) run_case<float>(isa, c), run_case<bf16>(isa, c);
}

}  // namespace
}  // namespace nib
