#include "engine/scheduler.h"

#include <algorithm>
#include <tuple>

namespace nib {

using State = Sequence::State;

void StepPlan::clear() {
  tokens.clear();
  rows.clear();
  sequences.clear();
  logit_rows.clear();
  sample_rows.clear();
  draws.clear();
  prompt_rows.clear();
  prompt_owner.clear();
  copies.clear();
}

int64_t num_accepted(const StepPlan& plan, const Draw& draw, const StepOutput& output) {
  int64_t n = 0;
  while (n < draw.num_drafts() && output.samples[draw.begin + n].token == plan.sample_rows[draw.begin + n].draft) ++n;
  return n;
}

bool Scheduler::Before::operator()(const Sequence* a, const Sequence* b) const {
  const auto key = [this](const Sequence& s) {
    const Request& r = s.request.request;
    return std::tuple(priority ? r.priority : 0, r.id, s.index);
  };
  return key(*a) < key(*b);
}

Scheduler::Scheduler(const SchedulerConfig& config, BlockManager blocks)
    : config_(config),
      blocks_(std::move(blocks)),
      waiting_(Before{config.priority}),
      speculation_(config.speculation, config.costs, config.max_model_len) {}

void Scheduler::add(std::unique_ptr<RequestState> request) {
  stats_.num_prompt_tokens += static_cast<int64_t>(request->request.prompt.size());
  waiting_.insert(request->sequences[0].get());
  requests_.emplace(request->request.id, std::move(request));
}

// ---- plan: which rows run

const StepPlan& Scheduler::plan(int64_t now_ns) {
  plan_.clear();
  plan_ns_ = now_ns;
  plan_.feeds_drafter = speculation_.feeds_drafter();
  rows_left_ = config_.max_num_batched_tokens;
  prompt_logit_rows_left_ = config_.max_prompt_logit_rows;
  preempted_ = false;
  for (Sequence* s : running_) s->num_planned = 0;
  speculation_.allocate(running_, rows_left_, !waiting_.empty());
  plan_running(/*decodes=*/true);
  plan_running(/*decodes=*/false);
  if (!preempted_) admit_waiting(now_ns);
  lay_out();
  return plan_;
}

void Scheduler::plan_running(bool decodes) {
  // plan_rows may preempt sequences at the end of running_, so the index is checked anew each time.
  for (size_t i = 0; i < running_.size() && rows_left_ > 0; ++i)
    if (Sequence& s = *running_[i]; s.num_planned == 0 && (s.num_pending() == 1) == decodes) plan_rows(s);
}

int64_t Scheduler::rows_for(const Sequence& s) const {
  const int64_t rows = std::min(s.num_pending(), rows_left_);
  return s.request.wants_prompt_logprobs(s) ? std::min(rows, prompt_logit_rows_left_) : rows;
}

void Scheduler::plan_rows(Sequence& s) {
  int64_t rows = rows_for(s);
  if (rows == 0) return;
  while (!blocks_.grow(s.cache, s.num_computed + rows)) {
    Sequence& last = *running_.back();
    preempt(last);
    if (&last == &s) return;
  }
  rows += take_drafts(s);
  s.num_planned = rows;
  rows_left_ -= rows;
  if (s.request.wants_prompt_logprobs(s)) prompt_logit_rows_left_ -= rows;
}

// The drafts that follow the one pending token, if there is room: nobody makes way for a guess.
int64_t Scheduler::take_drafts(Sequence& s) {
  const int64_t drafts = std::min(s.proposed.size(), rows_left_ - 1);
  if (drafts <= 0 || s.num_pending() != 1 || !blocks_.grow(s.cache, s.num_computed + 1 + drafts)) return 0;
  s.output.insert(s.output.end(), s.proposed.tokens.begin(), s.proposed.tokens.begin() + drafts);
  return s.num_drafts = drafts;
}

void Scheduler::preempt(Sequence& s) {
  running_.pop_back();
  rows_left_ += s.num_planned;
  if (s.request.wants_prompt_logprobs(s)) prompt_logit_rows_left_ += s.num_planned;
  blocks_.release(s.cache);
  s.drop_drafts();
  s.proposed = {};
  s.draft_context = {};
  s.num_planned = s.num_computed = 0;
  s.state = State::kWaiting;
  waiting_.insert(&s);
  preempted_ = true;
  ++stats_.num_preemptions;
}

void Scheduler::admit_waiting(int64_t now_ns) {
  while (!waiting_.empty() && rows_left_ > 0 && may_admit(**waiting_.begin())) {
    Sequence& s = **waiting_.begin();
    if (rows_for(s) == 0) return;
    waiting_.erase(waiting_.begin());
    start(s, now_ns);
    plan_rows(s);
    NIB_CHECK(s.num_planned > 0, "a sequence was admitted without room for it");
  }
}

// There must be a seat for it and for those that will share its prompt, and blocks for all its tokens so that it is not
// preempted at once. The first to be served when nothing runs always may: the pools hold one sequence of any length.
bool Scheduler::may_admit(const Sequence& s) const {
  int64_t seats = static_cast<int64_t>(running_.size());
  for (const Sequence* r : running_)
    if (r->index == 0 && r->num_output() == 0) seats += r->request.num_attached();
  const int64_t wanted = s.index == 0 ? 1 + s.request.num_attached() : 1;
  if (running_.empty()) return true;
  if (seats + wanted > config_.max_num_seqs) return false;
  return blocks_.has_room(s.num_tokens(), config_.max_num_batched_tokens);
}

void Scheduler::start(Sequence& s, int64_t now_ns) {
  s.state = State::kRunning;
  if (s.times.scheduled_ns == 0) s.times.scheduled_ns = now_ns;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &s, Before{config_.priority}), &s);
}

