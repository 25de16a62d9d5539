#include "compute/ops/rope.h"

#include "compute/ops/test_support.h"

namespace nib {
namespace {

template <class T>
void run_rope(Isa isa, int64_t head_dim, int64_t start) {
  Rng rng(1);
  Machine m(isa, 2);
  const int64_t half = head_dim / 2, heads = 3;
  Matrix<T> x = random_matrix<T>(rng, 4, heads * head_dim, 1, 2);
  const Matrix<T> before = x;
  const Matrix<float> f = random_matrix<float>(rng, 1, half);
  ops::rope<T>(m.cx, x.view(), head_dim, start, vector_view(f));
  for (int64_t t = 0; t < 4; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<float>(start + t) * f(0, i);  // the product is FP32 by definition
        const double a = as_float(before(t, h * head_dim + i)), b = as_float(before(t, h * head_dim + i + half));
        const double y = a * std::cos(angle) - b * std::sin(angle), z = b * std::cos(angle) + a * std::sin(angle);
        ASSERT_NEAR(as_float(x(t, h * head_dim + i)), y, kRounding<T> * std::abs(y) + kSumError) << name(isa);
        ASSERT_NEAR(as_float(x(t, h * head_dim + i + half)), z, kRounding<T> * std::abs(z) + kSumError) << name(isa);
      }
}

TEST(Rope, TurnsPairsOfHalvesByPositionTimesFrequency) {
  for (Isa isa : available_isas())
    for (int64_t head_dim : {2, 16, 128})
      for (int64_t start : {0, 5, 4000}) run_rope<float>(isa, head_dim, start), run_rope<bf16>(isa, head_dim, start);
}

struct AttentionCase {
  int64_t heads, kv_heads, head_dim, context, block;
};
constexpr AttentionCase kCases[] = {{4, 2, 16, 20, 7}, {1, 1, 2, 0, 1}, {6, 2, 24, 1, 8}, {3, 1, 64, 100, 3}};

// Keys and values of context and block as one list.
template <class T>
double expected(const AttentionCase& c, const T* q, const Matrix<T>& k, const Matrix<T>& v, int64_t column, int64_t d) {
  double sum = 0, total = 0;
  for (int64_t s = 0; s < k.rows(); ++s) {
    double dot = 0;
    for (int64_t i = 0; i < c.head_dim; ++i) dot += static_cast<double>(as_float(q[i])) * as_float(k(s, column + i));
    const double weight = std::exp(0.3 * dot);
    sum += weight * as_float(v(s, column + d));
    total += weight;
  }
  return sum / total;
}

template <class T>
void run_attention(Isa isa, const AttentionCase& c) {
  Rng rng(2);
  Machine m(isa, 2);
  const int64_t keys = c.context + c.block, width = c.kv_heads * c.head_dim;
  const Matrix<T> q = random_matrix<T>(rng, c.block, c.heads * c.head_dim, 1, 1);
  const Matrix<T> k = random_matrix<T>(rng, keys, width, 1, 3), v = random_matrix<T>(rng, keys, width, 1, 3);
  Matrix<T> out(c.block, c.heads * c.head_dim, 2);
  const KeyValueRows<T> context{rows(k.view(), 0, c.context), rows(v.view(), 0, c.context)};
  const KeyValueRows<T> block{rows(k.view(), c.context, keys), rows(v.view(), c.context, keys)};
  ops::block_attention<T>(m.cx, out.view(), q.view(), context, block, c.head_dim, 0.3f);
  for (int64_t t = 0; t < c.block; ++t)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t d = 0; d < c.head_dim; ++d) {
        const int64_t column = h / (c.heads / c.kv_heads) * c.head_dim;
        const double want = expected(c, q.row(t) + h * c.head_dim, k, v, column, d);
        ASSERT_NEAR(as_float(out(t, h * c.head_dim + d)), want, kRounding<T> * std::abs(want) + 5e-6) << name(isa);
      }
}

TEST(Rope, BlockAttentionSeesTheContextAndTheWholeBlock) {
  for (Isa isa : available_isas())
    for (const AttentionCase& c : kCases) run_attention<float>(isa, c), run_attention<bf16>(isa, c);
}

}  // namespace
}  // namespace nib
