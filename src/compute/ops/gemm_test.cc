#include "compute/ops/gemm.h"

#include "compute/ops/test_support.h"
#include "compute/ref/ref.h"

namespace nib {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kNvfp4,
                                     WeightFormat::kMxfp8};

struct Case {
  int64_t tokens, out, in;
};
constexpr Case kCases[] = {
    {1, 1, 1},        // the smallest
    {3, 5, 7},        // odd everywhere
    {2, 16, 24},      // a K tail of 8
    {17, 64, 64},     // the oracles
    {5, 33, 80},      // K of five NVFP4 blocks
    {33, 192, 224},   // nano: w13
    {1, 224, 96},     // nano: w2, decode
    {40, 100, 96},    // tails in tokens and outputs
    {1, 96, 4608},    // a quarter expert of Inkling 2 Small
    {19, 130, 1152},  // long K, tails elsewhere
};

bool fits(WeightFormat format, int64_t in) {
  return format == WeightFormat::kNvfp4 ? in % 16 == 0 : format != WeightFormat::kMxfp8 || in % 32 == 0;
}

// y against sums in double precision over weights decoded one by one.
template <class T, class Y>
void expect_close(const Matrix<Y>& y, const Matrix<T>& x, const Weight& w) {
  std::vector<float> row(w.in);
  for (int64_t n = 0; n < w.out; ++n) {
    ref::decode_row(row.data(), w, n);
    for (int64_t t = 0; t < x.rows(); ++t) {
      double sum = 0, terms = 0;
      for (int64_t k = 0; k < w.in; ++k) {
        const double term = static_cast<double>(as_float(x(t, k))) * row[k] * w.outer;
        sum += term, terms += std::abs(term);
      }
      ASSERT_NEAR(as_float(y(t, n)), sum, kRounding<Y> * std::abs(sum) + kSumError * terms)
          << "row " << t << " out " << n;
    }
  }
}

template <class T, class Y>
void run_cases(Isa isa) {
  Rng rng(1);
  Machine m(isa, 2);
  for (WeightFormat format : kFormats)
    for (const Case& c : kCases) {
      if (!fits(format, c.in)) continue;
      SCOPED_TRACE(
          fmt::format("{} format {}: {} x {} x {}", name(isa), static_cast<int>(format), c.tokens, c.out, c.in));
      const RandomWeight w = random_weight(rng, format, c.out, c.in);
      const Matrix<T> x = random_matrix<T>(rng, c.tokens, c.in, 1.0f, 5);
      Matrix<Y> y(c.tokens, c.out, 3);
      ops::gemm<T, Y>(m.cx, y.view(), x.view(), w.weight);
      expect_close(y, x, w.weight);
      for (int64_t t = 0; t < c.tokens; ++t)
        for (int64_t pad = 0; pad < 3; ++pad)
          ASSERT_TRUE(std::isnan(as_float(y.row(t)[c.out + pad]))) << "wrote behind row " << t;
    }
}

TEST(Gemm, EveryFormatAgreesWithDoublePrecision) {
  for (Isa isa : available_isas()) {
    run_cases<float, float>(isa);
    run_cases<bf16, bf16>(isa);
    run_cases<bf16, float>(isa);
  }
}

// Rows alone, in any company, in any place, on any number of threads.
template <class T, class Y>
void expect_rows_alone(Isa isa, WeightFormat format, int64_t out, int64_t in, int64_t step) {
  SCOPED_TRACE(fmt::format("{} format {}: {} x {}", name(isa), static_cast<int>(format), out, in));
  Rng rng(2);
  Machine one(isa, 1), two(isa, 2), three(isa, 3);
  const RandomWeight w = random_weight(rng, format, out, in);
  const Matrix<T> x = random_matrix<T>(rng, 40, in);
  Matrix<Y> alone(40, out);
  for (int64_t t = 0; t < 40; ++t)
    ops::gemm<T, Y>(one.cx, rows(alone.view(), t, t + 1), rows(x.view(), t, t + 1), w.weight);
  for (int64_t count = 1; count <= 40; count += step) {
    const std::vector<int64_t> order = random_rows(rng, count, 40);
    for (Machine* m : {&one, &two, &three}) {
      Matrix<Y> y(count, out, 1);
      ops::gemm<T, Y>(m->cx, y.view(), pick(x, order).view(), w.weight);
      ASSERT_TRUE(same_bits(y, pick(alone, order))) << count << " rows, " << m->pool.num_threads() << " threads";
    }
  }
}

