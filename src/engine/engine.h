// Tokens in, tokens out: one thread that owns the scheduler, the block pools and the sequences.
//   Result<std::unique_ptr<Engine>> engine = Engine::start({std::move(network)}, config);
//   Result<uint64_t> id = (*engine)->submit(request, channel);     // any thread; kUnavailable when the queue is full
//   (*engine)->cancel(*id);
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "engine/models.h"
#include "engine/request.h"
#include "engine/spec_decode/speculative_config.h"

namespace nib {

// Units in the names; defaults of vllm serve. Checked once by Engine::start.
struct EngineConfig {
  int64_t max_model_len = 0;  // tokens of prompt + output; 0: the model's own
  int64_t max_num_seqs = 128;
  int64_t max_num_batched_tokens = 2048;  // rows a step
  int64_t kv_cache_memory_bytes = 0;      // 0: a default by what the machine has free
  int64_t max_waiting_requests = 4096;
  bool priority_scheduling = false;  // else first come, first served
  int num_threads = 0;               // 0: one per core
  Isa isa = Isa::kRef;
  int64_t seed = 0;                    // of unseeded requests
  int max_logprobs = 20;               // most logprobs a position; -1: the whole vocabulary
  bool enable_prefix_caching = false;  // not there yet: true is a start error
  SpeculativeConfig speculation;
};

// Facts counted where they happen; read from any thread.
struct EngineStats {
  int64_t num_running = 0, num_waiting = 0;
  double kv_cache_usage = 0;  // of the fullest pool, 0..1
  int64_t num_preemptions = 0, num_prompt_tokens = 0, num_generation_tokens = 0, num_steps = 0;
  int64_t num_finished_stop = 0, num_finished_length = 0, num_finished_abort = 0, num_finished_error = 0;
  int64_t num_blocks = 0, block_size = 0;  // of the full-attention pool
  bool alive = true;
  // Steps by their number of rows: entry i counts those of more than bound i-1 and at most bound i; the last, all
  // beyond.
  static constexpr std::array<int64_t, 13> kStepRowsBounds = {1,   8,    16,   32,   64,   128,  256,
                                                              512, 1024, 2048, 4096, 8192, 16384};
  std::array<int64_t, kStepRowsBounds.size() + 1> steps_by_rows{};
  int64_t num_step_rows = 0;  // their sum

  // Speculation. A draft that stands behind the end of an answer was not judged and is not counted.
  static constexpr int64_t kMaxDrafts = 16;
  int64_t num_drafts = 0;  // verifications with at least one draft token
  int64_t num_draft_tokens = 0, num_accepted_tokens = 0;
  std::array<int64_t, kMaxDrafts> accepted_per_position{};
  int64_t num_draft_pauses = 0;    // of one sequence: drafting cost more than it gave
  int64_t num_draft_failures = 0;  // sequences whose drafter produced a NaN
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> start(Models models, const EngineConfig& config);
  ~Engine();  // stops the thread; requests that run end with kAbort

  Result<uint64_t> submit(Request request, std::shared_ptr<EventChannel> channel);
  void cancel(uint64_t id);                    // takes effect in the next step; the last event is kAbort
  void cancel(uint64_t id, int32_t sequence);  // only this one, 0 .. n-1
  EngineStats stats() const;
  const EngineConfig& config() const;  // with every 0 resolved
  const ModelConfig& model() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// 400s of the sampling parameters: ranges, ids outside the vocabulary, n with greedy, lengths against max_model_len.
Status check_sampling(const SamplingParams& p, int64_t prompt_tokens, int64_t vocab_size, int64_t max_model_len,
                      int max_logprobs);

}  // namespace nib
