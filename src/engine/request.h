// What a client asks of the engine and what it gets back: token ids in, token events out; no text anywhere.
//   Request r; r.prompt = ids; r.sampling.temperature = 0;
//   engine.submit(std::move(r), channel);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/token_constraint.h"

namespace nib {

// Defaults are those of the API. Checked by check_sampling() before a request is queued.
struct SamplingParams {
  double temperature = 1.0;  // 0: greedy
  double top_p = 1.0;
  int64_t top_k = 0;  // 0 or -1: off
  double min_p = 0.0;
  double repetition_penalty = 1.0, presence_penalty = 0.0, frequency_penalty = 0.0;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> allowed_token_ids;       // empty: all
  std::vector<std::vector<int32_t>> bad_words;  // token sequences that must not be completed
  std::vector<int32_t> stop_token_ids;          // beside eos_token_ids
  std::vector<int32_t> eos_token_ids;           // of the model; off under ignore_eos
  bool ignore_eos = false;
  int64_t min_tokens = 0;
  int64_t max_tokens = 16;
  std::optional<int64_t> seed;  // noise = f(seed, position, id)
  int64_t n = 1;                // sequences that share the prefill; sequence i of a seeded request uses seed + i
  int num_logprobs = -1;        // -1: none; 0: the sampled token's; k: and the k best
  int num_prompt_logprobs = -1;
  std::vector<int32_t> logprob_token_ids;  // logprobs of these ids at every position
  bool processed_logprobs = false;         // of the processed logits; else of the raw ones
};

enum class FinishReason { kNone, kStop, kLength, kAbort, kError };

struct TokenLogprob {
  int32_t id;
  float logprob;
  int32_t rank;  // 1 = the most likely
};

// Logprobs of one position: the token that stands there first, then the best k, then the ids asked for.
struct Logprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};

// When things happened to a sequence, in nanoseconds of the steady clock; 0: not yet.
struct RequestTimes {
  int64_t arrival_ns = 0, scheduled_ns = 0, first_token_ns = 0, last_token_ns = 0;
};

// One message of a request. Tokens of one sequence arrive in order; the last one of each sequence carries finish !=
// kNone.
struct TokenEvent {
  int32_t sequence = 0;            // 0 .. n-1
  std::vector<int32_t> tokens;     // new tokens (one, or several after speculation); the stop id is included
  std::vector<Logprobs> logprobs;  // one per token, if asked
  std::vector<std::optional<Logprobs>> prompt_logprobs;  // first event of sequence 0, if asked: [0] is empty
  FinishReason finish = FinishReason::kNone;
  std::optional<int32_t> stop_token;  // the stop_token_ids entry that ended it; empty for EOS
  std::string error;                  // kError: one sentence for the client
  int64_t num_cached_tokens = 0;      // of the prompt, first event
  int64_t num_accepted_drafts = 0;    // of the drafts that were judged for these tokens
  int64_t num_rejected_drafts = 0;
  RequestTimes times;  // of this sequence, up to this event
};

// Where the engine puts a request's events: bounded, wakes its reader. A reader that lets it fill is cancelled: events
// are lost from then on, but the last one of each sequence is always taken. Made by the server, shared with the engine
// thread.
class EventChannel {
 public:
  EventChannel(size_t capacity, std::function<void()> wake) : capacity_(capacity), wake_(std::move(wake)) {}
  bool push(TokenEvent event);      // engine thread; false: full, the engine cancels the request
  std::vector<TokenEvent> drain();  // reader; everything that is there
  bool overflowed() const;

 private:
  struct State;
  const size_t capacity_;
  // Called after each push, from the engine thread; must not block. Own what it touches: the call after the last event
  // may come when the reader has that event already.
  std::function<void()> wake_;
  std::shared_ptr<State> state_ = make_state();
  static std::shared_ptr<State> make_state();
};

struct Request {
  uint64_t id = 0;          // given by Engine::submit
  std::string external_id;  // for the log
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int64_t priority = 0;  // lower runs earlier, under priority scheduling
  // One for each of the n sequences, made by the engine thread; empty: any token may come.
  std::function<std::unique_ptr<TokenConstraint>()> make_constraint;
};

}  // namespace nib
