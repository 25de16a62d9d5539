// POST /v1/chat/completions
#include "server/answer.h"
#include "server/api.h"
#include "server/errors.h"
#include "server/generation_reply.h"
#include "server/limits.h"
#include "text/chat.h"

namespace nib {

namespace {

// Types of what render_chat reads, and bounds on how much of it there may be.
void check_messages(Fields& f) {
  f.require("messages");
  const Json* messages = f.array("messages");
  if (!messages) return;
  if (messages->size() > limits::kMessages)
    return f.mistake("messages", fmt::format("at most {} messages are allowed", limits::kMessages), messages);
  size_t parts = 0;
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& m = (*messages)[i];
    if (!m.is_object())
      f.mistake(fmt::format("messages.{}", i), "input should be an object", &m);
    else if (const auto content = m.find("content"); content != m.end() && content->is_array())
      parts += content->size();
  }
  if (parts > limits::kContentParts)
    f.mistake("messages", fmt::format("at most {} content parts are allowed", limits::kContentParts), messages);
}

// The newer name wins, but neither may ask for more than there is.
struct MaxTokens {
  std::optional<int64_t> older, newer;
};

MaxTokens read_max_tokens(Fields& f) {
  return {f.integer("max_tokens", 1, INT64_MAX), f.integer("max_completion_tokens", 1, INT64_MAX)};
}

Status set_max_tokens(const MaxTokens& given, const Service& service, GenerateOptions& o) {
  o.max_tokens = given.newer ? given.newer : given.older;
  if (given.newer) o.max_tokens_field = "max_completion_tokens";
  if (given.older.value_or(0) > service.max_model_len())
    return invalid_param("max_tokens", "max_tokens is {}, but this model's maximum context length is {} tokens",
                         *given.older, service.max_model_len());
  return {};
}

// logprobs: bool, top_logprobs: int
Status read_logprobs(const std::optional<bool>& wanted, const std::optional<int64_t>& top, const Service& service,
                     AnswerPlan& plan) {
  plan.with_logprobs = wanted.value_or(false);
  SamplingParams& s = plan.options.sampling;
  if (!plan.with_logprobs && top.value_or(0) != 0)
    return invalid_param("top_logprobs", "top_logprobs needs logprobs = true");
  if (!plan.with_logprobs && !s.logprob_token_ids.empty())
    return invalid_param("logprob_token_ids", "logprob_token_ids needs logprobs = true");
  if (!plan.with_logprobs) return {};
  const int64_t k = top.value_or(0);
  const int64_t most = service.config.max_logprobs < 0 ? service.vocab_size() : service.config.max_logprobs;
  if (k > most || (k == -1 && service.config.max_logprobs >= 0) || k < -1)
    return invalid_param("top_logprobs", "top_logprobs must be from 0 to {} (--max-logprobs), got {}", most, k);
  s.num_logprobs = static_cast<int>(k == -1 ? most : k);
  return {};
}

Status check_tools(const ToolSelection& selection) {
  if (selection.choice == ToolChoice::kRequired || selection.choice == ToolChoice::kNamed)
    return Status(Code::kUnimplemented,
                  "tool_choice required or a named tool is not implemented by this server; use auto or none",
                  "tool_choice");
  for (const Tool& tool : selection.tools)
    if (tool.strict)
      return Status(Code::kUnimplemented,
                    fmt::format("strict is not implemented by this server, tool {} asks for it", tool.name), "tools");
  return {};
}

std::string last_message_text(const Json& body) {
  const Json& messages = body.at("messages");
  if (messages.empty()) return {};
  const auto content = messages.back().find("content");
  return content != messages.back().end() && content->is_string() ? content->get<std::string>() : std::string();
}

struct ParsedChat {
  AnswerPlan plan;
  OutputParserOptions parser;
};

Result<OutputParserOptions> read_parser_options(const Json& body, const Service& service,
                                                const RenderedPrompt& prompt) {
  NIB_ASSIGN(OutputParserOptions options, parser_options(body));
  options.parse_reasoning = service.config.parse_reasoning;
  options.hide_reasoning = service.config.none_effort_policy == NoneEffortPolicy::kHide && prompt.effort == 0.0;
  options.call_id = [](int) { return "chatcmpl-tool-" + random_id(); };
  return options;
}

Result<ParsedChat> parse_chat(const Service& service, const HttpRequest& request) {
  NIB_ASSIGN(const Json body, parse_body(request.body));
  Fields f(body);
  check_messages(f);
  const MaxTokens max_tokens = read_max_tokens(f);
  const std::optional<bool> logprobs = f.boolean("logprobs");
  const std::optional<int64_t> top_logprobs = f.integer("top_logprobs");
  ParsedChat out;
  NIB_ASSIGN(out.plan.options, read_options(f, service, request));
  GenerateOptions& o = out.plan.options;
  NIB_TRY(set_max_tokens(max_tokens, service, o));
  NIB_TRY(read_logprobs(logprobs, top_logprobs, service, out.plan));

  const ChatOptions options = {.allow_special_in_text = service.config.allow_special_in_text,
                               .default_template_kwargs = service.config.default_template_kwargs,
                               .max_images = 0,
                               .exclude_tools_when_none = service.config.exclude_tools_when_none};
  NIB_ASSIGN(RenderedPrompt prompt, render_chat(*service.tokenizer, service.format, body, options));
  NIB_TRY(check_tools(prompt.tools));
  NIB_ASSIGN(out.parser, read_parser_options(body, service, prompt));
  out.plan.visible_logprobs_only = out.parser.hide_reasoning;
  NIB_TRY(fit_to_context(o, service, prompt.ids));
  NIB_TRY(check_sampling(o.sampling, std::ssize(prompt.ids), service.vocab_size(), service.max_model_len(),
                         service.config.max_logprobs));
  if (o.echo) out.plan.echoed = last_message_text(body);
  if (!o.return_prompt_text) prompt.text.clear();
  out.plan.prompts.push_back({std::move(prompt.ids), std::move(prompt.text)});
  return out;
}

}  // namespace

HttpResult handle_chat(const Service& service, const HttpRequest& request) {
  Result<ParsedChat> chat = parse_chat(service, request);
  if (!chat.ok()) return error_reply(chat.status());
  std::vector<Request> requests(1);
  requests[0].external_id = chat->plan.options.request_id;
  requests[0].prompt = chat->plan.prompts[0].ids;
  requests[0].sampling = chat->plan.options.sampling;
  requests[0].priority = chat->plan.options.priority;
  auto answer = std::make_unique<ChatAnswer>(service, std::move(chat->plan), std::move(chat->parser));
  return std::make_unique<GenerationReply>(service, std::move(requests), std::move(answer), request.arrival);
}

}  // namespace nib
