// Sampling noise as a function of seed, position, stream and token id: no state, so no batch, chunk or preemption can
// change it.
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

// Rejection sampling is exact only if drafting, accepting and resampling draw from independent noise.
enum class NoiseStream : uint64_t { kTarget, kDraft, kAccept, kResample };

class Noise {
 public:
  // No gumbel() is larger: u is at least 2^-54.
  static constexpr double kMax = 54 * std::numbers::ln2;

  Noise(uint64_t seed, int64_t position, NoiseStream stream = NoiseStream::kTarget)
      : key_(mix64(mix64(seed) ^ static_cast<uint64_t>(position))) {
    if (stream != NoiseStream::kTarget) key_ = mix64(key_ ^ static_cast<uint64_t>(stream) * 0xa0761d6478bd642fu);
  }

  // For the draft at `position` of the block that starts at `anchor_position`: every block drafts afresh.
  static Noise draft(uint64_t seed, int64_t anchor_position, int64_t position) {
    Noise noise(seed, anchor_position, NoiseStream::kDraft);
    noise.key_ = mix64(noise.key_ ^ static_cast<uint64_t>(position));
    return noise;
  }

  // Gumbel noise -ln(-ln(1 - u)), u uniform in (0, 1) with 53 bits; the tail that can win has the finest steps.
  double gumbel(int32_t id) const { return -std::log(-std::log1p(-uniform(id))); }

  // -ln(1 - u) >= u, hence gumbel <= -ln u <= ln 2 * (leading zeros of u + 1).
  double gumbel_bound(int32_t id) const {
    return std::numbers::ln2 * static_cast<double>(std::countl_zero(bits(id) >> 11 << 11 | 0x400) + 1) + 1e-9;
  }

  // In (0, 1]; the same bits as those of gumbel(0), so take one or the other from a stream.
  double uniform() const { return uniform(0); }

 private:
  uint64_t bits(int32_t id) const { return mix64(key_ ^ (static_cast<uint64_t>(id) * 0xd1b54a32d192ed03u)); }
  double uniform(int32_t id) const { return (static_cast<double>(bits(id) >> 11) + 0.5) * 0x1p-53; }
  uint64_t key_;
};

}  // namespace nib
