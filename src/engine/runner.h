// Carries out a step plan: rows and block tables to the network, its logits to the sampler.
//   Runner runner(std::move(network), limits, num_blocks);
//   const StepOutput& output = runner.run(plan);
#pragma once

#include <memory>
#include <vector>

#include "engine/block_table_rows.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "model/network.h"

namespace nib {

// What a step holds at most; all memory for it is taken at start.
struct RunnerLimits {
  int64_t max_sequences = 0, max_rows = 0, max_logit_rows = 0;
  int64_t max_model_len = 0;
  int num_threads = 1;
  Isa isa = Isa::kRef;
};

// Owned by the engine thread: the network, its caches, workspace and threads.
class Runner {
 public:
  Runner(std::unique_ptr<Network> network, const RunnerLimits& limits, std::span<const int64_t> num_blocks);

  // What is taken at start beside weights and caches.
  static int64_t step_bytes(const Network& network, const RunnerLimits& limits);

  const StepOutput& run(const StepPlan& plan);  // prepare, forward, sample, copy_blocks

  // The parts of run, for those who time them.
  void prepare(const StepPlan& plan);  // block tables and sampling parameters to ready arrays
  void forward(const StepPlan& plan);
  const StepOutput& sample(const StepPlan& plan);
  void copy_blocks(const StepPlan& plan);

  const Network& network() const { return *network_; }
  Context& context() { return context_; }

 private:
  View<float, 2> logits(int64_t rows) const;

  std::unique_ptr<Network> network_;
  KvCache cache_;
  ThreadPool pool_;
  Workspace workspace_;
  Context context_;
  Buffer logits_;  // [max_logit_rows, vocabulary] F32
  std::vector<BlockTableRows> tables_;
  Sampler sampler_;
  StepOutput output_;
};

}  // namespace nib
