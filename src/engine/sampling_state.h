// The sampling parameters of one sequence in the form the sampler reads, kept up to date token by token.
//   SamplingState state(params, seed, prompt, eos_ids);
//   state.append(token);                       // after each output token
//   state.for_each_count(drafts, visit);       // what penalties touch, as if the drafts had been appended
//   state.banned_now(output, banned);          // ids that may not come next: min_tokens, bad words
#pragma once

#include <algorithm>
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
  bool edits_logits() const { return edits_logits_; }  // apart from banned ids

  void append(int32_t token);
  // Every id that a penalty touches, once, counted as if `assumed` had been appended; none without penalties.
  template <class Visit>
  void for_each_count(std::span<const int32_t> assumed, const Visit& visit) const;
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

template <class Visit>
void SamplingState::for_each_count(std::span<const int32_t> assumed, const Visit& visit) const {
  if (!penalises_) return;
  const auto times = [](std::span<const int32_t> ids, int32_t id) {
    return static_cast<int32_t>(std::count(ids.begin(), ids.end(), id));
  };
  for (const TokenCount& c : counts_) visit(TokenCount{c.id, c.in_output + times(assumed, c.id)});
  for (size_t i = 0; i < assumed.size(); ++i) {
    const int32_t id = assumed[i];
    if (!place_.contains(id) && times(assumed.first(i), id) == 0) visit(TokenCount{id, times(assumed, id)});
  }
}

}  // namespace nib
