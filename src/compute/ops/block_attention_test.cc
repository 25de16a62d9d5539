#include "compute/ops/block_attention.h"

#include <numeric>

#include "compute/ops/test_support.h"

namespace nib {
namespace {

struct Shape {
  int64_t heads, kv_heads, head_dim, slots;
};
struct Span {
  int64_t begin, end;  // committed positions
};

// Keys and values of one sequence by position, the block's behind the context's.
template <class T>
struct Sequence {
  Span context;
  Matrix<T> q, k, v;

  Sequence(Rng& rng, const Shape& s, const Span& c)
      : context(c),
        q(random_matrix<T>(rng, s.slots, s.heads * s.head_dim, 1)),
        k(random_matrix<T>(rng, c.end + s.slots, s.kv_heads * s.head_dim, 1)),
        v(random_matrix<T>(rng, c.end + s.slots, s.kv_heads * s.head_dim, 1)) {}
};

constexpr float kScale = 0.3f;

// Runs the blocks as one batch over a cache in random order, NaN wherever nothing was written.
template <class T>
Matrix<T> attend(Isa isa, const Shape& shape, const std::vector<const Sequence<T>*>& batch, int64_t block_size,
                 unsigned seed) {
  const int64_t count = static_cast<int64_t>(batch.size()), width = shape.kv_heads * shape.head_dim;
  int64_t most = 0;
  for (const auto* s : batch) most = std::max(most, (s->context.end + block_size - 1) / block_size);
  std::vector<int32_t> table(count * most);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), Rng(seed));
  Matrix<T> k_cache(count * most * block_size + 1, width), v_cache(count * most * block_size + 1, width);
  Matrix<T> q(count * shape.slots, shape.heads * shape.head_dim, 5), k(count * shape.slots, width, 3),
      v(count * shape.slots, width, 3), out(count * shape.slots, shape.heads * shape.head_dim, 2);
  const auto copy = [](Matrix<T>& to_matrix, int64_t row, const Matrix<T>& from, int64_t from_row) {
    std::copy_n(from.row(from_row), from.columns(), to_matrix.view().row(row));
  };
  std::vector<BlockRows> blocks;
  for (int64_t b = 0; b < count; ++b) {
    const Sequence<T>& s = *batch[b];
    blocks.push_back({b * shape.slots, shape.slots, s.context.begin, s.context.end});
    for (int64_t p = s.context.begin; p < s.context.end; ++p) {
      const int64_t row = table[b * most + p / block_size] * block_size + p % block_size;
      copy(k_cache, row, s.k, p), copy(v_cache, row, s.v, p);
    }
    for (int64_t i = 0; i < shape.slots; ++i) {
      copy(q, b * shape.slots + i, s.q, i);
      copy(k, b * shape.slots + i, s.k, s.context.end + i), copy(v, b * shape.slots + i, s.v, s.context.end + i);
    }
  }
  const typename View<T, 4>::Shape cache = {count * most, block_size, shape.kv_heads, shape.head_dim};
  const PagedKv<T> context{View<T, 4>(k_cache.view().data(), cache),
                           View<T, 4>(v_cache.view().data(), cache),
                           {table.data(), {count, most}}};
  Machine m(isa, 2, ops::block_attention_workspace_bytes(shape.slots, shape.heads, shape.head_dim, 2));
  ops::block_attention<T>(m.cx, out.view(), q.view(), k.view(), v.view(), context, blocks, kScale);
  return out;
}

// One head of one slot.
template <class T>
std::vector<double> expected(const Shape& shape, const Sequence<T>& s, int64_t t, int64_t h) {
  const int64_t column = h / (shape.heads / shape.kv_heads) * shape.head_dim;
  std::vector<double> out(shape.head_dim, 0.0);
  double total = 0;
  for (int64_t p = s.context.begin; p < s.k.rows(); ++p) {
    double dot = 0;
    for (int64_t i = 0; i < shape.head_dim; ++i)
      dot += static_cast<double>(as_float(s.q(t, h * shape.head_dim + i))) * as_float(s.k(p, column + i));
    const double weight = std::exp(kScale * dot);
    for (int64_t d = 0; d < shape.head_dim; ++d) out[d] += weight * as_float(s.v(p, column + d));
    total += weight;
  }
  for (double& x : out) x /= total;
  return out;
}

