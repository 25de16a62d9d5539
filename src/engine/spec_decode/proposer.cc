#include "engine/spec_decode/proposer.h"

#include <algorithm>

#include "base/check.h"

namespace nib {

Proposal choose_proposer(const ProposerRequest& r, const CostTable& costs) {
  NIB_CHECK(1 <= r.num_sequences && r.num_sequences <= r.num_rows, "{} sequences sample from {} rows", r.num_sequences,
            r.num_rows);
  NIB_CHECK(r.drafter_survival.empty() || r.num_drafter_sequences >= 1, "no sequence shares the drafter");
  NIB_CHECK_EQ(r.copy == Proposer::kNone, r.copy_survival.empty());
  const double step_ns = costs.verify.at(r.num_rows);
  const double share_ns = step_ns / static_cast<double>(r.num_sequences);
  const auto rate = [&](double tokens, int64_t n, double draft_ns) {
    const double ns = share_ns + costs.verify.at(r.num_rows + n) - step_ns + draft_ns;
    return tokens / std::max(ns, 1.0);  // 0: nothing is known yet
  };
  Proposal best;
  double best_rate = rate(1, 0, 0);
  const auto try_lengths = [&](Proposer proposer, const std::vector<double>& survival, double draft_ns) {
    double tokens = 1;
    for (int64_t n = 1; n <= static_cast<int64_t>(survival.size()); ++n) {
      tokens += survival[n - 1];
      if (const double x = rate(tokens, n, draft_ns); x > best_rate) best_rate = x, best = {proposer, n};
    }
  };
  try_lengths(r.copy, r.copy_survival, 0);
  const int64_t num_sharing = std::max<int64_t>(r.num_drafter_sequences, 1);
  try_lengths(Proposer::kDspark, r.drafter_survival, costs.draft.at(num_sharing) / static_cast<double>(num_sharing));
  return best;
}

}  // namespace nib
