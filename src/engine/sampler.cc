#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "engine/spec_decode/rejection_sampler.h"
#include "engine/token_constraint.h"

namespace nib {

namespace {

bool all_finite(std::span<const float> x) {
  constexpr uint32_t kExponent = 0x7f800000u;
  uint32_t bad = 0;
  for (float f : x) bad |= (std::bit_cast<uint32_t>(f) & kExponent) == kExponent;
  return bad == 0;
}

// The maximum and the logarithm of the sum of exp(scale * (x - maximum)), added in id order.
struct LogSum {
  float max = kMasked;
  double log_sum = 0;
  double log_probability(float logit, double scale = 1) const {
    return scale * (static_cast<double>(logit) - max) - log_sum;
  }
};

LogSum log_sum_exp(std::span<const float> x, float scale = 1) {
  LogSum s;
  for (float f : x) s.max = std::max(s.max, f);
  double sum = 0;
  for (float f : x) sum += std::exp(scale * (f - s.max));
  s.log_sum = std::log(sum);
  return s;
}

void apply_penalties(std::span<float> x, const SamplingState& state, std::span<const int32_t> assumed) {
  const SamplingParams& p = state.params();
  const auto repetition = static_cast<float>(p.repetition_penalty), presence = static_cast<float>(p.presence_penalty),
             frequency = static_cast<float>(p.frequency_penalty);
  state.for_each_count(assumed, [&](const TokenCount& c) {
    float& logit = x[c.id];
    logit = logit > 0 ? logit / repetition : logit * repetition;
    if (c.in_output > 0) logit -= frequency * static_cast<float>(c.in_output) + presence;
  });
}

// Everything but the allowed ids is masked.
void keep_allowed(std::span<const float> from, std::span<float> to, const std::vector<int32_t>& allowed) {
  if (allowed.empty()) {
    std::copy(from.begin(), from.end(), to.begin());
    return;
  }
  std::fill(to.begin(), to.end(), kMasked);
  for (int32_t id : allowed) to[id] = from[id];
}

void keep_allowed(std::span<const uint32_t> mask, std::span<float> x) {
  for (size_t id = 0; id < x.size(); ++id)
    if (!is_allowed(mask, static_cast<int32_t>(id))) x[id] = kMasked;
}

}  // namespace

Sampler::Sampler(int64_t vocab_size, ThreadPool& pool) : vocab_size_(vocab_size), pool_(pool) {
  scratch_.resize(pool.num_threads());
  for (Scratch& s : scratch_) {
    s.logits.resize(vocab_size);
    s.candidates.reserve(vocab_size);
  }
}

void Sampler::prepare(std::span<const SampleRow> rows) {
  rows_.clear();
  banned_.clear();
  for (const SampleRow& row : rows) {
    const SamplingParams& p = row.state->params();
    check_row(row);
    Ready ready{row,
                inverse_temperature(p.temperature),
                p.top_k > 0 ? std::min(p.top_k, vocab_size_) : vocab_size_,
                p.top_p,
                std::log(p.min_p),
                banned_.size(),
                0};
    row.state->banned_now(row.output, banned_);
    ready.banned_end = banned_.size();
    rows_.push_back(ready);
  }
}

void Sampler::check_row(const SampleRow& row) const {
  NIB_CHECK(row.num_assumed <= static_cast<int64_t>(row.output.size()), "{} drafts assumed of {} tokens",
            row.num_assumed, row.output.size());
  for (int32_t id : row.output.last(row.num_assumed)) NIB_CHECK(id >= 0 && id < vocab_size_, "draft {} assumed", id);
  if (!row.allowed.empty()) NIB_CHECK_EQ(static_cast<int64_t>(row.allowed.size()), mask_words(vocab_size_));
  if (!row.draft_logits.empty()) NIB_CHECK_EQ(static_cast<int64_t>(row.draft_logits.size()), vocab_size_);
}

void Sampler::sample(View<const float, 2> logits, std::vector<Sample>& samples) {
  samples.assign(rows_.size(), {});
  pool_.parallel_for(static_cast<int64_t>(rows_.size()), [&](int64_t i, int thread) {
    const Ready& row = rows_[i];
    const std::span<const float> x(logits.data() + row.row.logit_row * logits.stride(0), logits.dim(1));
    samples[i] = sample_row(x, row, scratch_[thread]);
  });
}

Sample Sampler::sample_row(std::span<const float> logits, const Ready& row, Scratch& scratch) const {
  const SamplingParams& p = row.row.state->params();
  Sample out;
  if (!all_finite(logits)) {
    out.error = fmt::format("The model produced a logit that is not a number at position {}.", row.row.position);
    return out;
  }
  const std::span<const float> processed = process(logits, row, scratch);
  out.token = draw_token(processed, row, scratch);
  if (out.token < 0) {
    out.error = fmt::format(
        "No token is left to sample at position {}: allowed_token_ids, bad_words, logit_bias, min_tokens and the output"
        " format exclude all of them.",
        row.row.position);
    return out;
  }
  if (p.num_logprobs < 0 && p.logprob_token_ids.empty()) return out;
  if (p.processed_logprobs) cut_to_candidates(processed, row, scratch);
  out.logprobs = logprobs_of(p.processed_logprobs ? scratch.logits : logits, out.token, p.num_logprobs,
                             p.logprob_token_ids, scratch);
  return out;
}

// Allowed ids, bad words and minimum length, biases, penalties: the order of vLLM.
std::span<const float> Sampler::process(std::span<const float> logits, const Ready& row, Scratch& scratch) const {
  const SamplingState& state = *row.row.state;
  const std::span banned(banned_.data() + row.banned_begin, banned_.data() + row.banned_end);
  if (!state.edits_logits() && banned.empty() && row.row.allowed.empty()) return logits;
  const std::span<float> x = scratch.logits;
  keep_allowed(logits, x, state.params().allowed_token_ids);
  if (!row.row.allowed.empty()) keep_allowed(row.row.allowed, x);
  for (int32_t id : banned) x[id] = kMasked;
  for (const auto& [id, bias] : state.params().logit_bias) x[id] += std::clamp(bias, -100.0f, 100.0f);
  apply_penalties(x, state, row.row.output.last(row.row.num_assumed));
  return x;
}

int32_t Sampler::draw_token(std::span<const float> logits, const Ready& row, Scratch& scratch) const {
  const int32_t best = argmax(logits);
  if (row.inverse_temperature == 0 || best < 0) return best;
  const float max = logits[best];
  if (!truncates(row)) return draw_from(softmax_of(logits, max, row.inverse_temperature), row.row);
  std::vector<Candidate>& kept = scratch.candidates;
  truncate(logits, row, kept);
  return draw_from(softmax_of(std::span<const Candidate>(kept), max, row.inverse_temperature), row.row);
}

template <class Get>
int32_t Sampler::draw_from(const Softmax<Get>& p, const SampleRow& row) const {
  const uint64_t seed = row.state->seed();
  if (!row.coupled)
    if (const auto q = proposal_of(row.draft, row.draft_logits, vocab_size_, p.scale))
      return rejection_sample(p, *q, seed, row.position);
  return draw(p, Noise(seed, row.position));
}

bool Sampler::truncates(const Ready& row) const {
  return row.top_k < vocab_size_ || row.top_p < 1 || std::isfinite(row.log_min_p);
}

// min-p, then top-k, then top-p over what is left; equal logits rank by id; at least one candidate stays.
void Sampler::truncate(std::span<const float> logits, const Ready& row, std::vector<Candidate>& kept) const {
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const double scale = row.inverse_temperature;
  const float max = *std::max_element(logits.begin(), logits.end());
  const auto scaled = [&](float logit) { return scale * (static_cast<double>(logit) - max); };
  kept.clear();
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > kMasked && scaled(logits[i]) >= row.log_min_p) kept.push_back({logits[i], static_cast<int32_t>(i)});
  if (static_cast<int64_t>(kept.size()) > row.top_k) {
    std::nth_element(kept.begin(), kept.begin() + row.top_k, kept.end(), before);
    kept.resize(row.top_k);
  }
  if (row.top_p == 1) return;
  double total = 0;
  std::sort(kept.begin(), kept.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  for (const Candidate& c : kept) total += std::exp(scaled(c.logit));
  // Sorted in growing pieces: the nucleus is mostly small.
  double mass = 0;
  for (size_t sorted = 0, piece = 256; sorted < kept.size(); piece *= 8) {
    const size_t end = std::min(kept.size(), sorted + piece);
    std::partial_sort(kept.begin() + sorted, kept.begin() + end, kept.end(), before);
    for (; sorted < end; ++sorted) {
      mass += std::exp(scaled(kept[sorted].logit));
      if (mass >= row.top_p * total) return kept.resize(sorted + 1);
    }
  }
}

// scratch.logits becomes the distribution that was drawn from: scaled, and masked where it was truncated.
void Sampler::cut_to_candidates(std::span<const float> processed, const Ready& row, Scratch& scratch) const {
  const float scale = row.inverse_temperature == 0 ? 1 : row.inverse_temperature;
  if (row.inverse_temperature == 0 || !truncates(row)) {
    for (size_t i = 0; i < processed.size(); ++i) scratch.logits[i] = processed[i] * scale;
    return;
  }
  std::fill(scratch.logits.begin(), scratch.logits.end(), kMasked);
  for (const Candidate& c : scratch.candidates) scratch.logits[c.id] = c.logit * scale;
}

Logprobs Sampler::logprobs_of(std::span<const float> logits, int32_t token, int num_top, std::span<const int32_t> ids,
                              Scratch& scratch) const {
  const LogSum sum = log_sum_exp(logits);
  const auto entry = [&](int32_t id, int32_t rank) {
    return TokenLogprob{id, static_cast<float>(sum.log_probability(logits[id])), rank};
  };
  const auto rank_of = [&](int32_t id) {
    int32_t rank = 1;
    for (int32_t i = 0; i < static_cast<int32_t>(logits.size()); ++i)
      rank += logits[i] > logits[id] || (logits[i] == logits[id] && i < id);
    return rank;
  };
  Logprobs out{entry(token, rank_of(token)), {}};
  const auto before = [&](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  if (const int64_t k = std::min<int64_t>(num_top, logits.size()); k > 0) {
    std::vector<Candidate>& best = scratch.candidates;
    best.clear();
    for (size_t i = 0; i < logits.size(); ++i) best.push_back({logits[i], static_cast<int32_t>(i)});
    std::partial_sort(best.begin(), best.begin() + k, best.end(), before);
    for (int32_t r = 0; r < k; ++r) out.top.push_back(entry(best[r].id, r + 1));
  }
  for (int32_t id : ids) out.top.push_back(entry(id, rank_of(id)));
  return out;
}

void Sampler::prompt_logprobs(View<const float, 2> logits, std::span<const PromptRow> rows, std::vector<Sample>& out) {
  out.assign(rows.size(), {});
  pool_.parallel_for(static_cast<int64_t>(rows.size()), [&](int64_t i, int thread) {
    const PromptRow& row = rows[i];
    const std::span<const float> x(logits.data() + row.logit_row * logits.stride(0), logits.dim(1));
    if (!all_finite(x))
      out[i].error = "The model produced a logit that is not a number in the prompt.";
    else
      out[i].logprobs = logprobs_of(x, row.token, row.params->num_prompt_logprobs, {}, scratch_[thread]);
  });
}

}  // namespace nib
