// Draws drafted tokens: temperature only, since truncation and penalties belong to the target.
//   int32_t draft = sample_draft(logits, temperature, Noise::draft(seed, anchor_position, position));
//   int32_t coupled = sample_draft(logits, temperature, Noise(seed, position));   // the noise the target will use
//   if (draft < 0) ...                                                            // the drafter is broken
#pragma once

#include <cstdint>
#include <span>

#include "engine/noise.h"

namespace nib {

// A draw from softmax(logits / temperature), or at temperature 0 the lowest id among the largest. With the target's
// noise it is the target's own token where both have the same logits and nothing is cut off.
// -1: no distribution, because a logit is NaN or +inf or all are -inf.
int32_t sample_draft(std::span<const float> logits, double temperature, const Noise& noise);

}  // namespace nib
