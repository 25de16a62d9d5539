#include "server/generation_reply.h"

#include <algorithm>

#include "base/log.h"
#include "server/errors.h"
#include "server/limits.h"
#include "server/sse.h"

namespace nib {

GenerationReply::GenerationReply(const Service& service, std::vector<Request> requests, std::unique_ptr<Answer> answer,
                                 Clock::time_point arrival)
    : service_(service), requests_(std::move(requests)), answer_(std::move(answer)), arrival_(arrival) {}

GenerationReply::~GenerationReply() {
  cancel_all();
  for (Running& r : running_)
    if (r.num_unfinished > 0) observe_end(r, FinishReason::kAbort);
}

// A stream may lag by so many tokens. A whole answer is kept anyway, so its events cannot be too many.
size_t GenerationReply::channel_capacity(const SamplingParams& s) const {
  const int64_t most = s.max_tokens + 1;
  return static_cast<size_t>(s.n * (streams() ? std::min(most, limits::kEventsPerSequence) : most));
}

std::optional<HttpReply> GenerationReply::start(std::function<void()> wake) {
  for (Request& request : requests_) {
    Running r;
    r.num_unfinished = request.sampling.n;
    r.open.assign(request.sampling.n, true);
    r.facts.n = request.sampling.n;
    r.facts.prompt_tokens = std::ssize(request.prompt);
    r.facts.max_tokens = request.sampling.max_tokens;
    r.channel = std::make_shared<EventChannel>(channel_capacity(request.sampling), wake);
    const Result<uint64_t> id = service_.engine->submit(std::move(request), r.channel);
    if (!id.ok()) {
      cancel_all();
      running_.clear();
      return error_reply(id.status());
    }
    r.id = *id;
    running_.push_back(std::move(r));
  }
  requests_.clear();
  return std::nullopt;
}

bool GenerationReply::broken() const {
  return std::any_of(running_.begin(), running_.end(), [](const Running& r) { return r.channel->overflowed(); });
}

ReplySource::Progress GenerationReply::poll() {
  Progress progress;
  if (ended_) return progress;
  for (size_t p = 0; p < running_.size(); ++p)
    for (TokenEvent& event : running_[p].channel->drain()) take(p, event, progress.bytes);
  if (!error_.empty()) {
    Progress failed = fail(error_);
    failed.bytes = progress.bytes + failed.bytes;
    return failed;
  }
  if (!answer_->done()) return progress;
  ended_ = progress.done = true;
  if (streams())
    answer_->end_stream(progress.bytes);
  else
    progress.whole = answer_->whole();
  return progress;
}

void GenerationReply::take(size_t prompt, TokenEvent& event, std::string& out) {
  Running& r = running_[prompt];
  observe(r, event);
  if (event.finish == FinishReason::kError) {
    error_ = event.error.empty() ? "the engine failed on this request" : event.error;
    return;
  }
  if (!error_.empty()) return;
  answer_->take(prompt, event, out);
  if (r.open[event.sequence] && answer_->sequence_done(prompt, event.sequence)) {  // it met a stop string
    service_.engine->cancel(r.id, event.sequence);
    close(r, event.sequence, FinishReason::kStop);
  }
}

void GenerationReply::observe(Running& r, const TokenEvent& event) {
  r.facts.generation_tokens += std::ssize(event.tokens);
  if (event.num_cached_tokens > 0) r.facts.cached_tokens = event.num_cached_tokens;
  if (event.sequence == 0) {
    r.facts.times = event.times;
    const int64_t now_ns = event.times.last_token_ns;
    if (!event.tokens.empty() && r.last_token_ns == 0)
      service_.metrics->observe_first_token(static_cast<double>(now_ns - event.times.arrival_ns) * 1e-9);
    else if (!event.tokens.empty())
      service_.metrics->observe_inter_token(static_cast<double>(now_ns - r.last_token_ns) * 1e-9);
    if (!event.tokens.empty()) r.last_token_ns = now_ns;
  }
  if (event.finish != FinishReason::kNone && r.open[event.sequence]) close(r, event.sequence, event.finish);
}

void GenerationReply::close(Running& r, int32_t sequence, FinishReason finish) {
  r.open[sequence] = false;
  if (--r.num_unfinished == 0) observe_end(r, finish);
}

void GenerationReply::observe_end(Running& r, FinishReason finish) {
  r.facts.finish = finish;
  r.facts.e2e_s = std::chrono::duration<double>(Clock::now() - arrival_).count();
  service_.metrics->observe_finished(r.facts);
}

void GenerationReply::cancel_all() {
  for (const Running& r : running_)
    if (r.num_unfinished > 0) service_.engine->cancel(r.id);
}

// The other prompts and choices of the same call are of no use to anybody then.
ReplySource::Progress GenerationReply::fail(const std::string& message) {
  cancel_all();
  ended_ = true;
  log::error("request {} failed: {}", answer_->plan().options.request_id, message);
  const Status status(Code::kInternal, message);
  Progress progress;
  progress.done = true;
  if (streams())
    progress.bytes = sse_event(dump_json(error_json(status))) + std::string(kSseDone);
  else
    progress.whole = error_reply(status);
  return progress;
}

}  // namespace nib
