#include "engine/spec_decode/verification_plan.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace nib {

namespace {

struct Best {
  double tokens_per_ns = 0;
  VerificationBudget budget;
};

// Tries every number of the drafts, the likeliest first.
void try_drafts(const BudgetRequest& r, const CostTable& costs, std::vector<double> survivals, bool run_drafter,
                Best& best) {
  std::ranges::sort(survivals, std::greater());
  const double draft_ns = run_drafter ? costs.draft.at(r.num_drafter_sequences) : 0;
  const int64_t most = std::min(r.max_drafts, static_cast<int64_t>(survivals.size()));
  double tokens = static_cast<double>(r.num_sampling);
  for (int64_t n = 0; n <= most; ++n) {
    if (n > 0) tokens += survivals[n - 1];
    const double ns = std::max(draft_ns + costs.verify.at(r.num_rows + n), 1.0);  // 0: nothing is known yet
    if (tokens / ns > best.tokens_per_ns) best = {tokens / ns, {run_drafter, n}};
  }
}

}  // namespace

VerificationBudget choose_budget(const BudgetRequest& request, const CostTable& costs) {
  NIB_CHECK(1 <= request.num_sampling && request.num_sampling <= request.num_rows, "{} sequences sample from {} rows",
            request.num_sampling, request.num_rows);
  Best best;
  try_drafts(request, costs, request.copy_survivals, false, best);
  if (request.num_drafter_sequences > 0) {
    std::vector<double> all = request.copy_survivals;
    all.insert(all.end(), request.drafter_survivals.begin(), request.drafter_survivals.end());
    try_drafts(request, costs, std::move(all), true, best);
  }
  return best.budget;
}

std::vector<int64_t> allocate_drafts(std::span<const std::vector<double>> survivals, int64_t budget) {
  struct Draft {
    double survival;
    size_t sequence;
  };
  std::vector<Draft> drafts;
  for (size_t r = 0; r < survivals.size(); ++r) {
    NIB_CHECK(std::ranges::is_sorted(survivals[r], std::greater()), "survival rises in sequence {}", r);
    for (double s : survivals[r]) drafts.push_back({s, r});
  }
  // Stable: equals stay in the order of sequences and positions, so what is kept of a sequence is a prefix.
  std::ranges::stable_sort(drafts, std::greater(), &Draft::survival);
  drafts.resize(std::min(drafts.size(), static_cast<size_t>(std::max<int64_t>(budget, 0))));
  std::vector<int64_t> lengths(survivals.size(), 0);
  for (const Draft& d : drafts) ++lengths[d.sequence];
  return lengths;
}

std::vector<int64_t> fixed_drafts(std::span<const int64_t> limits, int64_t num_drafts, int64_t budget) {
  std::vector<std::vector<double>> by_position(limits.size());
  for (size_t r = 0; r < limits.size(); ++r)
    for (int64_t k = 0; k < std::min(num_drafts, limits[r]); ++k) by_position[r].push_back(-static_cast<double>(k));
  return allocate_drafts(by_position, budget);
}

std::vector<double> survival_from_confidence(std::span<const float> logits) {
  std::vector<double> out;
  double survives = 1;
  for (float x : logits) {
    survives *= 1 / (1 + std::exp(-static_cast<double>(x)));
    if (std::isnan(survives)) survives = 0;
    out.push_back(survives);
  }
  return out;
}

}  // namespace nib
