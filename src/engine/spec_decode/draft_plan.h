// What the drafter is asked for after a step, and what it answers.
//   const DraftPlan& plan = scheduler.plan_drafts();
//   if (!plan.empty()) scheduler.commit_drafts(runner.draft(plan));
#pragma once

#include <vector>

#include "compute/tensor/view.h"
#include "model/drafter.h"

namespace nib {

struct Sequence;

// Vectors keep their memory from step to step.
struct DraftPlan {
  std::vector<Sequence*> sequences;
  std::vector<DraftBlock> blocks;  // one per sequence
  std::vector<char> coupled;       // one per sequence: drawn with the noise of the target

  bool empty() const { return blocks.empty(); }
  void clear() {
    sequences.clear();
    blocks.clear();
    coupled.clear();
  }
};

// Rows in the order of the plan; in the runner's memory until the next drafts.
struct Drafts {
  View<const int32_t, 2> tokens;    // [blocks, K]; -1 from where a block stopped
  View<const float, 3> logits;      // [blocks, K, vocabulary] before the temperature
  View<const float, 2> confidence;  // [blocks, K] log-odds; empty without a confidence head
};

}  // namespace nib
