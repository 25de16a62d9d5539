#include "server/answer.h"

#include <algorithm>
#include <ctime>

#include "server/errors.h"
#include "server/sse.h"

namespace nib {

namespace {

FinishCause cause_of(FinishReason finish) {
  switch (finish) {
    case FinishReason::kLength:
      return FinishCause::kLength;
    case FinishReason::kAbort:
      return FinishCause::kAbort;
    default:
      return FinishCause::kStop;
  }
}

bool continues_call(const Delta& last, const Delta& delta) {
  if (last.tool_calls.size() != 1 || delta.tool_calls.size() != 1) return false;
  const ToolCallDelta &before = last.tool_calls[0], &next = delta.tool_calls[0];
  return before.index == next.index && next.id.empty() && next.name.empty() && !next.retracted;
}

// Neighbours of one kind become one delta. How tokens were cut is no business of the client's.
void append_delta(std::vector<Delta>& to, Delta delta) {
  if (delta.empty()) return;
  if (!to.empty()) {
    Delta& last = to.back();
    if (!last.content.empty() && !delta.content.empty()) return void(last.content += delta.content);
    if (!last.reasoning.empty() && !delta.reasoning.empty()) return void(last.reasoning += delta.reasoning);
    if (continues_call(last, delta)) return void(last.tool_calls[0].arguments += delta.tool_calls[0].arguments);
  }
  to.push_back(std::move(delta));
}

}  // namespace

Answer::Answer(const Service& service, AnswerPlan plan, std::string object, std::string id_prefix)
    : service_(service),
      plan_(std::move(plan)),
      names_(*service.tokenizer, plan_.options.tokens_as_ids),
      prompt_logprobs_(plan_.prompts.size()),
      object_(std::move(object)),
      id_(std::move(id_prefix) + plan_.options.request_id),
      created_s_(std::time(nullptr)) {}

void Answer::make_stages() {
  for (size_t p = 0; p < plan_.prompts.size(); ++p)
    for (int64_t k = 0; k < plan_.options.sampling.n; ++k) {
      Sequence s;
      s.index = static_cast<int>(sequences_.size());
      s.prompt = p;
      s.stage = make_stage(plan_.prompts[p]);
      sequences_.push_back(std::move(s));
    }
}

void Answer::take(size_t prompt, TokenEvent& event, std::string& out) {
  Sequence& s = sequences_.at(prompt * plan_.options.sampling.n + event.sequence);
  if (!event.prompt_logprobs.empty()) prompt_logprobs_[prompt] = std::move(event.prompt_logprobs);
  if (!s.begun && event.sequence == 0) num_cached_tokens_ += event.num_cached_tokens;
  if (s.ended) return;  // tokens behind a stop string
  num_accepted_drafts_ += event.num_accepted_drafts;
  num_rejected_drafts_ += event.num_rejected_drafts;
  if (!std::exchange(s.begun, true)) begin(s, out);
  for (size_t i = 0; i < event.tokens.size() && !s.ended && !plan_.prompt_only; ++i)
    accept(s, event.tokens[i], i < event.logprobs.size() ? std::optional(std::move(event.logprobs[i])) : std::nullopt);
  if (!s.ended && event.finish != FinishReason::kNone) {
    if (event.stop_token) s.stop_reason = *event.stop_token;
    end(s, event.finish);
  }
  const bool chunk_is_full = s.num_unsent >= plan_.options.stream_interval || !s.flushed;
  if (streams() && (s.ended || chunk_is_full)) flush(s, out);
}

// One token at a time, so that an event of many is the same as many events.
void Answer::accept(Sequence& s, int32_t id, std::optional<Logprobs> logprobs) {
  for (Delta& d : s.stage->push({&id, 1})) append_delta(s.deltas, std::move(d));
  const bool hidden = plan_.visible_logprobs_only && (s.stage->in_reasoning() || service_.tokenizer->is_special(id));
  if (!plan_.with_logprobs || hidden) logprobs.reset();
  s.pending.push_back({id, std::move(logprobs)});
  ++s.num_unsent;
  settle(s);
  if (s.stage->stopped()) end(s, FinishReason::kStop);
}

// Usage, ids and logprobs end at the token that completed a stop string.
void Answer::settle(Sequence& s) {
  for (const int64_t settled = s.stage->num_tokens_settled(); s.num_tokens < settled; ++s.num_tokens) {
    PendingToken& token = s.pending.front();
    if (plan_.options.return_token_ids) s.ids.push_back(token.id);
    if (token.logprobs) s.logprobs.push_back(*std::move(token.logprobs));
    s.pending.pop_front();
  }
}

void Answer::end(Sequence& s, FinishReason finish) {
  s.ended = true;
  FinishCause cause = plan_.prompt_only ? FinishCause::kLength : cause_of(finish);
  for (Delta& d : s.stage->finish(cause)) append_delta(s.deltas, std::move(d));
  settle(s);
  s.pending.clear();
  if (const std::optional<std::string> stop = s.stage->stopped()) {  // perhaps only in what was held back
    s.stop_reason = *stop;
    cause = FinishCause::kStop;
  }
  s.finish_reason = finish_reason(cause, s.stage->any_tool_call());
}

bool Answer::sequence_done(size_t prompt, int32_t sequence) const {
  return sequences_.at(prompt * plan_.options.sampling.n + sequence).ended;
}

bool Answer::done() const {
  return std::all_of(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return s.ended; });
}

