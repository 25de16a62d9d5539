// Rows of logits to tokens: penalties and masks, temperature, min-p, top-k, top-p, then the Gumbel-max draw.
//   Sampler sampler(vocab_size, pool);
//   sampler.prepare(rows);                     // host work that needs no logits
//   sampler.sample(logits, samples);           // one Sample per prepared row
// A row's token is a function of its logits, its sequence's parameters and tokens, its seed and its position: nothing
// else in the batch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "compute/tensor/view.h"
#include "engine/sampling_state.h"

namespace nib {

// One token to be drawn. Several rows may share a row of logits (n > 1).
struct SampleRow {
  int32_t logit_row = 0;
  int64_t position = 0;  // of the token to be drawn, in the sequence
  const SamplingState* state = nullptr;
  std::span<const int32_t> output;  // tokens drawn so far
};

struct Sample {
  int32_t token = -1;
  std::optional<Logprobs> logprobs;
  std::string error;  // not empty: no token; one sentence for the client
};

// A prompt token whose logprob is wanted: `token` stands at the position after the row's.
struct PromptRow {
  int32_t logit_row = 0;
  int32_t token = 0;
  const SamplingParams* params = nullptr;
};

// Used by the engine thread; rows run in parallel on the pool.
class Sampler {
 public:
  Sampler(int64_t vocab_size, ThreadPool& pool);

  void prepare(std::span<const SampleRow> rows);
  void sample(View<const float, 2> logits, std::vector<Sample>& samples);
  void prompt_logprobs(View<const float, 2> logits, std::span<const PromptRow> rows, std::vector<Sample>& out);

 private:
  // A row with its parameters resolved to the numbers the draw uses.
  struct Ready {
    SampleRow row;
    float inverse_temperature;  // 0: greedy
    int64_t top_k;              // vocabulary size: off
    double top_p, log_min_p;    // 1 and -inf: off
    size_t banned_begin, banned_end;
  };
  struct Candidate {
    float logit;  // processed, before the temperature
    int32_t id;
  };
  // Of one thread; reserved at start.
  struct Scratch {
    std::vector<float> logits;
    std::vector<Candidate> candidates;
  };

  Sample sample_row(std::span<const float> logits, const Ready& row, Scratch& scratch) const;
  std::span<const float> process(std::span<const float> logits, const Ready& row, Scratch& scratch) const;
  int32_t draw(std::span<const float> logits, const Ready& row, Scratch& scratch) const;
  void truncate(std::span<const float> logits, const Ready& row, std::vector<Candidate>& kept) const;
  Logprobs logprobs_of(std::span<const float> logits, int32_t token, int num_top, std::span<const int32_t> ids,
                       Scratch& scratch) const;
  void cut_to_candidates(std::span<const float> logits, const Ready& row, Scratch& scratch) const;

  int64_t vocab_size_;
  ThreadPool& pool_;
  std::vector<Ready> rows_;
  std::vector<int32_t> banned_;
  std::vector<Scratch> scratch_;
};

}  // namespace nib
