// Draws from a softmax by the Gumbel-max trick: argmax of scale * logit + noise, without normalising.
//   const Softmax p = softmax_of(logits, argmax(logits), inverse_temperature(temperature));
//   int32_t token = draw(p, Noise(seed, position));
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "engine/noise.h"

namespace nib {

inline constexpr float kMasked = -std::numeric_limits<float>::infinity();
inline constexpr double kImpossible = -std::numeric_limits<double>::infinity();  // the logarithm of no probability
// Rarer tokens are never drawn: over a vocabulary of 200,000 their sum would still be seen in long outputs.
inline constexpr double kMinProbability = 1e-9;

struct Candidate {
  float logit;  // before the temperature
  int32_t id;
};

// 0: greedy. Lower temperatures than 0.01 are clamped.
inline float inverse_temperature(double temperature) {
  return temperature > 0 ? static_cast<float>(1 / std::max(temperature, 0.01)) : 0;
}

// The lowest id among the largest; -1 if all are masked.
inline int32_t argmax(std::span<const float> x) {
  float best = kMasked;
  int32_t at = -1;
  for (size_t i = 0; i < x.size(); ++i)
    if (x[i] > best) best = x[i], at = static_cast<int32_t>(i);
  return at;
}

// The largest of logits in which -inf marks a masked id. Empty if they are no distribution: one is NaN or +inf, or all
// are masked.
inline std::optional<float> softmax_max(std::span<const float> x) {
  float max = kMasked;
  for (float f : x) {
    if (!(f < std::numeric_limits<float>::infinity())) return std::nullopt;
    max = std::max(max, f);
  }
  return max > kMasked ? std::optional(max) : std::nullopt;
}

// softmax(scale * logit) over `count` candidates; get(i) is the i-th, max the largest logit among them.
template <class Get>
struct Softmax {
  size_t count;
  Get get;
  float max;
  double scale;

  // Logarithm of the weight, before it is normalised: at most 0.
  double scaled(float logit) const { return scale * (static_cast<double>(logit) - max); }

  double scaled_of(int32_t id) const {
    for (size_t i = 0; i < count; ++i)
      if (const Candidate c = get(i); c.id == id) return scaled(c.logit);
    return kImpossible;
  }

  // Of all weights, added in the order of the candidates.
  double sum() const {
    double sum = 0;
    for (size_t i = 0; i < count; ++i) sum += std::exp(scaled(get(i).logit));
    return sum;
  }

  double rarest() const { return std::log(kMinProbability * sum()); }  // a scaled logit; below it: never drawn
};

struct EveryId {
  const float* logits;
  Candidate operator()(size_t i) const { return {logits[i], static_cast<int32_t>(i)}; }
};

struct SomeIds {
  const Candidate* candidates;
  Candidate operator()(size_t i) const { return candidates[i]; }
};

inline Softmax<EveryId> softmax_of(std::span<const float> logits, float max, double scale) {
  return {logits.size(), {logits.data()}, max, scale};
}

inline Softmax<SomeIds> softmax_of(std::span<const Candidate> candidates, float max, double scale) {
  return {candidates.size(), {candidates.data()}, max, scale};
}

struct Winner {
  int32_t id = -1;
  double log_weight = kImpossible;
  double score = kImpossible;
};

// argmax of log_weight + gumbel(id), the lowest id among equals. log_weight(candidate, bound) is at most bound, the
// candidate's scaled logit. Most candidates cannot reach the best score so far and cost one hash or less.
template <class Get, class LogWeight>
Winner gumbel_argmax(const Softmax<Get>& p, double floor, const Noise& noise, const LogWeight& log_weight) {
  Winner best;
  for (size_t i = 0; i < p.count; ++i) {
    const auto [logit, id] = p.get(i);
    const double bound = p.scaled(logit);
    if (!(bound >= floor) || bound + Noise::kMax < best.score) continue;
    if (bound + noise.gumbel_bound(id) < best.score) continue;
    const double weight = log_weight(id, bound);
    const double score = weight + noise.gumbel(id);
    if (score > best.score || (score == best.score && id < best.id)) best = {id, weight, score};
  }
  return best;
}

template <class Get>
Winner gumbel_argmax(const Softmax<Get>& p, double floor, const Noise& noise) {
  return gumbel_argmax(p, floor, noise, [](int32_t, double scaled) { return scaled; });
}

// Draws, then repeats without the ids below kMinProbability in the rare case that one of them won.
template <class Get>
int32_t draw(const Softmax<Get>& p, const Noise& noise) {
  const Winner w = gumbel_argmax(p, std::numeric_limits<double>::lowest(), noise);
  if (w.log_weight >= std::log(kMinProbability * static_cast<double>(p.count)))
    return w.id;  // the sum is at most count
  return gumbel_argmax(p, p.rarest(), noise).id;
}

}  // namespace nib
