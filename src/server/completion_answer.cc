#include "server/answer.h"

namespace nib {

CompletionAnswer::CompletionAnswer(const Service& service, AnswerPlan plan)
    : Answer(service, std::move(plan), "text_completion", "cmpl-") {
  make_stages();
}

std::unique_ptr<TextStage> CompletionAnswer::make_stage(const AnswerPrompt&) {
  const GenerateOptions& o = plan_.options;
  return std::make_unique<PlainStage>(*service_.tokenizer, o.skip_special_tokens, o.stop, o.include_stop,
                                      static_cast<int>(o.sampling.min_tokens));
}

void CompletionAnswer::begin(Sequence& s, std::string& out) {
  s.offsets.emplace(names_);
  if (!plan_.options.echo) return;
  if (plan_.with_logprobs) add_prompt_logprobs(s);
  if (!streams()) return;
  Delta prompt;
  prompt.content = plan_.prompts[s.prompt].text;
  Json choice = chunk_choice(s, prompt);
  choice["finish_reason"] = nullptr;
  emit(s, std::move(choice), out);
}

void CompletionAnswer::add_prompt_logprobs(Sequence& s) {
  const std::vector<int32_t>& ids = plan_.prompts[s.prompt].ids;
  const auto& positions = prompt_logprobs_[s.prompt];
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i < positions.size() && positions[i])
      s.offsets->add(*positions[i]);
    else
      s.offsets->add_unknown(ids[i]);
  }
}

Json CompletionAnswer::chunk_choice(Sequence& s, const Delta& delta) {
  return {{"text", delta.content}, {"logprobs", logprobs_json(s)}};
}

Json CompletionAnswer::whole_choice(Sequence& s) {
  std::string text = plan_.options.echo ? plan_.prompts[s.prompt].text : std::string();
  for (const Delta& d : s.deltas) text += d.content;
  Json choice = {{"text", std::move(text)}, {"logprobs", logprobs_json(s)}};
  const bool asked = plan_.options.sampling.num_prompt_logprobs >= 0;
  choice["prompt_logprobs"] = asked ? prompt_logprobs_json(names_, prompt_logprobs_[s.prompt]) : Json();
  choice["prompt_token_ids"] = plan_.options.return_token_ids ? Json(plan_.prompts[s.prompt].ids) : Json();
  return choice;
}

void CompletionAnswer::shape_whole(Json&) {}

Json CompletionAnswer::logprobs_json(Sequence& s) {
  if (!plan_.with_logprobs) return nullptr;
  for (const Logprobs& position : s.logprobs) s.offsets->add(position);
  s.logprobs.clear();
  return s.offsets->take();
}

}  // namespace nib
