#include "engine/spec_decode/speculation.h"

#include <algorithm>
#include <bit>

#include "base/log.h"
#include "engine/spec_decode/proposer.h"
#include "engine/spec_decode/verification_plan.h"

namespace nib {

namespace {

bool decodes(const Sequence& s) { return s.num_output() > 0 && s.num_pending() == 1; }

}  // namespace

Speculation::Speculation(const SpeculativeConfig& config, CostTable costs, int64_t max_model_len)
    : config_(config), max_model_len_(max_model_len), costs_(std::move(costs)) {}

bool Speculation::coupled(const SamplingParams& p) const {
  using Coupling = SpeculativeConfig::Coupling;
  return config_.coupling == Coupling::kAlways || (config_.coupling == Coupling::kSeeded && p.seed.has_value());
}

// ---- before the step

void Speculation::allocate(std::span<Sequence* const> running, int64_t rows_left, bool prompts_wait) {
  std::vector<Sequence*> with_drafts;
  std::vector<std::vector<double>> survivals;
  std::vector<int64_t> sizes;
  for (Sequence* s : running) {
    rows_left -= s->num_pending() == 1;
    prompts_wait |= s->num_pending() > 1;
    if (s->proposed.size() == 0) continue;
    with_drafts.push_back(s);
    survivals.push_back(s->proposed.survival);
    sizes.push_back(s->proposed.size());
  }
  if (prompts_wait) rows_left /= 2;
  const std::vector<int64_t> lengths = config_.adaptive_verification
                                           ? allocate_drafts(survivals, std::min(budget_, rows_left))
                                           : fixed_drafts(sizes, config_.max_drafts(), std::max<int64_t>(rows_left, 0));
  for (size_t i = 0; i < with_drafts.size(); ++i) with_drafts[i]->proposed.keep(lengths[i]);
}

// ---- after the step

void Speculation::record(Sequence& s, int64_t drafts, int64_t accepted, TokenEvent& event) {
  if (!config_.enabled()) return;
  const auto num_emitted = static_cast<int64_t>(event.tokens.size());
  verified_.push_back({&s, drafts, num_emitted});
  if (drafts == 0) return;
  // Drafts behind the end of the answer were not judged.
  const int64_t judged = num_emitted <= accepted ? num_emitted : drafts, kept = std::min(accepted, num_emitted);
  s.speculation->acceptance.observe(s.proposed.proposer, judged, kept);
  event.num_accepted_drafts = kept;
  event.num_rejected_drafts = judged - kept;
  ++stats_.num_drafts;
  stats_.num_draft_tokens += judged;
  stats_.num_accepted_tokens += kept;
  for (int64_t k = 0; k < std::min(kept, EngineStats::kMaxDrafts); ++k) ++stats_.accepted_per_position[k];
}

void Speculation::end_step(int64_t rows, int64_t sample_rows, int64_t elapsed_ns) {
  if (!config_.enabled()) return;
  if (rows == sample_rows && rows > 0) {
    watch(rows, elapsed_ns);
    costs_.verify.record(rows, static_cast<double>(elapsed_ns));
  }
  for (const Verified& v : verified_)
    if (v.sequence->speculation) v.sequence->speculation->acceptance.end_step();
  acceptance_.end_step();
  verified_.clear();
  draft_ns_ = draft_blocks_ = 0;
}

// What the step cost with the drafts of each sequence, and what it would have without.
void Speculation::watch(int64_t rows, int64_t elapsed_ns) {
  if (!config_.adaptive_verification) return;
  int64_t tokens = 0;
  for (const Verified& v : verified_) tokens += v.emitted;
  const auto cost = [&](int64_t r, int64_t blocks) {
    return costs_.verify.at(r) + (blocks > 0 ? costs_.draft.at(blocks) : 0);
  };
  for (const Verified& v : verified_) {
    SequenceSpeculation* state = v.sequence->speculation.get();
    if (!state) continue;
    if (!state->watchdog.may_draft()) {
      state->watchdog.rested();
      continue;
    }
    if (v.drafts == 0 || v.emitted == 0) continue;
    const int64_t own_block = v.sequence->proposed.proposer == Proposer::kDspark;
    const int64_t pauses = state->watchdog.num_pauses();
    state->watchdog.drafted({static_cast<double>(elapsed_ns + draft_ns_), cost(rows, draft_blocks_),
                             cost(rows - v.drafts, draft_blocks_ - own_block), tokens, tokens - (v.emitted - 1)});
    stats_.num_draft_pauses += state->watchdog.num_pauses() - pauses;
  }
}

// ---- drafts for the next step

// Tokens behind the next one that can still become part of the answer.
int64_t Speculation::useful_drafts(const Sequence& s) const {
  return std::min(s.sampling.params().max_tokens - s.num_output(), max_model_len_ - s.num_tokens()) - 1;
}

const DraftPlan& Speculation::plan_drafts(std::span<Sequence* const> running) {
  plan_.clear();
  proposed_.clear();
  drafter_survivals_.clear();
  budget_ = 0;
  if (!config_.enabled()) return plan_;
  const int64_t num_sequences = std::ranges::count_if(running, [](const Sequence* s) { return decodes(*s); });
  for (Sequence* s : running) {
    s->proposed = {};
    if (!s->speculation)
      s->speculation =
          std::make_unique<SequenceSpeculation>(config_.prompt_lookup_min, config_.prompt_lookup_max, acceptance_);
    if (config_.copy_drafts) read_tokens(*s);
    if (decodes(*s) && useful_drafts(*s) > 0 && s->speculation->watchdog.may_draft()) propose(*s, num_sequences);
  }
  if (config_.adaptive_verification && num_sequences > 0) {
    choose_budget(num_sequences);
    idle_steps_ = plan_.empty() ? idle_steps_ + 1 : 0;
  }
  return plan_;
}

// What is known of the sequence; as the prompt goes through in chunks, so does its reading.
void Speculation::read_tokens(Sequence& s) {
  CopyDrafter& copies = s.speculation->copies;
  while (copies.num_tokens() < std::min(s.num_computed + 1, s.num_tokens()))
    copies.append(s.token(copies.num_tokens()));
}

void Speculation::propose(Sequence& s, int64_t num_sequences) {
  SequenceSpeculation& state = *s.speculation;
  ProposerRequest request{num_sequences, num_sequences, num_sequences};
  const int64_t useful = useful_drafts(s), drafts = std::min(useful, config_.num_speculative_tokens);
  std::vector<int32_t> copy;
  if (config_.copy_drafts && state.copies.match_length() > 0)
    copy = state.copies.propose(std::min(useful, config_.max_copy_tokens));
  if (!copy.empty()) {
    request.copy = copy_proposer(state.copies.match_length());
    request.copy_survival = state.acceptance.survival(request.copy, static_cast<int64_t>(copy.size()));
  }
  if (drafts > 0 && !state.drafter_failed)
    request.drafter_survival = state.acceptance.survival(Proposer::kDspark, drafts);
  const Proposer proposer = choose(request);
  if (proposer == Proposer::kDspark) {
    ask_drafter(s, drafts);
    drafter_survivals_.push_back(std::move(request.drafter_survival));
  } else if (proposer != Proposer::kNone) {
    s.proposed = {proposer, std::move(copy), std::move(request.copy_survival)};
    proposed_.push_back(&s);
  }
}

// Without scheduling somebody always drafts.
Proposer Speculation::choose(const ProposerRequest& request) const {
  const Proposer best = choose_proposer(request, costs_).proposer;
  if (best != Proposer::kNone || config_.adaptive_verification) return best;
  return request.drafter_survival.empty() ? request.copy : Proposer::kDspark;
}

void Speculation::ask_drafter(Sequence& s, int64_t num_tokens) {
  plan_.sequences.push_back(&s);
  const int64_t position = s.num_computed;
  const DraftRange context = s.draft_context.end == position ? s.draft_context : DraftRange{position, position};
  plan_.blocks.push_back({s.output.back(), position, context.begin, context.end, num_tokens});
  plan_.coupled.push_back(coupled(s.sampling.params()));
}

// From estimates of past steps only; the drafter's confidence then decides who gets the budget.
void Speculation::choose_budget(int64_t num_sequences) {
  BudgetRequest request{num_sequences,
                        num_sequences,
                        static_cast<int64_t>(plan_.blocks.size()),
                        {},
                        {},
                        num_sequences * config_.max_drafts()};
  for (const std::vector<double>& survival : drafter_survivals_)
    request.drafter_survivals.insert(request.drafter_survivals.end(), survival.begin(), survival.end());
  for (const Sequence* s : proposed_)
    request.copy_survivals.insert(request.copy_survivals.end(), s->proposed.survival.begin(),
                                  s->proposed.survival.end());
  const VerificationBudget chosen = nib::choose_budget(request, costs_);
  budget_ = chosen.num_drafts;
  if (!chosen.run_drafter) plan_.clear();
}

void Speculation::commit_drafts(const Drafts& drafts, int64_t elapsed_ns) {
  const auto blocks = static_cast<int64_t>(plan_.blocks.size());
  costs_.draft.record(blocks, static_cast<double>(elapsed_ns));
  draft_ns_ = elapsed_ns;
  draft_blocks_ = blocks;
  const int64_t vocab = drafts.logits.dim(2);
  for (int64_t b = 0; b < blocks; ++b) {
    Sequence& s = *plan_.sequences[b];
    DraftTokens& p = s.proposed;
    p.proposer = Proposer::kDspark;
    for (int64_t k = 0; k < plan_.blocks[b].num_tokens && drafts.tokens(b, k) >= 0; ++k)
      p.tokens.push_back(drafts.tokens(b, k));
    p.survival = drafts.confidence.empty()
                     ? s.speculation->acceptance.survival(Proposer::kDspark, p.size())
                     : survival_from_confidence({drafts.confidence.row(b), static_cast<size_t>(p.size())});
    if (config_.probabilistic_drafts && s.sampling.params().temperature > 0)
      p.logits = {drafts.logits.row(b), static_cast<size_t>(p.size() * vocab)};
    if (p.size() == plan_.blocks[b].num_tokens) continue;
    s.speculation->drafter_failed = true;
    if (!std::has_single_bit(static_cast<uint64_t>(++stats_.num_draft_failures))) continue;  // enough to be noticed
    log::warn(
        "The drafter produced a logit that is not a number: request {} goes on without drafts; {} sequences so far.",
        s.request.request.id, stats_.num_draft_failures);
  }
}

void Speculation::count(EngineStats& s) const {
  s.num_drafts = stats_.num_drafts;
  s.num_draft_tokens = stats_.num_draft_tokens;
  s.num_accepted_tokens = stats_.num_accepted_tokens;
  s.accepted_per_position = stats_.accepted_per_position;
  s.num_draft_pauses = stats_.num_draft_pauses;
  s.num_draft_failures = stats_.num_draft_failures;
}

}  // namespace nib
