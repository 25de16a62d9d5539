// Which intermediates of a target a drafter reads, one a tap.
//   NIB_ASSIGN(const std::vector<Tap> taps, resolve_taps(drafter.config().taps, target.config().num_layers()));
//   for (const Tap& t : taps) if (t.visit == layer) ...      // columns of the tap row in this order
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace nib {

struct Tap {
  int64_t visit = 0;  // -1: the embedding's output; i < N: after layer i; N: the target's end
  // What is read there. A network of one residual stream has one answer between its layers, whatever the kind.
  enum class Kind {
    kBlockSum,       // the partial sum of the depth block
    kMixture,        // what the next sublayer would read
    kOutputMixture,  // at the end: the output mixture before the final norm
    kOutputNormed,   // at the end: after the final norm
  } kind = Kind::kBlockSum;
  bool operator==(const Tap&) const = default;
};

// The taps in a target of num_layers layers. At its end there is neither sum nor next sublayer, so the first two kinds
// mean the output mixture there. Refuses a visit behind the end, and an output anywhere else.
Result<std::vector<Tap>> resolve_taps(std::span<const Tap> taps, int64_t num_layers);

}  // namespace nib
