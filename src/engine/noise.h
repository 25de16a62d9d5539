// Sampling noise as a function of seed, position and token id: no state, so no batch, chunk or preemption can change
// it.
//   const Noise noise(seed, position);
//   score = logit / temperature + noise.gumbel(id);     // argmax over ids draws from the softmax
//   noise.gumbel_bound(id);                             // >= gumbel(id), without a logarithm
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace nib {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits that mixes all of them.
inline uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Noise {
 public:
  // No gumbel() is larger: u is at least 2^-54.
  static constexpr double kMax = 54 * std::numbers::ln2;

  Noise(uint64_t seed, int64_t position) : key_(mix64(mix64(seed) ^ static_cast<uint64_t>(position))) {}

  // Gumbel noise -ln(-ln(1 - u)), u uniform in (0, 1) with 53 bits; the tail that can win has the finest steps.
  double gumbel(int32_t id) const {
    const double u = (static_cast<double>(bits(id) >> 11) + 0.5) * 0x1p-53;
    return -std::log(-std::log1p(-u));
  }

  // -ln(1 - u) >= u, hence gumbel <= -ln u <= ln 2 * (leading zeros of u + 1).
  double gumbel_bound(int32_t id) const {
    return std::numbers::ln2 * static_cast<double>(std::countl_zero(bits(id) >> 11 << 11 | 0x400) + 1) + 1e-9;
  }

 private:
  uint64_t bits(int32_t id) const { return mix64(key_ ^ (static_cast<uint64_t>(id) * 0xd1b54a32d192ed03u)); }
  uint64_t key_;
};

}  // namespace nib
