// The state of one sequence of a request, and of the request whose n sequences share a prompt.
//   RequestState r(std::move(request), channel, seed, now);
//   r.sequences[0]->output;
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/block_manager.h"
#include "engine/request.h"
#include "engine/sampling_state.h"
#include "engine/spec_decode/draft_tokens.h"
#include "engine/spec_decode/sequence_speculation.h"

namespace nib {

struct RequestState;

struct Sequence {
  // kAttached: waits for sequence 0 to finish the prompt, then shares its blocks.
  enum class State { kAttached, kWaiting, kRunning, kFinished };

  Sequence(RequestState& r, int32_t i);

  RequestState& request;
  const int32_t index;  // 0 .. n-1
  State state = State::kWaiting;
  const std::vector<int32_t>& prompt;  // of the request: n sequences share one
  std::vector<int32_t> output;         // what was sampled, followed by the drafts that the current step verifies
  int64_t num_drafts = 0;              // of them at the end of output
  int64_t num_computed = 0;            // tokens in the cache
  int64_t num_planned = 0;             // rows in the current step
  SequenceCache cache;
  SamplingState sampling;
  std::unique_ptr<TokenConstraint> constraint;  // null: any token may come
  std::vector<uint32_t> constraint_masks;       // [rows that sample, words] of the current step
  RequestTimes times;
  DraftTokens proposed;                              // for the next step
  DraftRange draft_context;                          // what the drafter knows of this sequence
  std::unique_ptr<SequenceSpeculation> speculation;  // null before its first step under speculation

  int64_t num_prompt() const { return static_cast<int64_t>(prompt.size()); }
  int64_t num_output() const { return static_cast<int64_t>(output.size()) - num_drafts; }
  int64_t num_tokens() const { return num_prompt() + num_output(); }
  int64_t num_pending() const { return num_tokens() - num_computed; }
  void drop_drafts() { output.resize(output.size() - std::exchange(num_drafts, 0)); }
  // Of sampled tokens and of the drafts behind them.
  int32_t token(int64_t position) const {
    return position < num_prompt() ? prompt[position] : output[position - num_prompt()];
  }
};

// Owned by the scheduler, dies when its last sequence has finished.
struct RequestState {
  RequestState(Request r, std::shared_ptr<EventChannel> events, uint64_t seed, int64_t now_ns);

  const Request request;
  const std::shared_ptr<EventChannel> channel;
  const uint64_t seed;  // sequence i uses seed + i
  const int64_t arrival_ns;
  std::vector<std::unique_ptr<Sequence>> sequences;
  int64_t num_unfinished;
  std::vector<std::optional<Logprobs>> prompt_logprobs;  // grows with the prefill of sequence 0

  int64_t num_attached() const;
  // Prompt positions whose logprobs sequence `s` still has to produce; 0: none.
  bool wants_prompt_logprobs(const Sequence& s) const;
};

inline Sequence::Sequence(RequestState& r, int32_t i)
    : request(r),
      index(i),
      state(i == 0 ? State::kWaiting : State::kAttached),
      prompt(r.request.prompt),
      sampling(r.request.sampling, r.seed + static_cast<uint64_t>(i), r.request.prompt),
      constraint(r.request.make_constraint ? r.request.make_constraint() : nullptr) {
  times.arrival_ns = r.arrival_ns;
}

inline RequestState::RequestState(Request r, std::shared_ptr<EventChannel> events, uint64_t s, int64_t now_ns)
    : request(std::move(r)),
      channel(std::move(events)),
      seed(s),
      arrival_ns(now_ns),
      num_unfinished(request.sampling.n) {
  for (int32_t i = 0; i < request.sampling.n; ++i) sequences.push_back(std::make_unique<Sequence>(*this, i));
  if (request.sampling.num_prompt_logprobs >= 0) prompt_logprobs.emplace_back();  // nothing predicts the first token
}

inline int64_t RequestState::num_attached() const {
  int64_t n = 0;
  for (const auto& s : sequences) n += s->state == Sequence::State::kAttached;
  return n;
}

inline bool RequestState::wants_prompt_logprobs(const Sequence& s) const {
  return s.index == 0 && !prompt_logprobs.empty() && static_cast<int64_t>(prompt_logprobs.size()) < s.num_prompt();
}

}  // namespace nib
