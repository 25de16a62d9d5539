// The engine's loop without its thread, stepped by hand, and the answer that each request must get.
//   FakeLoop loop({.pools = {16, 8, 4}});
//   uint64_t id = loop.add(request);   loop.step();   loop.cancel(id);   loop.run();
//   EXPECT_EQ(loop.answer(id, 0), loop.solo(request, 0));
#pragma once

#include <map>
#include <ostream>

#include "engine/runner.h"
#include "engine/scheduler.h"
#include "engine/testing/fake_drafter.h"
#include "engine/testing/fake_network.h"

namespace nib::testing {

// What a client has at the end of one sequence.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<Logprobs> logprobs;
  std::vector<std::optional<Logprobs>> prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  std::optional<int32_t> stop_token;
  std::string error;
  int64_t num_accepted_drafts = 0, num_rejected_drafts = 0;  // how it came about: no part of the answer
};

inline bool operator==(const TokenLogprob& a, const TokenLogprob& b) {
  return a.id == b.id && a.logprob == b.logprob && a.rank == b.rank;
}

inline bool same(const Logprobs& a, const Logprobs& b) {
  return a.chosen.id == b.chosen.id && a.chosen.logprob == b.chosen.logprob && a.chosen.rank == b.chosen.rank &&
         std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(),
                    [](const TokenLogprob& x, const TokenLogprob& y) {
                      return x.id == y.id && x.logprob == y.logprob && x.rank == y.rank;
                    });
}

inline bool operator==(const Answer& a, const Answer& b) {
  const auto same_or_none = [](const std::optional<Logprobs>& x, const std::optional<Logprobs>& y) {
    return x.has_value() == y.has_value() && (!x || same(*x, *y));
  };
  return a.tokens == b.tokens && a.finish == b.finish && a.stop_token == b.stop_token && a.error == b.error &&
         std::equal(a.logprobs.begin(), a.logprobs.end(), b.logprobs.begin(), b.logprobs.end(), same) &&
         std::equal(a.prompt_logprobs.begin(), a.prompt_logprobs.end(), b.prompt_logprobs.begin(),
                    b.prompt_logprobs.end(), same_or_none);
}

inline std::ostream& operator<<(std::ostream& out, const Answer& a) {
  out << "finish " << static_cast<int>(a.finish) << " '" << a.error << "' logprobs " << a.logprobs.size() << " prompt "
      << a.prompt_logprobs.size() << " tokens";
  for (int32_t t : a.tokens) out << ' ' << t;
  return out;
}

// Adds an event to the answer it belongs to.
inline void append(Answer& a, const TokenEvent& e) {
  a.tokens.insert(a.tokens.end(), e.tokens.begin(), e.tokens.end());
  a.logprobs.insert(a.logprobs.end(), e.logprobs.begin(), e.logprobs.end());
  a.prompt_logprobs.insert(a.prompt_logprobs.end(), e.prompt_logprobs.begin(), e.prompt_logprobs.end());
  a.finish = e.finish;
  a.stop_token = e.stop_token;
  a.error = e.error;
  a.num_accepted_drafts += e.num_accepted_drafts;
  a.num_rejected_drafts += e.num_rejected_drafts;
}

// The answer of one sequence computed alone and without caches: one row of reference logits, one draw.
inline Answer solo_answer(const FakeNetwork& network, const Request& r, int32_t index, uint64_t seed,
                          int64_t max_model_len) {
  ThreadPool pool(1);
  Sampler sampler(FakeNetwork::kVocab, pool);
  const SamplingParams& p = r.sampling;
  SamplingState state(p, seed + index, r.prompt);
  const std::unique_ptr<TokenConstraint> constraint = r.make_constraint ? r.make_constraint() : nullptr;
  std::vector<uint32_t> mask(constraint ? mask_words(FakeNetwork::kVocab) : 0);
  std::vector<int32_t> tokens = r.prompt;
  std::vector<Sample> out;
  Answer a;
  const auto logits_after = [&](size_t n) { return network.reference_logits(std::span(tokens).first(n)); };
  const auto view = [](const std::vector<float>& x) {
    return View<const float, 2>(x.data(), {1, FakeNetwork::kVocab});
  };
  if (index == 0 && p.num_prompt_logprobs >= 0) a.prompt_logprobs.emplace_back();
  for (size_t n = 1; !a.prompt_logprobs.empty() && n < r.prompt.size(); ++n) {
    const PromptRow row{0, tokens[n], &p};
    sampler.prompt_logprobs(view(logits_after(n)), {&row, 1}, out);
    a.prompt_logprobs.push_back(out[0].logprobs);
  }
  while (a.finish == FinishReason::kNone) {
    const std::vector<float> logits = logits_after(tokens.size());
    if (constraint) constraint->fill_mask(mask);
    const SampleRow row{0,   static_cast<int64_t>(tokens.size()), &state, std::span(tokens).subspan(r.prompt.size()), 0,
                        mask};
    sampler.prepare({&row, 1});
    sampler.sample(view(logits), out);
    a.error = out[0].error;
    if (!a.error.empty()) {
      a.finish = FinishReason::kError;
      break;
    }
    const int32_t t = out[0].token;
    tokens.push_back(t);
    a.tokens.push_back(t);
    state.append(t);
    if (constraint) NIB_CHECK(constraint->accept(t), "token {}", t);
    if (out[0].logprobs) a.logprobs.push_back(*out[0].logprobs);
    if (state.is_eos(t))
      a.finish = FinishReason::kStop;
    else if (state.is_stop(t))
      a.finish = FinishReason::kStop, a.stop_token = t;
    else if (static_cast<int64_t>(a.tokens.size()) >= p.max_tokens ||
             static_cast<int64_t>(tokens.size()) >= max_model_len)
      a.finish = FinishReason::kLength;
  }
  if (a.finish == FinishReason::kError && a.tokens.empty()) a.prompt_logprobs.clear();  // they travel with the token
  return a;
}

