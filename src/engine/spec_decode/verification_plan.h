// How many drafts a step verifies, and which: a budget from old estimates and costs, then its division by current ones.
//   VerificationBudget budget = choose_budget(request, costs);                          // before drafting
//   std::vector<int64_t> lengths = allocate_drafts(survivals, budget.num_drafts);       // after it, by sequence
//   std::vector<int64_t> lengths = fixed_drafts(limits, 7, max_drafts);                 // instead, without scheduling
// The survival of draft k is the probability that drafts 1..k are all accepted. It may use drafts before k, never draft
// k: then what is emitted has the law of the target alone. A draft that is not verified counts as never proposed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/spec_decode/cost_table.h"

namespace nib {

struct BudgetRequest {
  int64_t num_rows = 0;                        // rows of the step that are no drafts
  int64_t num_sampling = 0;                    // sequences that will sample: one token each for sure
  int64_t num_drafter_sequences = 0;           // those of them that the drafter would serve
  std::vector<double> drafter_survivals = {};  // of every draft of theirs, in any order, from past steps
  std::vector<double> copy_survivals = {};     // of every draft that was copied, in any order
  int64_t max_drafts = 0;                      // rows that are left
};

struct VerificationBudget {
  bool run_drafter = false;  // false: its drafts would not pay for it
  int64_t num_drafts = 0;
};

// The budget with the most expected tokens per nanosecond, among: no drafts, the N best copies, the N best drafts of
// both with the drafter's cost. Of equals the first.
VerificationBudget choose_budget(const BudgetRequest& request, const CostTable& costs);

// Length for each sequence: the `budget` highest survivals of all. Ties: the earlier sequence, then the earlier draft.
// REQUIRES survivals[r] never to rise.
std::vector<int64_t> allocate_drafts(std::span<const std::vector<double>> survivals, int64_t budget);

// min(num_drafts, limits[r]) for each sequence; where `budget` is less than their sum, first drafts come before second
// ones.
std::vector<int64_t> fixed_drafts(std::span<const int64_t> limits, int64_t num_drafts, int64_t budget);

// Products of the sigmoids of a confidence head's logits; 0 from the first NaN on.
std::vector<double> survival_from_confidence(std::span<const float> logits);

}  // namespace nib
