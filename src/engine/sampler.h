// Rows of logits to tokens: penalties and masks, temperature, min-p, top-k, top-p, then the Gumbel-max draw.
//   Sampler sampler(vocab_size, pool);
//   sampler.prepare(rows);                     // host work that needs no logits
//   sampler.sample(logits, samples);           // one Sample per prepared row
// A row's token is a function of its logits, its sequence's parameters and tokens, its seed and its position, and of
// its draft if it is judged by rejection: nothing else in the batch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "compute/tensor/view.h"
#include "engine/sampling_state.h"
#include "engine/softmax.h"

namespace nib {

// One token to be drawn. Several rows may share a row of logits (n > 1).
struct SampleRow {
  int32_t logit_row = 0;
  int64_t position = 0;  // of the token to be drawn, in the sequence
  const SamplingState* state = nullptr;
  std::span<const int32_t> output = {};    // tokens drawn so far, then the drafts this row assumes to be accepted
  int64_t num_assumed = 0;                 // of the last of `output`: not yet appended to `state`
  std::span<const uint32_t> allowed = {};  // TokenConstraint's mask; empty: all

  int32_t draft = -1;  // proposed for this position; -1: none
  // Coupled: the token is what it would be without the draft. Else the draft is judged by rejection sampling, and the
  // token has the same distribution only. Either way the draft is accepted iff it is the token.
  bool coupled = true;
  // What the draft was drawn from by softmax(logits / temperature), for rejection; empty: the draft was certain.
  std::span<const float> draft_logits = {};
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
  // Of one thread; reserved at start.
  struct Scratch {
    std::vector<float> logits;
    std::vector<Candidate> candidates;
  };

  void check_row(const SampleRow& row) const;
  Sample sample_row(std::span<const float> logits, const Ready& row, Scratch& scratch) const;
  std::span<const float> process(std::span<const float> logits, const Ready& row, Scratch& scratch) const;
  int32_t draw_token(std::span<const float> logits, const Ready& row, Scratch& scratch) const;
  template <class Get>
  int32_t draw_from(const Softmax<Get>& p, const SampleRow& row) const;
  bool truncates(const Ready& row) const;
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