struct StepLoopConfig {
  std::vector<int64_t> pools = {64, 64, 4};  // blocks of full and window attention; slots
  int64_t max_num_batched_tokens = 8;
  int64_t max_prompt_logit_rows = 5;
  int64_t max_model_len = 128;
  bool priority = false;
  int num_threads = 1;
  Isa isa = Isa::kRef;
  FakeShape shape = {};
  SpeculativeConfig speculation = {};  // pools then name those of the drafter last, if there is one
  CostTable costs = {};                // of speculation; empty: measured by the clock of the loop
  int64_t row_ns = 0, draft_ns = 0;    // that clock: what a row of a step takes, and a run of the drafter

  int64_t max_num_seqs() const { return pools[2]; }
};

class StepLoop {
 public:
  StepLoop(const StepLoopConfig& c, Models models)
      : config_(c),
        scheduler_({c.max_num_seqs(), c.max_num_batched_tokens, c.max_prompt_logit_rows, c.max_model_len,
                    models.target->config().unpadded_vocab_size, c.priority, c.speculation, c.costs},
                   BlockManager(models.cache_specs(), c.pools)),
        runner_(std::move(models),
                {c.max_num_seqs(), c.max_num_batched_tokens, c.max_num_batched_tokens + c.max_prompt_logit_rows,
                 c.max_model_len, c.num_threads, c.isa, c.speculation.num_speculative_tokens,
                 c.speculation.probabilistic_drafts},
                c.pools) {}

  uint64_t add(Request r) {
    const uint64_t seed = seed_of(r);
    return add(std::move(r), seed);
  }

  uint64_t add(Request r, uint64_t seed) {
    r.id = ++last_id_;
    scheduler_.add(std::make_unique<RequestState>(std::move(r), nullptr, seed, 0));
    return last_id_;
  }

  // False: there was nothing to do.
  bool step() {
    const StepPlan& plan = scheduler_.plan(now_ns_);
    if (plan.empty()) return false;
    now_ns_ += config_.row_ns * static_cast<int64_t>(plan.tokens.size());
    scheduler_.commit(runner_.run(plan), now_ns_);
    take_events();
    if (const DraftPlan& drafts = scheduler_.plan_drafts(); !drafts.empty())
      scheduler_.commit_drafts(runner_.draft(drafts), config_.draft_ns);
    return true;
  }

  void run() {
    while (step()) {
    }
  }

  void cancel(uint64_t id) {
    scheduler_.cancel(id);
    take_events();
  }

  void cancel(uint64_t id, int32_t sequence) {
    scheduler_.cancel(id, sequence);
    take_events();
  }

  const Answer& answer(uint64_t id, int32_t index) { return answers_[{id, index}]; }
  EngineStats stats() const {
    EngineStats s;
    scheduler_.count(s);
    return s;
  }

  // Every block and slot is back.
  bool pools_full() const {
    for (size_t g = 0; g < config_.pools.size(); ++g)
      if (scheduler_.blocks().pool(g).num_free() != config_.pools[g]) return false;
    return true;
  }

  static uint64_t seed_of(const Request& r) { return static_cast<uint64_t>(r.sampling.seed.value_or(99)); }

 protected:
  const StepLoopConfig config_;

 private:
  void take_events() {
    for (Outgoing& out : scheduler_.take_events()) append(answers_[{out.request_id, out.event.sequence}], out.event);
  }

  Scheduler scheduler_;
  Runner runner_;
  uint64_t last_id_ = 0;
  int64_t now_ns_ = 0;
  std::map<std::pair<uint64_t, int32_t>, Answer> answers_;
};

// Over the fake network, with the answers known beforehand.
class FakeLoop : public StepLoop {
 public:
  explicit FakeLoop(const StepLoopConfig& c, const FakeDraftShape& draft = {})
      : StepLoop(c, {std::make_unique<FakeNetwork>(c.shape), fake_drafter(c, draft)}), reference_(c.shape) {}

  Answer solo(const Request& r, int32_t index) const {
    return solo_answer(reference_, r, index, seed_of(r), config_.max_model_len);
  }

 private:
  static std::unique_ptr<Drafter> fake_drafter(const StepLoopConfig& c, const FakeDraftShape& draft) {
    if (c.speculation.method != SpeculativeConfig::Method::kDspark) return nullptr;
    return std::make_unique<FakeDrafter>(draft, c.shape);
  }

  FakeNetwork reference_;
};

}  // namespace nib::testing
