// The sampling parameters of one sequence in the form the sampler reads, kept up to date token by token.
//   SamplingState state(params, seed, prompt, eos_ids);
//   state.append(token);                       // after each output token
//   state.banned_now(output, banned);          // ids that may not come next: min_tokens, bad words
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/request.h"

namespace nib {

// One id that a penalty touches.
struct TokenCount {
  int32_t id;
  int32_t in_output;  // 0: in the prompt only
};

// Owned by its Sequence; params must outlive it. Costs per step do not grow with the vocabulary.
class SamplingState {
 public:
  SamplingState(const SamplingParams& params, uint64_t seed, std::span<const int32_t> prompt);

  const SamplingParams& params() const { return *params_; }
  uint64_t seed() const { return seed_; }
  std::span<const TokenCount> counts() const { return counts_; }  // empty without penalties
  bool edits_logits() const { return edits_logits_; }             // apart from banned ids

  void append(int32_t token);
  void banned_now(std::span<const int32_t> output, std::vector<int32_t>& banned) const;
  bool is_eos(int32_t token) const;
  bool is_stop(int32_t token) const;

 private:
  TokenCount& count_of(int32_t id);

  const SamplingParams* params_;
  uint64_t seed_;
  bool penalises_ = false, edits_logits_ = false;
  std::vector<TokenCount> counts_;
  std::unordered_map<int32_t, int32_t> place_;  // id -> index in counts_
};

}  // namespace nib