// ---- plan: the rows as arrays

void Scheduler::lay_out() {
  for (Sequence* s : running_)
    if (s->num_planned > 0) plan_.sequences.push_back(s);
  for (Sequence* s : plan_.sequences) {
    const SequenceRows rows{static_cast<int64_t>(plan_.tokens.size()), s->num_planned, s->num_computed};
    plan_.rows.push_back(rows);
    if (plan_.feeds_drafter && s->draft_context.end != rows.start) s->draft_context = {rows.start, rows.start};
    fill_constraint_masks(*s);
    for (int64_t i = 0; i < s->num_planned; ++i) plan_.tokens.push_back(s->token(s->num_computed + i));
    lay_out_logits(*s, rows);
  }
}

void Scheduler::lay_out_logits(Sequence& s, const SequenceRows& rows) {
  const bool prompt_logprobs = s.request.wants_prompt_logprobs(s);
  const auto made = static_cast<int64_t>(s.request.prompt_logprobs.size());  // of positions 0 .. made-1
  for (int64_t i = 0; i < rows.count; ++i) {
    const int64_t next = rows.start + i + 1;  // the position that this row predicts
    const bool predicts_prompt = prompt_logprobs && next >= made && next < s.num_prompt();
    const bool predicts_output = next >= s.num_tokens();
    if (!predicts_prompt && !predicts_output) continue;
    const auto logit_row = static_cast<int32_t>(plan_.logit_rows.size());
    plan_.logit_rows.push_back(static_cast<int32_t>(rows.begin + i));
    if (predicts_prompt) {
      plan_.prompt_rows.push_back({logit_row, s.token(next), &s.request.request.sampling});
      plan_.prompt_owner.push_back(&s);
    }
    if (predicts_output) {
      add_sample(s, logit_row, next - s.num_tokens());
      if (s.index == 0 && s.num_output() == 0) fork_attached(s, logit_row);
    }
  }
}

// One mask for each row that may count. Rows behind a draft that is not allowed have none: that draft is never
// accepted.
void Scheduler::fill_constraint_masks(Sequence& s) {
  s.constraint_masks.clear();
  if (!s.constraint) return;
  const int64_t words = mask_words(config_.vocab_size);
  s.constraint_masks.resize((s.num_drafts + 1) * words);
  const View<uint32_t, 2> masks(s.constraint_masks.data(), {s.num_drafts + 1, words});
  const int64_t filled = fill_masks(*s.constraint, std::span(s.output).last(s.num_drafts), masks);
  s.constraint_masks.resize(filled * words);
}

// The row that draws the token behind so many of the drafts, and judges the next one.
void Scheduler::add_sample(Sequence& s, int32_t logit_row, int64_t num_assumed) {
  SampleRow row{logit_row, s.num_tokens() + num_assumed, &s.sampling,
                std::span(s.output).first(s.num_output() + num_assumed), num_assumed};
  if (num_assumed < s.num_drafts) {
    row.draft = s.proposed.tokens[num_assumed];
    row.draft_logits = s.proposed.logits_of(num_assumed);
    row.coupled = speculation_.coupled(s.sampling.params());
  }
  const auto words = static_cast<size_t>(mask_words(config_.vocab_size)), mask = num_assumed * words;
  if (mask < s.constraint_masks.size()) row.allowed = std::span(s.constraint_masks).subspan(mask, words);
  const auto place = static_cast<int64_t>(plan_.sample_rows.size());
  plan_.sample_rows.push_back(row);
  if (num_assumed == 0) plan_.draws.push_back({&s, static_cast<int64_t>(plan_.rows.size()) - 1, place, 0});
  ++plan_.draws.back().count;
}