// ---- the stream ----

void Answer::flush(Sequence& s, std::string& out) {
  if (s.deltas.empty() && !s.ended) return;  // what was sampled shows nothing yet
  if (s.deltas.empty()) s.deltas.emplace_back();
  const std::vector<Delta> deltas = std::move(s.deltas);
  s.deltas.clear();
  s.num_unsent = 0;
  s.flushed = true;
  for (size_t i = 0; i < deltas.size(); ++i) {
    Json choice = chunk_choice(s, deltas[i]);
    const bool last = s.ended && i + 1 == deltas.size();
    choice["finish_reason"] = last ? Json(s.finish_reason) : Json();
    if (last) choice["stop_reason"] = s.stop_reason;
    emit(s, std::move(choice), out);
  }
}

void Answer::emit(Sequence& s, Json choice, std::string& out) {
  Json chunk = envelope(object_);
  Json with_index = {{"index", s.index}};
  with_index.update(choice);
  if (plan_.options.return_token_ids) with_index["token_ids"] = take_ids(s);
  chunk["choices"] = Json::array({std::move(with_index)});
  if (std::exchange(first_chunk_, false)) {
    if (plan_.options.return_token_ids) chunk["prompt_token_ids"] = plan_.prompts[s.prompt].ids;
    if (plan_.options.return_prompt_text) chunk["prompt_text"] = plan_.prompts[s.prompt].text;
  }
  if (plan_.options.continuous_usage) chunk["usage"] = usage_of(std::ssize(plan_.prompts[s.prompt].ids), s.num_tokens);
  out += sse_event(dump_json(chunk));
}

void Answer::end_stream(std::string& out) {
  if (plan_.options.include_usage) {
    Json chunk = envelope(object_);
    chunk["choices"] = Json::array();
    chunk["usage"] = usage();
    out += sse_event(dump_json(chunk));
  }
  out += kSseDone;
}

// ---- the whole ----

HttpReply Answer::whole() {
  Json reply = envelope(object_ == "chat.completion.chunk" ? "chat.completion" : object_);
  reply["choices"] = Json::array();
  for (Sequence& s : sequences_) {
    Json choice = {{"index", s.index}};
    choice.update(whole_choice(s));
    choice["finish_reason"] = s.finish_reason;
    choice["stop_reason"] = s.stop_reason;
    choice["token_ids"] = plan_.options.return_token_ids ? take_ids(s) : Json();
    reply["choices"].push_back(std::move(choice));
  }
  reply["service_tier"] = nullptr;
  reply["system_fingerprint"] = nullptr;
  reply["usage"] = usage();
  if (plan_.options.return_prompt_text) reply["prompt_text"] = plan_.prompts[0].text;
  shape_whole(reply);
  reply["kv_transfer_params"] = nullptr;
  return {.body = dump_json(reply)};
}

Json Answer::envelope(std::string_view object) const {
  return {{"id", id_}, {"object", object}, {"created", created_s_}, {"model", plan_.options.model}};
}

Json Answer::take_ids(Sequence& s) { return std::exchange(s.ids, {}); }

int64_t Answer::num_prompt_tokens() const {
  int64_t sum = 0;
  for (const AnswerPrompt& p : plan_.prompts) sum += std::ssize(p.ids);
  return sum;
}

int64_t Answer::num_completion_tokens() const {
  int64_t sum = 0;
  for (const Sequence& s : sequences_) sum += s.num_tokens;
  return sum;
}

Json Answer::usage_of(int64_t prompt_tokens, int64_t completion_tokens) const {
  return {{"prompt_tokens", prompt_tokens},
          {"total_tokens", prompt_tokens + completion_tokens},
          {"completion_tokens", completion_tokens}};
}

Json Answer::usage() const {
  Json out = usage_of(num_prompt_tokens(), num_completion_tokens());
  out["prompt_tokens_details"] =
      service_.config.prompt_tokens_details ? Json{{"cached_tokens", num_cached_tokens_}} : Json();
  out["completion_tokens_details"] = completion_tokens_details();
  return out;
}

Json Answer::completion_tokens_details() const {
  int64_t reasoning = 0;
  for (const Sequence& s : sequences_) reasoning += s.stage->num_reasoning_tokens();
  Json out = {{"reasoning_tokens", reasoning}};
  if (service_.config.max_drafts == 0) return out;
  out["accepted_prediction_tokens"] = num_accepted_drafts_;
  out["rejected_prediction_tokens"] = num_rejected_drafts_;
  return out;
}

}  // namespace nib
