// Random requests that use every sampling parameter, and random engines for them with hardly any room.
//   Random random(seed);
//   FakeLoop loop(random_config(random));
//   loop.add(random_request(random, {.max_prompt = 40, .max_tokens = 24, .vocab = FakeNetwork::kVocab}));
#pragma once

#include <random>

#include "engine/testing/step_loop.h"

namespace nib::testing {

class Random {
 public:
  explicit Random(uint64_t seed) : rng_(seed) {}
  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(rng_); }
  double real(double low, double high) { return std::uniform_real_distribution<double>(low, high)(rng_); }
  bool one_in(int64_t n) { return between(1, n) == 1; }

 private:
  std::mt19937_64 rng_;
};

struct RequestLimits {
  int64_t max_prompt, max_tokens, vocab;
  bool poison = false;  // now and then a prompt whose logits are NaN
};

// Even and odd ids take turns, and none comes twice within three tokens.
class TakingTurns : public TokenConstraint {
 public:
  void fill_mask(std::span<uint32_t> words) const override {
    std::fill(words.begin(), words.end(), 0u);
    for (int32_t id = 0; id < static_cast<int32_t>(words.size()) * 32; ++id)
      if (may_come(id)) words[id / 32] |= 1u << (id % 32);
  }
  bool accept(int32_t token) override {
    if (!may_come(token)) return false;
    accepted_.push_back(token);
    return true;
  }
  void rewind(int64_t num_tokens) override {
    NIB_CHECK(num_tokens <= static_cast<int64_t>(accepted_.size()), "{} of {}", num_tokens, accepted_.size());
    accepted_.resize(accepted_.size() - num_tokens);
  }

 private:
  bool may_come(int32_t id) const {
    if (accepted_.empty()) return true;
    const std::span<const int32_t> recent = std::span(accepted_).last(std::min<size_t>(3, accepted_.size()));
    return id % 2 != accepted_.back() % 2 && std::ranges::find(recent, id) == recent.end();
  }

  std::vector<int32_t> accepted_;
};

inline void randomise(Random& random, SamplingParams& p, int64_t vocab) {
  const auto id = [&] { return static_cast<int32_t>(random.between(0, vocab - 2)); };
  p.temperature = random.one_in(3) ? 0 : random.real(0.2, 2);
  p.seed = random.between(0, 1 << 30);
  p.n = p.temperature > 0 && random.one_in(4) ? random.between(2, 4) : 1;
  p.eos_token_ids = {0};
  if (random.one_in(4)) p.top_k = random.between(1, 20);
  if (random.one_in(4)) p.top_p = random.real(0.1, 1);
  if (random.one_in(6)) p.min_p = random.real(0, 0.3);
  if (random.one_in(5)) p.repetition_penalty = random.real(0.7, 1.5);
  if (random.one_in(5)) p.presence_penalty = random.real(-1, 2);
  if (random.one_in(5)) p.frequency_penalty = random.real(-1, 2);
  if (random.one_in(6)) p.logit_bias = {{id(), 3.0f}, {id(), -50.0f}};
  if (random.one_in(8)) p.allowed_token_ids = {id(), id(), id(), 0};
  if (random.one_in(6)) p.bad_words = {{id()}, {id(), id()}};
  if (random.one_in(5)) p.stop_token_ids = {id(), id()};
  if (random.one_in(6)) p.ignore_eos = true;
  if (random.one_in(5)) p.min_tokens = random.between(0, p.max_tokens);
  if (random.one_in(4)) p.num_logprobs = static_cast<int>(random.between(0, 4));
  if (random.one_in(8)) p.num_prompt_logprobs = static_cast<int>(random.between(0, 2));
  if (random.one_in(8)) p.processed_logprobs = true;
  if (random.one_in(8)) p.logprob_token_ids = {id(), id()};
}

inline Request random_request(Random& random, const RequestLimits& limits) {
  Request r;
  for (int64_t i = random.between(1, limits.max_prompt); i > 0; --i)
    r.prompt.push_back(static_cast<int32_t>(random.between(1, limits.vocab - 2)));
  r.sampling.max_tokens = random.between(1, limits.max_tokens);
  r.priority = random.between(0, 3);
  randomise(random, r.sampling, limits.vocab);
  // With both, often no token is left; that ends all n sequences, wherever they are.
  const bool both = !r.sampling.allowed_token_ids.empty() && r.sampling.n > 1;
  if (random.one_in(6) && !both) r.make_constraint = [] { return std::make_unique<TakingTurns>(); };
  if (limits.poison && random.one_in(50)) r.prompt.back() = FakeNetwork::kPoison;
  return r;
}

inline StepLoopConfig random_config(Random& random) {
  StepLoopConfig c;
  c.shape.block_size = random.between(1, 5);
  c.shape.window = random.between(1, 12);
  c.max_num_batched_tokens = random.between(1, 24);
  c.max_prompt_logit_rows = random.between(1, 6);
  c.max_model_len = 64;
  c.priority = random.one_in(2);
  const int64_t seats = random.between(1, std::min<int64_t>(8, c.max_num_batched_tokens));
  const std::vector<CacheSpec> specs = FakeNetwork(c.shape).cache_specs();
  c.pools = {0, 0, seats};
  for (int g : {0, 1})  // one sequence of any length, and little more
    c.pools[g] = blocks_of_sequence(specs[g], c.max_model_len, c.max_num_batched_tokens) + random.between(0, 8);
  return c;
}

// A drafter, copies, or both, fixed lengths or scheduled ones, by a given cost table or by the clock; over a target
// that repeats itself or not. Seeded and greedy requests then have the answers of a run without.
inline void add_speculation(Random& random, StepLoopConfig& c) {
  using Method = SpeculativeConfig::Method;
  using Coupling = SpeculativeConfig::Coupling;
  SpeculativeConfig& s = c.speculation;
  s.method = random.one_in(3) ? Method::kNgram : Method::kDspark;
  s.copy_drafts = s.method == Method::kNgram || random.one_in(2);
  if (s.method == Method::kDspark) s.num_speculative_tokens = random.between(1, 7);
  if (s.copy_drafts) {
    s.max_copy_tokens = random.between(1, SpeculativeConfig::kMaxCopyTokens);
    s.prompt_lookup_min = random.between(1, 3);
    s.prompt_lookup_max = s.prompt_lookup_min + random.between(0, 9);
  }
  s.probabilistic_drafts = random.one_in(2);
  s.coupling = random.one_in(2) ? Coupling::kSeeded : Coupling::kAlways;
  s.adaptive_verification = random.one_in(2);
  if (random.one_in(2)) {
    const double row = random.real(1, 40), run = random.real(0, 200);
    c.costs.verify = CostCurve({{1, 100}, {8, 100 + 7 * row}, {24, 100 + 23 * row}});
    c.costs.draft = CostCurve({{1, run}, {8, 2 * run}});
  }
  c.row_ns = random.between(0, 100);
  c.draft_ns = random.between(0, 400);
  c.shape.period = random.one_in(2) ? random.between(1, 6) : 0;
  c.shape.max_rejected_rows = s.max_drafts();
  if (s.method == Method::kDspark)
    c.pools.push_back((c.max_model_len + c.shape.block_size - 1) / c.shape.block_size + random.between(0, 8));
}

}  // namespace nib::testing