TEST(Gemm, ARowStandsAlone) {
  for (Isa isa : available_isas())
    for (WeightFormat format : kFormats) {
      const int64_t step = isa == Isa::kRef ? 13 : 1;  // plain loops cannot mix rows, and are slow
      expect_rows_alone<bf16, bf16>(isa, format, 70, 224, step);
      expect_rows_alone<bf16, float>(isa, format, 16, 96, step);
      expect_rows_alone<float, float>(isa, format, 70, 224, step);
      expect_rows_alone<bf16, bf16>(isa, format, 100, 1152, 13);
    }
}

TEST(Gemm, ProductsTogetherAreTheProductsAlone) {
  struct Product {
    WeightFormat format;
    int64_t out, columns;
    bool of_second;  // input
  };
  constexpr Product kProducts[] = {{WeightFormat::kBF16, 70, 224, false},  {WeightFormat::kBF16, 16, 224, true},
                                   {WeightFormat::kNvfp4, 33, 224, false}, {WeightFormat::kBF16, 5, 96, false},
                                   {WeightFormat::kMxfp8, 64, 96, true},   {WeightFormat::kBF16, 1, 224, true}};
  for (Isa isa : available_isas())
    for (int64_t tokens : {1, 8, 19}) {
      SCOPED_TRACE(fmt::format("{} {} tokens", name(isa), tokens));
      Rng rng(7);
      Machine m(isa, 2);
      const Matrix<bf16> first = random_matrix<bf16>(rng, tokens, 224), second = random_matrix<bf16>(rng, tokens, 224);
      std::vector<RandomWeight> weights;
      std::vector<Matrix<bf16>> together, alone;
      for (const Product& p : kProducts) {
        weights.push_back(random_weight(rng, p.format, p.out, p.columns));
        together.emplace_back(tokens, p.out), alone.emplace_back(tokens, p.out);
      }
      std::vector<ops::Product<bf16>> products;
      for (size_t i = 0; i < std::size(kProducts); ++i) {
        const View<const bf16, 2> x =
            columns((kProducts[i].of_second ? second : first).view(), 0, kProducts[i].columns);
        products.push_back({together[i].view(), x, &weights[i].weight});
        ops::gemm<bf16, bf16>(m.cx, alone[i].view(), x, weights[i].weight);
      }
      ops::gemm_all<bf16>(m.cx, products);
      for (size_t i = 0; i < std::size(kProducts); ++i) EXPECT_TRUE(same_bits(together[i], alone[i])) << i;
    }
}

TEST(Gemm, ABrokenRowHarmsNoOther) {
  for (Isa isa : available_isas())
    for (WeightFormat format : kFormats) {
      Rng rng(3);
      Machine m(isa, 2);
      const RandomWeight w = random_weight(rng, format, 48, 96);
      Matrix<bf16> x = random_matrix<bf16>(rng, 7, 96);
      Matrix<bf16> want(7, 48), got(7, 48);
      ops::gemm<bf16, bf16>(m.cx, want.view(), x.view(), w.weight);
      x(3, 5) = bf16::from(NAN);
      ops::gemm<bf16, bf16>(m.cx, got.view(), x.view(), w.weight);
      for (int64_t t = 0; t < 7; ++t) {
        EXPECT_TRUE(t == 3 ? std::isnan(as_float(got(t, 0))) : same_bits(got.row(t), want.row(t), 48)) << t;
      }
    }
}

