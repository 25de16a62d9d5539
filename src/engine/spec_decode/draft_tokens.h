// The tokens that are proposed for a sequence's next step, and how far its draft context goes.
//   s.proposed = {Proposer::kLongCopy, {5, 9, 2}};
//   s.draft_context = {0, s.num_computed};
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/spec_decode/acceptance.h"

namespace nib {

// Live for one step: the verification that comes next, or never.
struct DraftTokens {
  Proposer proposer = Proposer::kNone;
  std::vector<int32_t> tokens;
  std::vector<double> survival;  // [tokens]: probability that this one and all before it are accepted
  // [tokens, vocabulary] before the temperature, in the runner's memory: what each token was drawn from. Empty: each
  // was certain.
  std::span<const float> logits = {};

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  // Cut to the first n; none: nobody proposes anything.
  void keep(int64_t n) {
    if (!logits.empty()) logits = logits.first(n * static_cast<int64_t>(logits.size()) / size());
    tokens.resize(n);
    survival.resize(n);
    if (n == 0) proposer = Proposer::kNone;
  }
  // Of draft k [vocabulary], or empty.
  std::span<const float> logits_of(int64_t k) const {
    const size_t vocab = tokens.empty() ? 0 : logits.size() / tokens.size();
    return logits.subspan(k * vocab, vocab);
  }
};

// Positions [begin, end) of a sequence have draft K and V in its cache.
struct DraftRange {
  int64_t begin = 0, end = 0;
};

}  // namespace nib
