// Judges a drafted token so that the outcome is distributed as the target says, whatever the drafter does.
//   const std::optional<Proposal> q = proposal_of(draft, draft_logits, vocab_size, inverse_temperature);
//   int32_t token = rejection_sample(p, *q, seed, position);   // == draft: accepted
// Leviathan et al. 2023, Chen et al. 2023: accept with probability min(1, p / q), else draw from max(p - q, 0).
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>

#include "engine/softmax.h"

namespace nib {

// A draft and the distribution it was drawn from.
struct Proposal {
  int32_t draft;
  std::optional<Softmax<EveryId>> q;  // empty: a point mass
  double log_sum = 0;                 // of q's weights

  double log_probability(int32_t id) const {
    if (!q) return id == draft ? 0 : kImpossible;
    return q->scaled(q->get(id).logit) - log_sum;
  }
};

// Without logits a point mass. Empty if the draft cannot have come from them: an id outside the vocabulary, logits that
// are no distribution, or one that excludes the draft.
inline std::optional<Proposal> proposal_of(int32_t draft, std::span<const float> logits, int64_t vocab_size,
                                           double scale) {
  if (draft < 0 || draft >= vocab_size) return std::nullopt;
  if (logits.empty()) return Proposal{draft, std::nullopt};
  const std::optional<float> max = softmax_max(logits);
  if (!max || logits[draft] == kMasked) return std::nullopt;
  const Softmax<EveryId> q = softmax_of(logits, *max, scale);
  return Proposal{draft, q, std::log(q.sum())};
}

// What draw() can return: scaled logits from `rarest` up, and the logarithm of the sum of their weights.
struct Drawn {
  double rarest, log_sum;
};

template <class Get>
Drawn drawn_of(const Softmax<Get>& p) {
  const double surely_rare = std::log(kMinProbability);  // since the sum is at least 1
  double common = 0, rare = 0;
  for (size_t i = 0; i < p.count; ++i) {
    const double s = p.scaled(p.get(i).logit);
    (s < surely_rare ? rare : common) += std::exp(s);
  }
  const double rarest = std::log(kMinProbability * (common + rare));
  for (size_t i = 0; i < p.count; ++i)
    if (const double s = p.scaled(p.get(i).logit); s >= surely_rare && s < rarest) common -= std::exp(s);
  return {rarest, std::log(common)};
}

template <class Get>
int32_t rejection_sample(const Softmax<Get>& p, const Proposal& proposal, uint64_t seed, int64_t position) {
  const Drawn drawn = drawn_of(p);
  const double scaled = p.scaled_of(proposal.draft);
  const double log_u = std::log(Noise(seed, position, NoiseStream::kAccept).uniform());
  if (scaled >= drawn.rarest && log_u + proposal.log_probability(proposal.draft) <= scaled - drawn.log_sum)
    return proposal.draft;

  const auto log_residual = [&](int32_t id, double log_weight) {
    const double log_p = log_weight - drawn.log_sum, log_q = proposal.log_probability(id);
    return log_q < log_p ? log_weight + std::log1p(-std::exp(log_q - log_p)) : kImpossible;
  };
  const Noise noise(seed, position, NoiseStream::kResample);
  const Winner w = gumbel_argmax(p, drawn.rarest, noise, log_residual);
  return w.id >= 0 ? w.id : draw(p, noise);  // p = q up to rounding: nothing is left of the residual
}

}  // namespace nib