// The other sequences of the request draw their first token from the same logits. One that finds no seat or no block
// now computes the prompt itself later, with the same result.
void Scheduler::fork_attached(Sequence& leader, int32_t logit_row) {
  for (const auto& s : leader.request.sequences) {
    if (s->state != State::kAttached) continue;
    const bool seat = static_cast<int64_t>(running_.size()) < config_.max_num_seqs;
    if (!seat || !blocks_.fork(leader.cache, s->cache, s->num_prompt(), plan_.copies)) {
      s->state = State::kWaiting;
      waiting_.insert(s.get());
      continue;
    }
    s->num_computed = s->num_prompt();
    if (plan_.feeds_drafter) s->draft_context = {leader.draft_context.begin, s->num_computed};
    start(*s, leader.times.scheduled_ns);
    fill_constraint_masks(*s);
    add_sample(*s, logit_row, 0);
  }
}

// ---- commit: what became of it

void Scheduler::commit(const StepOutput& output, int64_t now_ns) {
  for (Sequence* s : plan_.sequences) {
    s->num_computed += s->num_planned;
    if (plan_.feeds_drafter) s->draft_context.end = s->num_computed;
  }
  commit_prompt_logprobs(output);
  for (const Draw& draw : plan_.draws) commit_draw(draw, output, now_ns);
  for (Sequence* s : running_)
    if (s->state == State::kRunning) blocks_.trim(s->cache, s->num_computed);
  count_step(static_cast<int64_t>(plan_.tokens.size()));
  speculation_.end_step(static_cast<int64_t>(plan_.tokens.size()), static_cast<int64_t>(plan_.sample_rows.size()),
                        now_ns - plan_ns_);
  forget_finished();
}

const DraftPlan& Scheduler::plan_drafts() { return speculation_.plan_drafts(running_); }

void Scheduler::commit_drafts(const Drafts& drafts, int64_t elapsed_ns) {
  speculation_.commit_drafts(drafts, elapsed_ns);
}

void Scheduler::count_step(int64_t rows) {
  const auto& bounds = EngineStats::kStepRowsBounds;
  ++stats_.num_steps;
  stats_.num_step_rows += rows;
  ++stats_.steps_by_rows[std::lower_bound(bounds.begin(), bounds.end(), rows) - bounds.begin()];
}

void Scheduler::commit_prompt_logprobs(const StepOutput& output) {
  for (size_t i = 0; i < plan_.prompt_owner.size(); ++i) {
    Sequence& s = *plan_.prompt_owner[i];
    const Sample& made = output.prompt_logprobs[i];
    if (s.state != State::kRunning) continue;
    if (!made.error.empty())
      finish_request(s.request, FinishReason::kError, made.error);
    else
      s.request.prompt_logprobs.push_back(made.logprobs);
  }
}

// Accepted drafts and the token drawn behind them, one after the other, as if each had come from a step of its own.
void Scheduler::commit_draw(const Draw& draw, const StepOutput& output, int64_t now_ns) {
  Sequence& s = *draw.sequence;
  const int64_t drafts = s.num_drafts, accepted = num_accepted(plan_, draw, output);
  s.drop_drafts();
  if (s.state != State::kRunning) return;  // its request ended with an error in this step
  s.num_computed -= drafts - accepted;
  if (plan_.feeds_drafter) s.draft_context.end = s.num_computed;
  TokenEvent event;
  if (s.index == 0 && s.num_output() == 0) event.prompt_logprobs = std::move(s.request.prompt_logprobs);
  if (s.num_output() == 0) s.times.first_token_ns = now_ns;
  s.times.last_token_ns = now_ns;
  const std::string* error = nullptr;
  for (int64_t i = 0; i <= accepted && event.finish == FinishReason::kNone && !error; ++i) {
    const Sample& sample = output.samples[draw.begin + i];
    if (sample.error.empty())
      append(s, sample, event);
    else
      error = &sample.error;
  }
  speculation_.record(s, drafts, accepted, event);
  const FinishReason reason = event.finish;
  if (!event.tokens.empty()) emit(s, std::move(event));
  if (error) return finish_request(s.request, FinishReason::kError, *error);
  if (reason != FinishReason::kNone) finish(s, reason);
}

