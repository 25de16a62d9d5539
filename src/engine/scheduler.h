// Decides which tokens of which sequences run in the next step, and what becomes of the result. Pure host logic: no
// thread, no clock, no device.
//   scheduler.add(std::move(request));
//   const StepPlan& plan = scheduler.plan(now);           // empty: nothing to do
//   scheduler.commit(output, now);                        // tokens appended, sequences ended, blocks returned
//   for (Outgoing& o : scheduler.take_events()) ...
#pragma once

#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "compute/ops/batch.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/sequence.h"
#include "engine/spec_decode/draft_plan.h"
#include "engine/spec_decode/speculation.h"

namespace nib {

// The tokens that a step may give one sequence: a row for each draft and one behind the last.
struct Draw {
  Sequence* sequence;
  int64_t place;         // in the plan, of the sequence that computes the rows
  int64_t begin, count;  // of sample rows
  int64_t num_drafts() const { return count - 1; }
};

// One step. Vectors keep their memory from step to step.
struct StepPlan {
  std::vector<int32_t> tokens;          // [rows]
  std::vector<SequenceRows> rows;       // [sequences], cover the rows in order
  std::vector<Sequence*> sequences;     // [sequences]
  std::vector<int32_t> logit_rows;      // ascending
  std::vector<SampleRow> sample_rows;   // one per token to be drawn
  std::vector<Draw> draws;              // cover the sample rows in order
  std::vector<PromptRow> prompt_rows;   // prompt logprobs to be made
  std::vector<Sequence*> prompt_owner;  // the sequence of each prompt row
  std::vector<BlockCopy> copies;        // after the forward pass, before the next
  bool feeds_drafter = false;           // the rows become draft context

  bool empty() const { return sequences.empty(); }
  void clear();
};

// What the runner made of a plan, in the order of sample_rows and prompt_rows.
struct StepOutput {
  std::vector<Sample> samples;
  std::vector<Sample> prompt_logprobs;
};

// How many drafts of a draw are accepted: each judged by its own row, until the first that is not the token drawn.
int64_t num_accepted(const StepPlan& plan, const Draw& draw, const StepOutput& output);

struct Outgoing {
  uint64_t request_id;
  std::shared_ptr<EventChannel> channel;
  TokenEvent event;
};

struct SchedulerConfig {
  int64_t max_num_seqs = 0;
  int64_t max_num_batched_tokens = 0;  // rows a step
  int64_t max_prompt_logit_rows = 64;  // of these, with prompt logprobs
  int64_t max_model_len = 0;
  int64_t vocab_size = 0;  // of token constraints
  bool priority = false;
  SpeculativeConfig speculation = {};
  CostTable costs = {};  // of speculation; empty: measured
};

// Owned by the engine thread. Order of service: priority if asked for, then arrival, then index within the request.
// When blocks run out the last in that order gives up all of its own and waits; its tokens are computed again later,
// which changes none of them because a row stands alone.
class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, BlockManager blocks);

  void add(std::unique_ptr<RequestState> request);
  void cancel(uint64_t request_id);  // unknown: already over
  void cancel(uint64_t request_id, int32_t sequence);
  const StepPlan& plan(int64_t now_ns);
  void commit(const StepOutput& output, int64_t now_ns);
  // After commit: what the drafter shall propose for the next step; copies from the context are proposed at once.
  const DraftPlan& plan_drafts();
  void commit_drafts(const Drafts& drafts, int64_t elapsed_ns);
  std::vector<Outgoing> take_events() { return std::move(events_); }
  void abort_all();

  const BlockManager& blocks() const { return blocks_; }
  const CostTable& costs() const { return speculation_.costs(); }
  // Adds the scheduler's facts to s.
  void count(EngineStats& s) const;

 private:
  struct Before {
    bool priority;
    bool operator()(const Sequence* a, const Sequence* b) const;
  };

  void plan_running(bool decodes);
  void plan_rows(Sequence& s);
  int64_t take_drafts(Sequence& s);
  void fill_constraint_masks(Sequence& s);
  int64_t rows_for(const Sequence& s) const;
  void admit_waiting(int64_t now_ns);
  bool may_admit(const Sequence& s) const;
  void start(Sequence& s, int64_t now_ns);
  void preempt(Sequence& s);
  void lay_out();
  void lay_out_logits(Sequence& s, const SequenceRows& rows);
  void fork_attached(Sequence& leader, int32_t logit_row);
  void add_sample(Sequence& s, int32_t logit_row, int64_t num_assumed);

  void count_step(int64_t rows);
  void commit_prompt_logprobs(const StepOutput& output);
  void commit_draw(const Draw& draw, const StepOutput& output, int64_t now_ns);
  void append(Sequence& s, const Sample& sample, TokenEvent& event);
  FinishReason finish_reason(const Sequence& s, int32_t token, std::optional<int32_t>& stop_token) const;
  void emit(Sequence& s, TokenEvent event);
  void finish(Sequence& s, FinishReason reason);
  void finish_early(Sequence& s, FinishReason reason, const std::string& error);
  void finish_request(RequestState& r, FinishReason reason, const std::string& error);
  void forget_finished();

  const SchedulerConfig config_;
  BlockManager blocks_;
  std::unordered_map<uint64_t, std::unique_ptr<RequestState>> requests_;
  std::vector<Sequence*> running_;       // in order of service
  std::set<Sequence*, Before> waiting_;  // in order of service
  std::vector<uint64_t> finished_;       // requests to be forgotten at the end of the step
  StepPlan plan_;
  int64_t plan_ns_ = 0;  // when the step was planned
  int64_t rows_left_ = 0, prompt_logit_rows_left_ = 0;
  bool preempted_ = false;
  std::vector<Outgoing> events_;
  EngineStats stats_;
  Speculation speculation_;
};

}  // namespace nib
