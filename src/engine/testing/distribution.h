// What a sampler should draw, by definition and in double precision, and whether what it drew fits.
//   const std::vector<double> expected = distribution_of(logits, params);
//   EXPECT_LT(chi_square(expected, seen).value, chi_square(expected, seen).limit);
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/request.h"

namespace nib::testing {

inline std::vector<float> random_logits(int64_t vocab, uint64_t seed, double width = 3) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0, static_cast<float>(width));
  std::vector<float> x(vocab);
  for (float& f : x) f = normal(rng);
  return x;
}

// Temperature, min-p, top-k, top-p, with full sorts.
inline std::vector<double> distribution_of(const std::vector<float>& logits, const SamplingParams& p) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  const auto weight = [&](int32_t id) {
    return std::exp((static_cast<double>(logits[id]) - logits[order[0]]) / p.temperature);
  };
  std::erase_if(order, [&](int32_t id) { return weight(id) < p.min_p; });
  if (p.top_k > 0 && static_cast<int64_t>(order.size()) > p.top_k) order.resize(p.top_k);
  double total = 0, mass = 0;
  for (int32_t id : order) total += weight(id);
  for (size_t i = 0; i < order.size(); ++i) {
    mass += weight(order[i]);
    if (mass >= p.top_p * total) order.resize(i + 1);
  }
  std::vector<double> out(logits.size(), 0.0);
  double kept = 0;
  for (int32_t id : order) kept += weight(id);
  for (int32_t id : order) out[id] = weight(id) / kept;
  return out;
}

struct Setting {
  std::string name;
  double temperature, top_p, min_p;
  int64_t top_k;
};

inline const std::vector<Setting> kSettings = {
    {"plain", 1, 1, 0, 0},
    {"cold", 0.3, 1, 0, -1},
    {"hot", 2.5, 1, 0, 0},
    {"top_k", 1, 1, 0, 5},
    {"top_k of 1", 1, 1, 0, 1},
    {"top_p", 1, 0.8, 0, 0},
    {"tiny top_p", 1, 1e-6, 0, 0},
    {"min_p", 1, 1, 0.1, 0},
    {"min_p of 1", 1, 1, 1, 0},
    {"all", 0.8, 0.9, 0.02, 9},
    {"top_k beyond", 1, 0.95, 0, 1000},
};

inline SamplingParams params_of(const Setting& s) {
  SamplingParams p;
  p.temperature = s.temperature, p.top_p = s.top_p, p.min_p = s.min_p, p.top_k = s.top_k;
  return p;
}

struct ChiSquare {
  double value, limit;  // of a right sampler, one in 10,000 is above the limit
};

// Cells that expect fewer than 8 are counted together; a cell that expects none must stay empty.
inline ChiSquare chi_square(const std::vector<double>& expected, const std::vector<int64_t>& seen) {
  const auto total = static_cast<double>(std::accumulate(seen.begin(), seen.end(), int64_t{0}));
  double value = 0, degrees = -1, rest = 0, rest_seen = 0;
  const auto add = [&](double e, double s) { value += (s - e) * (s - e) / e, ++degrees; };
  for (size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i] * total;
    const auto s = static_cast<double>(seen[i]);
    if (e == 0 && s > 0) return {std::numeric_limits<double>::infinity(), 0};
    if (e < 8)
      rest += e, rest_seen += s;
    else
      add(e, s);
  }
  if (rest > 8) add(rest, rest_seen);
  if (degrees <= 0) return {value, 1e-9};
  const double z = 3.719, a = 2 / (9 * degrees);  // Wilson, Hilferty 1931
  return {value, degrees * std::pow(1 - a + z * std::sqrt(a), 3)};
}

}  // namespace nib::testing
