#include "engine/spec_decode/draft_sampler.h"

#include "engine/softmax.h"

namespace nib {

int32_t sample_draft(std::span<const float> logits, double temperature, const Noise& noise) {
  const std::optional<float> max = softmax_max(logits);
  if (!max) return -1;
  const float scale = inverse_temperature(temperature);
  if (scale == 0) return argmax(logits);
  return gumbel_argmax(softmax_of(logits, *max, scale), std::numeric_limits<double>::lowest(), noise).id;
}

}  // namespace nib
