// What the tests of the operations share: machines to run on, random operands, and the table of tolerances.
//   for (Isa isa : available_isas()) { Machine m(isa, 2); ops::add(m.cx, y.view(), x.view(), d.view()); }
//   Matrix<bf16> x = random_matrix<bf16>(rng, tokens, hidden);
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "compute/ops/gemm.h"

namespace nib {

// Every instruction set of this machine, plain loops first.
inline std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (int i = 0; i <= static_cast<int>(best_isa()); ++i) isas.push_back(static_cast<Isa>(i));
  return isas;
}

struct Machine {
  Machine(Isa isa, int threads, int64_t workspace_bytes = 4 << 20)
      : pool(threads), workspace(workspace_bytes), cx{isa, pool, workspace} {}
  ThreadPool pool;
  Workspace workspace;
  Context cx;
};

using Rng = std::mt19937;
inline float gaussian(Rng& rng, float sigma = 1.0f) { return std::normal_distribution<float>(0, sigma)(rng); }
inline int64_t uniform(Rng& rng, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(rng);
}

// Rows with `padding` columns behind them; everything starts as NaN, so that what is not written or is read outside
// shows.
template <class T>
class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns, int64_t padding = 0)
      : rows_(rows), columns_(columns), stride_(columns + padding), data_(rows * stride_, to<T>(NAN)) {}
  View<T, 2> view() { return View<T, 2>(data_.data(), {rows_, columns_}, {stride_, 1}); }
  View<const T, 2> view() const { return View<const T, 2>(data_.data(), {rows_, columns_}, {stride_, 1}); }
  T& operator()(int64_t r, int64_t c) { return data_[r * stride_ + c]; }
  const T& operator()(int64_t r, int64_t c) const { return data_[r * stride_ + c]; }
  const T* row(int64_t r) const { return data_.data() + r * stride_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }

 private:
  int64_t rows_, columns_, stride_;
  std::vector<T> data_;
};

template <class T>
Matrix<T> random_matrix(Rng& rng, int64_t rows, int64_t columns, float sigma = 1.0f, int64_t padding = 0) {
  Matrix<T> m(rows, columns, padding);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) m(r, c) = to<T>(gaussian(rng, sigma));
  return m;
}

template <class T>
View<const T, 1> vector_view(const Matrix<T>& m) {
  return View<const T, 1>(m.row(0), {m.columns()});
}

// Rounding of one result, relative to its own size: half a unit in the last place, a little above. The error of a sum
// in FP32 comes on top, relative to the sum of the absolute terms.
template <class T>
constexpr double kRounding = 0;
template <>
inline constexpr double kRounding<float> = 1e-6;
template <>
inline constexpr double kRounding<bf16> = 0.0040;
inline constexpr double kSumError = 2e-6;

template <class T>
bool same_bits(const T* a, const T* b, int64_t n) {
  return std::memcmp(a, b, n * sizeof(T)) == 0;
}

template <class T>
bool same_bits(const Matrix<T>& a, const Matrix<T>& b) {
  for (int64_t r = 0; r < a.rows(); ++r)
    if (!same_bits(a.row(r), b.row(r), a.columns())) return false;
  return a.rows() == b.rows();
}

// The rows `order` of m.
template <class T>
Matrix<T> pick(const Matrix<T>& m, const std::vector<int64_t>& order) {
  Matrix<T> out(order.size(), m.columns(), 3);
  for (size_t i = 0; i < order.size(); ++i)
    for (int64_t c = 0; c < m.columns(); ++c) out(i, c) = m(order[i], c);
  return out;
}

inline std::vector<int64_t> random_rows(Rng& rng, int64_t count, int64_t rows) {
  std::vector<int64_t> order(count);
  for (int64_t& r : order) r = uniform(rng, 0, rows - 1);
  return order;
}

// A weight matrix that owns its bytes.
struct RandomWeight {
  std::vector<uint8_t> data, scales;
  Weight weight;
};

// Values of about sigma 1 / sqrt(in), as a checkpoint has them.
inline RandomWeight random_weight(Rng& rng, WeightFormat format, int64_t out, int64_t in) {
  RandomWeight w;
  w.data.resize(out * row_bytes(format, in));
  w.scales.resize(out * row_scale_bytes(format, in));
  const float sigma = 1.0f / std::sqrt(static_cast<float>(in));
  if (format == WeightFormat::kF32 || format == WeightFormat::kBF16) {
    for (int64_t i = 0; i < out * in; ++i) {
      const float f = gaussian(rng, sigma);
      if (format == WeightFormat::kF32)
        reinterpret_cast<float*>(w.data.data())[i] = f;
      else
        reinterpret_cast<bf16*>(w.data.data())[i] = bf16::from(f);
    }
  } else {
    const bool nvfp4 = format == WeightFormat::kNvfp4;
    for (uint8_t& b : w.data) b = uniform(rng, 0, 255);
    if (!nvfp4)
      for (uint8_t& b : w.data) b = (b & 127) == 127 ? 0x30 : b;  // no NaN
    for (uint8_t& b : w.scales) b = nvfp4 ? uniform(rng, 0, 0x7e) : uniform(rng, 108, 116);
  }
  w.weight = Weight{format,
                    out,
                    in,
                    w.data.data(),
                    w.scales.empty() ? nullptr : w.scales.data(),
                    format == WeightFormat::kNvfp4 ? 0.0123f * sigma : 1.0f};
  return w;
}

}  // namespace nib
