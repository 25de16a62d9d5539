#include "model/taps.h"

#include <fmt/format.h>

namespace nib {

Result<std::vector<Tap>> resolve_taps(std::span<const Tap> taps, int64_t num_layers) {
  std::vector<Tap> resolved(taps.begin(), taps.end());
  for (Tap& t : resolved) {
    const bool output = t.kind == Tap::Kind::kOutputMixture || t.kind == Tap::Kind::kOutputNormed;
    if (t.visit > num_layers)
      return invalid("the drafter taps layer {}, its target has {}: it was made for another target", t.visit,
                     num_layers);
    if (t.visit < num_layers && output)
      return invalid("target_tap asks for the output at layer {}, which only the end of the target has: {}", t.visit,
                     num_layers);
    if (t.visit == num_layers && !output) t.kind = Tap::Kind::kOutputMixture;
  }
  return resolved;
}

}  // namespace nib
