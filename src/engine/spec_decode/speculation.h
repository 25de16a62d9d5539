// The policy of speculation: which sequences are drafted for, by whom, and how many drafts a step verifies.
//   Speculation speculation(config, costs, max_model_len);
//   speculation.allocate(running, rows_left, false);             // before a step is planned: proposals are cut to fit
//   speculation.record(s, drafts, accepted, event);              // after it, for each sequence that drew tokens
//   speculation.end_step(rows, elapsed_ns);
//   const DraftPlan& plan = speculation.plan_drafts(running);    // then: copies are proposed, the drafter is asked
//   speculation.commit_drafts(drafts, elapsed_ns);
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/sequence.h"
#include "engine/spec_decode/cost_table.h"
#include "engine/spec_decode/draft_plan.h"
#include "engine/spec_decode/proposer.h"

namespace nib {

// Owned by the scheduler. Nothing here can change a token: proposals are guesses, and whether a guess is verified never
// depends on the guess itself, only on what came before it.
class Speculation {
 public:
  Speculation(const SpeculativeConfig& config, CostTable costs, int64_t max_model_len);

  // Whether the drafts of such a request are drawn and judged with the noise of the target: the tokens are then those
  // of a run without speculation.
  bool coupled(const SamplingParams& p) const;

  // Whether the rows of the next step become draft context. Not while drafting has not paid for kStarve steps: then
  // even its context is too dear.
  bool feeds_drafter() const { return config_.method == SpeculativeConfig::Method::kDspark && idle_steps_ < kStarve; }

  // Leaves each sequence one row of the step first, then gives what is left of rows_left to drafts; half of it while a
  // prompt waits for rows, so that guesses never hold up a new request.
  void allocate(std::span<Sequence* const> running, int64_t rows_left, bool prompts_wait);
  // The event holds what became part of the answer of the 1 + accepted tokens, and is told of its drafts, which may be
  // none.
  void record(Sequence& s, int64_t drafts, int64_t accepted, TokenEvent& event);
  // All draws are recorded, their sequences still exist. A step with rows that sample nothing is not measured.
  void end_step(int64_t rows, int64_t sample_rows, int64_t elapsed_ns);
  const DraftPlan& plan_drafts(std::span<Sequence* const> running);
  void commit_drafts(const Drafts& drafts, int64_t elapsed_ns);

  void count(EngineStats& s) const;
  const CostTable& costs() const { return costs_; }

 private:
  static constexpr int64_t kStarve = 64;
  struct Verified {
    Sequence* sequence;
    int64_t drafts, emitted;
  };

  int64_t useful_drafts(const Sequence& s) const;
  void read_tokens(Sequence& s);
  void propose(Sequence& s, int64_t num_sequences);
  Proposer choose(const ProposerRequest& request) const;
  void ask_drafter(Sequence& s, int64_t num_tokens);
  void choose_budget(int64_t num_sequences);
  void watch(int64_t rows, int64_t elapsed_ns);

  const SpeculativeConfig config_;
  const int64_t max_model_len_;
  CostTable costs_;
  EngineAcceptance acceptance_;
  DraftPlan plan_;
  std::vector<Verified> verified_;                      // in this step
  std::vector<Sequence*> proposed_;                     // sequences with a copy, for the next step
  std::vector<std::vector<double>> drafter_survivals_;  // of the blocks of the plan, from past steps
  int64_t idle_steps_ = 0;                              // since the drafter was last asked, with somebody to draft for
  int64_t budget_ = 0;                                  // drafts that the next step verifies at most
  int64_t draft_ns_ = 0, draft_blocks_ = 0;             // of the drafts that the next step verifies
  EngineStats stats_;
};

}  // namespace nib
