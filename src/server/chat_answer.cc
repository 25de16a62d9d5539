#include "server/answer.h"

namespace nib {

namespace {

Json call_json(const ToolCallDelta& call) {
  Json out = {{"index", call.index}};
  if (!call.id.empty()) out.update(Json{{"id", call.id}, {"type", "function"}});
  out["function"] = Json::object();
  if (!call.name.empty()) out["function"]["name"] = call.name;
  out["function"]["arguments"] = call.arguments;
  return out;
}

}  // namespace

ChatAnswer::ChatAnswer(const Service& service, AnswerPlan plan, OutputParserOptions parser_options)
    : Answer(service, std::move(plan), "chat.completion.chunk", "chatcmpl-"),
      parser_options_(std::move(parser_options)) {
  make_stages();
}

std::unique_ptr<TextStage> ChatAnswer::make_stage(const AnswerPrompt& prompt) {
  return std::make_unique<ChatStage>(*service_.tokenizer, service_.format, parser_options_, prompt.ids);
}

void ChatAnswer::begin(Sequence& s, std::string& out) {
  if (!streams()) return;
  const auto say = [&](Json delta) {
    emit(s, {{"delta", std::move(delta)}, {"logprobs", nullptr}, {"finish_reason", nullptr}}, out);
  };
  say({{"role", "assistant"}, {"content", ""}});
  if (!plan_.echoed.empty()) say({{"content", plan_.echoed}});
}

// Older clients know reasoning by another name.
void ChatAnswer::add_reasoning(Json& to, const std::string& text) const {
  to["reasoning"] = text;
  if (service_.config.emit_reasoning_content) to["reasoning_content"] = text;
}

Json ChatAnswer::chunk_choice(Sequence& s, const Delta& delta) {
  Json shown = Json::object();
  if (!delta.reasoning.empty()) add_reasoning(shown, delta.reasoning);
  if (!delta.content.empty()) shown["content"] = delta.content;
  if (!delta.tool_calls.empty()) shown["tool_calls"] = Json::array();
  for (const ToolCallDelta& call : delta.tool_calls)
    if (!call.retracted) shown["tool_calls"].push_back(call_json(call));
  return {{"delta", std::move(shown)}, {"logprobs", logprobs_json(s)}};
}

Json ChatAnswer::whole_choice(Sequence& s) {
  const Message message = fold(s.deltas);
  Json shown = {{"role", "assistant"}};
  shown["content"] = message.content        ? Json(plan_.echoed + *message.content)
                     : plan_.echoed.empty() ? Json()
                                            : Json(plan_.echoed);
  shown["reasoning"] = nullptr;
  if (message.reasoning) add_reasoning(shown, *message.reasoning);
  for (const ToolCall& call : message.tool_calls)
    shown["tool_calls"].push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  return {{"message", std::move(shown)}, {"logprobs", logprobs_json(s)}};
}

void ChatAnswer::shape_whole(Json& reply) {
  const bool asked = plan_.options.sampling.num_prompt_logprobs >= 0;
  reply["prompt_logprobs"] = asked ? prompt_logprobs_json(names_, prompt_logprobs_[0]) : Json();
  reply["prompt_token_ids"] = plan_.options.return_token_ids ? Json(plan_.prompts[0].ids) : Json();
}

Json ChatAnswer::logprobs_json(Sequence& s) {
  if (!plan_.with_logprobs) return nullptr;
  Json content = Json::array();
  for (const Logprobs& position : s.logprobs) content.push_back(chat_logprob(names_, position));
  s.logprobs.clear();
  return {{"content", std::move(content)}};
}

}  // namespace nib