constexpr Shape kShapes[] = {{4, 2, 16, 7},                     // as the reference drafters
                             {1, 1, 2, 1},                      // the least
                             {6, 2, 24, 8},                     // no whole number of vectors
                             {7, 1, 32, 7},                     // all heads share one
                             {3, 3, 64, 3},                     // none does
                             {4, 2, 128, 15}, {2, 1, 10, 70}};  // a block of more rows than a block of keys
constexpr Span kContexts[] = {{0, 0}, {0, 1}, {0, 64}, {3, 64}, {60, 131}, {64, 65}, {200, 200}, {0, 300}};

template <class T>
void run_against_formula(Isa isa, const Shape& shape) {
  Rng rng(2);
  for (const Span& c : kContexts) {
    const Sequence<T> s(rng, shape, c);
    const Matrix<T> out = attend<T>(isa, shape, {&s}, 16, 1);
    for (int64_t t = 0; t < shape.slots; ++t)
      for (int64_t h = 0; h < shape.heads; ++h) {
        const std::vector<double> want = expected(shape, s, t, h);
        for (int64_t d = 0; d < shape.head_dim; ++d)
          ASSERT_NEAR(as_float(out(t, h * shape.head_dim + d)), want[d], kRounding<T> * std::abs(want[d]) + 1e-5)
              << name(isa) << " context " << c.begin << " to " << c.end;
      }
  }
}

TEST(BlockAttention, SeesTheContextAndTheWholeBlock) {
  for (Isa isa : available_isas())
    for (const Shape& s : kShapes) run_against_formula<float>(isa, s), run_against_formula<bf16>(isa, s);
}

template <class T>
void run_alone_and_in_a_batch(Isa isa, const Shape& shape) {
  Rng rng(3);
  std::vector<Sequence<T>> sequences;
  for (const Span& c : kContexts) sequences.emplace_back(rng, shape, c);
  std::vector<const Sequence<T>*> batch;
  for (const auto& s : sequences) batch.push_back(&s);
  for (int64_t block_size : {1, 16, 48}) {
    const Matrix<T> together = attend<T>(isa, shape, batch, block_size, static_cast<unsigned>(block_size));
    for (size_t i = 0; i < batch.size(); ++i) {
      const Matrix<T> alone = attend<T>(isa, shape, {batch[i]}, 7, 1);
      for (int64_t t = 0; t < shape.slots; ++t)
        ASSERT_TRUE(same_bits(alone.row(t), together.row(i * shape.slots + t), alone.columns()))
            << name(isa) << " context " << i << " blocks of " << block_size;
    }
  }
}

TEST(BlockAttention, ABlockAloneIsTheSameBlockInABatchUnderAnyPaging) {
  for (Isa isa : available_isas())
    for (const Shape& s : kShapes) run_alone_and_in_a_batch<float>(isa, s), run_alone_and_in_a_batch<bf16>(isa, s);
}

TEST(BlockAttention, ANotANumberStaysInItsSequence) {
  constexpr Shape kShape = {4, 2, 16, 7};
  for (Isa isa : available_isas()) {
    Rng rng(4);
    const Sequence<float> good(rng, kShape, {0, 70});
    Sequence<float> bad(rng, kShape, {0, 70});
    bad.k(69, 3) = NAN;
    const Matrix<float> out = attend<float>(isa, kShape, {&bad, &good}, 16, 1);
    EXPECT_TRUE(std::isnan(out(0, 0))) << name(isa);
    const Matrix<float> alone = attend<float>(isa, kShape, {&good}, 16, 1);
    for (int64_t t = 0; t < kShape.slots; ++t)
      EXPECT_TRUE(same_bits(alone.row(t), out.row(kShape.slots + t), alone.columns())) << name(isa);
  }
}

}  // namespace
}  // namespace nib
