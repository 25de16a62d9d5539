#include "engine/sampling_state.h"

#include <algorithm>

namespace nib {

namespace {

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

bool ends_with(std::span<const int32_t> tokens, std::span<const int32_t> tail) {
  return tail.size() <= tokens.size() && std::equal(tail.begin(), tail.end(), tokens.end() - tail.size());
}

}  // namespace

SamplingState::SamplingState(const SamplingParams& p, uint64_t seed, std::span<const int32_t> prompt)
    : params_(&p), seed_(seed) {
  penalises_ = p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
  edits_logits_ = penalises_ || !p.logit_bias.empty() || !p.allowed_token_ids.empty();
  if (p.repetition_penalty == 1) return;
  for (int32_t id : prompt) count_of(id);
}

TokenCount& SamplingState::count_of(int32_t id) {
  const auto [it, is_new] = place_.try_emplace(id, static_cast<int32_t>(counts_.size()));
  if (is_new) counts_.push_back({id, 0});
  return counts_[it->second];
}

void SamplingState::append(int32_t token) {
  if (penalises_) ++count_of(token).in_output;
}

bool SamplingState::is_eos(int32_t token) const {
  return !params_->ignore_eos && contains(params_->eos_token_ids, token);
}

bool SamplingState::is_stop(int32_t token) const { return contains(params_->stop_token_ids, token); }

void SamplingState::banned_now(std::span<const int32_t> output, std::vector<int32_t>& banned) const {
  const SamplingParams& p = *params_;
  if (static_cast<int64_t>(output.size()) < p.min_tokens) {
    banned.insert(banned.end(), p.stop_token_ids.begin(), p.stop_token_ids.end());
    if (!p.ignore_eos) banned.insert(banned.end(), p.eos_token_ids.begin(), p.eos_token_ids.end());
  }
  for (const std::vector<int32_t>& word : p.bad_words)
    if (ends_with(output, std::span(word).first(word.size() - 1))) banned.push_back(word.back());
}

}  // namespace nib
