// Chooses for one sequence between a copy, the drafter and no drafts: whoever gives the most tokens per nanosecond.
//   Proposal p = choose_proposer({.num_rows = 8, .num_sequences = 8, .num_drafter_sequences = 8,
//                                 .copy = Proposer::kLongCopy, .copy_survival = s, .drafter_survival = d}, costs);
//   p.proposer; p.num_drafts;               // kDspark, 5
// Survivals come from past steps (SequenceAcceptance), so the choice never depends on the tokens that it admits.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/spec_decode/acceptance.h"
#include "engine/spec_decode/cost_table.h"

namespace nib {

struct ProposerRequest {
  int64_t num_rows = 0;                       // of the step, drafts left out
  int64_t num_sequences = 0;                  // that sample in it
  int64_t num_drafter_sequences = 0;          // that would share a run of the drafter, this one included
  Proposer copy = Proposer::kNone;            // which kind of copy is proposed, kNone without one
  std::vector<double> copy_survival = {};     // of the drafts of the copy; empty without one
  std::vector<double> drafter_survival = {};  // of the drafter's; empty where it cannot draft
};

struct Proposal {
  Proposer proposer = Proposer::kNone;
  int64_t num_drafts = 0;  // the length with the best rate
};

// The rate of n drafts is (1 + survival[0] + ... + survival[n-1]) / cost, where the cost is this sequence's share of
// the plain step, plus what n further rows add to it, plus, for the drafter, its share of a run. Of equals: none, then
// the copy, then the drafter, and the shorter length.
Proposal choose_proposer(const ProposerRequest& request, const CostTable& costs);

}  // namespace nib
