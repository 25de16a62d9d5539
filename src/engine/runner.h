// Carries out a step plan: rows and block tables to the network, its logits to the sampler.
//   Runner runner({std::move(network), std::move(drafter)}, limits, num_blocks);
//   const StepOutput& output = runner.run(plan);
//   const Drafts& drafts = runner.draft(draft_plan);     // after the output was committed
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/block_table_rows.h"
#include "engine/models.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/spec_decode/draft_plan.h"

namespace nib {

// What a step holds at most; all memory for it is taken at start.
struct RunnerLimits {
  int64_t max_sequences = 0, max_rows = 0, max_logit_rows = 0;
  int64_t max_model_len = 0;
  int num_threads = 1;
  Isa isa = Isa::kRef;
  int64_t max_drafts = 0;  // of the drafter, for each sequence
  bool probabilistic_drafts = false;
};

// Owned by the engine thread: the network, its caches, workspace and threads.
class Runner {
 public:
  Runner(Models models, const RunnerLimits& limits, std::span<const int64_t> num_blocks);

  // What is taken at start beside weights and caches.
  static int64_t step_bytes(const Models& models, const RunnerLimits& limits);

  const StepOutput& run(const StepPlan& plan);  // prepare, forward, sample, commit_context, copy_blocks
  const Drafts& draft(const DraftPlan& plan);

  // The parts of run, for those who time them.
  void prepare(const StepPlan& plan);  // block tables and sampling parameters to ready arrays
  void forward(const StepPlan& plan);
  const StepOutput& sample(const StepPlan& plan);
  void commit_context(const StepPlan& plan);  // accepted rows into the draft cache
  void copy_blocks(const StepPlan& plan);

  const Network& network() const { return *models_.target; }
  Context& context() { return context_; }

 private:
  View<float, 2> logits(int64_t rows) const;
  View<float, 2> taps(int64_t rows) const;
  DraftStorage draft_storage() const;
  int32_t choose_draft(const DraftPlan& plan, int64_t block, int64_t k, std::span<const float> logits) const;

  const RunnerLimits limits_;
  Models models_;
  const std::vector<CacheSpec> specs_;
  KvCache cache_;
  ThreadPool pool_;
  Workspace workspace_;
  Context context_;
  Buffer logits_;  // [max_logit_rows, vocabulary] F32
  Buffer taps_;    // [max_rows, width of the taps] F32
  std::vector<BlockTableRows> tables_;
  Sampler sampler_;
  StepOutput output_;

  std::vector<SequenceRows> accepted_rows_;    // of the taps
  std::optional<BlockTableRows> draft_table_;  // of the sequences that are drafted for
  Buffer draft_tokens_, draft_logits_, draft_confidence_;
  Drafts drafts_;
};

}  // namespace nib
