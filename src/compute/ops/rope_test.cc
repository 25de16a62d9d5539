#include "compute/ops/rope.h"

#include "compute/ops/test_support.h"

namespace nib {
namespace {

constexpr int64_t kHeads = 3;

// Two sequences at positions of their own, in a matrix whose rows lie apart.
template <class T>
void run_rope(Isa isa, int64_t head_dim, int64_t start) {
  Rng rng(1);
  Machine m(isa, 2);
  const int64_t half = head_dim / 2;
  const SequenceRows batch[] = {{0, 4, start}, {4, 3, 2 * start + 1}};
  Matrix<T> x = random_matrix<T>(rng, 7, kHeads * head_dim, 1, 2);
  const Matrix<T> before = x;
  const Matrix<float> f = random_matrix<float>(rng, 1, half);
  Matrix<float> table(7, head_dim);
  ops::rotary_table(m.cx, table.view(), batch, vector_view(f));
  ops::rope<T>(m.cx, x.view(), table.view());
  for (const SequenceRows& s : batch)
    for (int64_t t = s.begin; t < s.begin + s.count; ++t)
      for (int64_t h = 0; h < kHeads; ++h)
        for (int64_t i = 0; i < half; ++i) {
          const double angle = static_cast<float>(s.start + t - s.begin) * f(0, i);  // FP32 by definition
          const double a = as_float(before(t, h * head_dim + i)), b = as_float(before(t, h * head_dim + i + half));
          const double y = a * std::cos(angle) - b * std::sin(angle), z = b * std::cos(angle) + a * std::sin(angle);
          ASSERT_NEAR(as_float(x(t, h * head_dim + i)), y, kRounding<T> * std::abs(y) + kSumError) << name(isa);
          ASSERT_NEAR(as_float(x(t, h * head_dim + i + half)), z, kRounding<T> * std::abs(z) + kSumError) << name(isa);
        }
}

TEST(Rope, TurnsPairsOfHalvesByPositionTimesFrequency) {
  for (Isa isa : available_isas())
    for (int64_t head_dim : {2, 16, 40, 128})
      for (int64_t start : {0, 5, 4000}) run_rope<float>(isa, head_dim, start), run_rope<bf16>(isa, head_dim, start);
}

}  // namespace
}  // namespace nib
