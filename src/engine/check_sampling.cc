#include <cmath>

#include "engine/engine.h"

namespace nib {

namespace {

constexpr int64_t kMaxN = 128;
constexpr double kMaxMagnitude = 1e30;  // of numbers without a range of their own

Status check_range(const char* name, double value, double low, double high) {
  if (value >= low && value <= high) return {};  // false for NaN
  return invalid_param(name, "{} must be between {} and {}, got {}.", name, low, high, value);
}

Status check_ids(const char* name, std::span<const int32_t> ids, int64_t vocab_size) {
  for (int32_t id : ids)
    if (id < 0 || id >= vocab_size)
      return invalid_param(name, "{} has token id {}, which is outside the vocabulary of {} tokens.", name, id,
                           vocab_size);
  return {};
}

Status check_numbers(const SamplingParams& p) {
  NIB_TRY(check_range("temperature", p.temperature, 0, kMaxMagnitude));
  if (!(p.top_p > 0 && p.top_p <= 1))
    return invalid_param("top_p", "top_p must be greater than 0 and at most 1, got {}.", p.top_p);
  if (p.top_k < -1) return invalid_param("top_k", "top_k must be -1 or 0 (off), or at least 1, got {}.", p.top_k);
  NIB_TRY(check_range("min_p", p.min_p, 0, 1));
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= kMaxMagnitude))
    return invalid_param("repetition_penalty", "repetition_penalty must be greater than 0, got {}.",
                         p.repetition_penalty);
  NIB_TRY(check_range("presence_penalty", p.presence_penalty, -2, 2));
  return check_range("frequency_penalty", p.frequency_penalty, -2, 2);
}

Status check_token_ids(const SamplingParams& p, int64_t vocab_size) {
  for (const auto& [id, bias] : p.logit_bias) {
    NIB_TRY(check_ids("logit_bias", {&id, 1}, vocab_size));
    if (!std::isfinite(bias)) return invalid_param("logit_bias", "logit_bias of token {} is not a number.", id);
  }
  NIB_TRY(check_ids("allowed_token_ids", p.allowed_token_ids, vocab_size));
  NIB_TRY(check_ids("stop_token_ids", p.stop_token_ids, vocab_size));
  NIB_TRY(check_ids("eos_token_ids", p.eos_token_ids, vocab_size));
  NIB_TRY(check_ids("logprob_token_ids", p.logprob_token_ids, vocab_size));
  for (const std::vector<int32_t>& word : p.bad_words) {
    if (word.empty()) return invalid_param("bad_words", "bad_words has a word without tokens.");
    NIB_TRY(check_ids("bad_words", word, vocab_size));
  }
  return {};
}

Status check_counts(const SamplingParams& p) {
  if (p.n < 1 || p.n > kMaxN) return invalid_param("n", "n must be between 1 and {}, got {}.", kMaxN, p.n);
  if (p.n > 1 && p.temperature == 0)
    return invalid_param("n", "n must be 1 when using greedy sampling (temperature 0), got {}.", p.n);
  if (p.max_tokens < 1) return invalid_param("max_tokens", "max_tokens must be at least 1, got {}.", p.max_tokens);
  if (p.min_tokens < 0) return invalid_param("min_tokens", "min_tokens must be at least 0, got {}.", p.min_tokens);
  if (p.min_tokens > p.max_tokens)
    return invalid_param("min_tokens", "min_tokens must be at most max_tokens={}, got {}.", p.max_tokens, p.min_tokens);
  return {};
}

Status check_logprobs(const SamplingParams& p, int64_t vocab_size, int max_logprobs) {
  const int64_t most = max_logprobs < 0 ? vocab_size : max_logprobs;
  if (p.num_logprobs < -1 || p.num_logprobs > most)
    return invalid_param("logprobs", "Requested sample logprobs of {}, which is outside 0 to {} (--max-logprobs).",
                         p.num_logprobs, most);
  if (p.num_prompt_logprobs < -1 || p.num_prompt_logprobs > most)
    return invalid_param("prompt_logprobs",
                         "Requested prompt logprobs of {}, which is outside 0 to {} (--max-logprobs).",
                         p.num_prompt_logprobs, most);
  return {};
}

Status check_lengths(const SamplingParams& p, int64_t prompt_tokens, int64_t max_model_len) {
  if (prompt_tokens < 1) return invalid_param("prompt", "The prompt has no tokens.");
  if (p.max_tokens > max_model_len)
    return invalid_param("max_tokens", "max_tokens={} is more than this model's maximum context length of {} tokens.",
                         p.max_tokens, max_model_len);
  if (prompt_tokens + p.max_tokens <= max_model_len) return {};
  return invalid_param("input_tokens",
                       "This model's maximum context length is {} tokens. However, you requested {} output tokens and "
                       "your prompt contains {} input tokens, for a total of {}. Please reduce the length of the input "
                       "prompt.",
                       max_model_len, p.max_tokens, prompt_tokens, prompt_tokens + p.max_tokens);
}

}  // namespace

Status check_sampling(const SamplingParams& p, int64_t prompt_tokens, int64_t vocab_size, int64_t max_model_len,
                      int max_logprobs) {
  NIB_TRY(check_numbers(p));
  NIB_TRY(check_counts(p));
  NIB_TRY(check_token_ids(p, vocab_size));
  NIB_TRY(check_logprobs(p, vocab_size, max_logprobs));
  return check_lengths(p, prompt_tokens, max_model_len);
}

}  // namespace nib