void Scheduler::append(Sequence& s, const Sample& sample, TokenEvent& event) {
  event.tokens.push_back(sample.token);
  if (sample.logprobs) event.logprobs.push_back(*sample.logprobs);
  s.output.push_back(sample.token);
  s.sampling.append(sample.token);
  NIB_CHECK(!s.constraint || s.constraint->accept(sample.token), "token {} was allowed, then refused", sample.token);
  ++stats_.num_generation_tokens;
  event.finish = finish_reason(s, sample.token, event.stop_token);
}

FinishReason Scheduler::finish_reason(const Sequence& s, int32_t token, std::optional<int32_t>& stop_token) const {
  const SamplingParams& p = s.sampling.params();
  if (s.num_output() >= p.min_tokens) {
    if (s.sampling.is_eos(token)) return FinishReason::kStop;
    if (s.sampling.is_stop(token)) {
      stop_token = token;
      return FinishReason::kStop;
    }
  }
  const bool full = s.num_output() >= p.max_tokens || s.num_tokens() >= config_.max_model_len;
  return full ? FinishReason::kLength : FinishReason::kNone;
}

void Scheduler::emit(Sequence& s, TokenEvent event) {
  event.sequence = s.index;
  event.times = s.times;
  events_.push_back({s.request.request.id, s.request.channel, std::move(event)});
}

// Gives back all that the sequence holds; its last event is out already.
void Scheduler::finish(Sequence& s, FinishReason reason) {
  if (s.state == State::kWaiting) waiting_.erase(&s);
  blocks_.release(s.cache);
  s.state = State::kFinished;
  stats_.num_finished_stop += reason == FinishReason::kStop;
  stats_.num_finished_length += reason == FinishReason::kLength;
  stats_.num_finished_abort += reason == FinishReason::kAbort;
  stats_.num_finished_error += reason == FinishReason::kError;
  if (--s.request.num_unfinished == 0) finished_.push_back(s.request.request.id);
}

// With an event of its own, as no token ends it.
void Scheduler::finish_early(Sequence& s, FinishReason reason, const std::string& error) {
  if (s.state == State::kFinished) return;
  TokenEvent event;
  event.finish = reason;
  event.error = error;
  emit(s, std::move(event));
  finish(s, reason);
}

void Scheduler::finish_request(RequestState& r, FinishReason reason, const std::string& error) {
  for (const auto& s : r.sequences) finish_early(*s, reason, error);
}

void Scheduler::forget_finished() {
  std::erase_if(running_, [](const Sequence* s) { return s->state != State::kRunning; });
  for (uint64_t id : finished_) requests_.erase(id);
  finished_.clear();
}

void Scheduler::cancel(uint64_t request_id) {
  const auto it = requests_.find(request_id);
  if (it == requests_.end()) return;
  finish_request(*it->second, FinishReason::kAbort, {});
  forget_finished();
}

// Those that wait for the prompt of sequence 0 compute it themselves when it is gone.
void Scheduler::cancel(uint64_t request_id, int32_t sequence) {
  const auto it = requests_.find(request_id);
  if (it == requests_.end()) return;
  const auto& sequences = it->second->sequences;
  finish_early(*sequences.at(sequence), FinishReason::kAbort, {});
  for (const auto& s : sequences) {
    if (sequence != 0 || s->state != State::kAttached) continue;
    s->state = State::kWaiting;
    waiting_.insert(s.get());
  }
  forget_finished();
}

void Scheduler::abort_all() {
  for (const auto& [id, request] : requests_) finish_request(*request, FinishReason::kAbort, {});
  forget_finished();
}

void Scheduler::count(EngineStats& s) const {
  const EngineStats external = s;
  s = stats_;
  s.alive = external.alive;
  s.num_running = static_cast<int64_t>(running_.size());
  s.num_waiting = static_cast<int64_t>(waiting_.size());
  s.kv_cache_usage = blocks_.usage();
  speculation_.count(s);
  for (size_t g = 0; g < blocks_.specs().size(); ++g)
    if (const CacheSpec& spec = blocks_.specs()[g]; spec.kind == CacheSpec::Kind::kFull)
      s.num_blocks = blocks_.pool(g).num_blocks(), s.block_size = spec.block_size;
}

}  // namespace nib