// Every code with every scale: x picks one element, so y is that element.
TEST(Gemm, Nvfp4DecodesEveryCodeWithEveryScale) {
  constexpr float kMagnitude[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  std::vector<uint8_t> data(127 * 8), scales(127);
  for (int s = 0; s < 127; ++s) {
    scales[s] = s;
    for (int i = 0; i < 8; ++i) data[s * 8 + i] = (2 * i) | (2 * i + 1) << 4;  // element c is code c
  }
  const Weight w{WeightFormat::kNvfp4, 127, 16, data.data(), scales.data(), 2.0f};
  Matrix<float> x(16, 16), y(16, 127);
  Matrix<bf16> xb(16, 16);
  for (int r = 0; r < 16; ++r)
    for (int c = 0; c < 16; ++c) x(r, c) = r == c, xb(r, c) = bf16::from(r == c);
  for (Isa isa : available_isas())
    for (bool half : {false, true}) {
      Machine m(isa, 1);
      if (half)
        ops::gemm<bf16, float>(m.cx, y.view(), xb.view(), w);
      else
        ops::gemm<float, float>(m.cx, y.view(), x.view(), w);
      for (int s = 0; s < 127; ++s)
        for (int c = 0; c < 16; ++c) {
          const float scale = s < 8 ? s * 0x1p-9f : (1 + s % 8 / 8.0f) * std::exp2(static_cast<float>(s / 8 - 7));
          ASSERT_EQ(y(c, s), (c < 8 ? 1 : -1) * kMagnitude[c % 8] * scale * 2)
              << name(isa) << " scale " << s << " code " << c;
        }
    }
}

TEST(Gemm, Mxfp8DecodesEveryByteWithItsPowerOfTwo) {
  constexpr uint8_t kExponents[4] = {60, 127, 128, 180};  // both well inside the range of FP32
  std::vector<uint8_t> data(4 * 256), scales(4 * 8);
  for (int n = 0; n < 4; ++n) {
    for (int b = 0; b < 256; ++b) data[n * 256 + b] = (b & 127) == 127 ? 0 : b;
    for (int g = 0; g < 8; ++g) scales[n * 8 + g] = kExponents[(n + g) % 4];
  }
  const Weight w{WeightFormat::kMxfp8, 4, 256, data.data(), scales.data()};
  Matrix<float> x(256, 256), y(256, 4);
  Matrix<bf16> xb(256, 256);
  for (int r = 0; r < 256; ++r)
    for (int c = 0; c < 256; ++c) x(r, c) = r == c, xb(r, c) = bf16::from(r == c);
  for (Isa isa : available_isas())
    for (bool half : {false, true}) {
      Machine m(isa, 1);
      if (half)
        ops::gemm<bf16, float>(m.cx, y.view(), xb.view(), w);
      else
        ops::gemm<float, float>(m.cx, y.view(), x.view(), w);
      for (int b = 0; b < 256; ++b)
        for (int n = 0; n < 4; ++n) {
          const int code = (b & 127) == 127 ? 0 : b, e = code >> 3 & 15, f = code & 7;
          const float magnitude = e ? std::ldexp(8.0f + f, e - 10) : std::ldexp(static_cast<float>(f), -9);
          const float want = std::ldexp(code & 128 ? -magnitude : magnitude, kExponents[(n + b / 32) % 4] - 127);
          ASSERT_EQ(y(b, n), want) << name(isa) << " byte " << b << " row " << n;
        }
    }
}

TEST(Gemm, ASliceIsTheSameRows) {
  Rng rng(4);
  Machine m(best_isa(), 1);
  for (WeightFormat format : kFormats) {
    const RandomWeight w = random_weight(rng, format, 48, 64);
    const Matrix<float> x = random_matrix<float>(rng, 3, 64);
    Matrix<float> all(3, 48), part(3, 20);
    ops::gemm<float, float>(m.cx, all.view(), x.view(), w.weight);
    ops::gemm<float, float>(m.cx, part.view(), x.view(), w.weight.slice(11, 31));
    for (int64_t t = 0; t < 3; ++t) EXPECT_TRUE(same_bits(part.row(t), all.row(t) + 11, 20));
  }
}

}  // namespace
}  // namespace nib
