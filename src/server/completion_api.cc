// POST /v1/completions
#include "server/answer.h"
#include "server/api.h"
#include "server/errors.h"
#include "server/generation_reply.h"
#include "server/limits.h"

namespace nib {

namespace {

constexpr int64_t kDefaultMaxTokens = 16;

// Raw prompts: control tokens spelled in them are control tokens.
AnswerPrompt text_prompt(const Service& service, std::string text) {
  std::vector<int32_t> ids = service.tokenizer->encode(text, Tokenizer::Special::kRecognise);
  return {std::move(ids), std::move(text)};
}

Result<AnswerPrompt> ids_prompt(const Service& service, const Json& list) {
  AnswerPrompt out;
  for (const Json& v : list) {
    const std::optional<int64_t> id = as_integer(v);
    if (!id) return invalid_param("body.prompt", "prompt: a list of strings or of token ids is expected");
    if (*id < 0 || *id >= service.vocab_size())
      return invalid_param("prompt", "prompt: token id {} is outside the vocabulary of {}", *id, service.vocab_size());
    out.ids.push_back(static_cast<int32_t>(*id));
  }
  return out;
}

// string | [string] | [int] | [[int]]
Result<std::vector<AnswerPrompt>> read_prompts(const Json& prompt, const Service& service) {
  std::vector<AnswerPrompt> out;
  if (prompt.is_string()) {
    out.push_back(text_prompt(service, prompt.get<std::string>()));
    return out;
  }
  if (!prompt.is_array() || prompt.empty())
    return invalid_param("body.prompt",
                         "prompt should be a string, a list of strings, a list of token ids or a list "
                         "of those, and not empty");
  if (prompt[0].is_number()) {
    NIB_ASSIGN(AnswerPrompt one, ids_prompt(service, prompt));
    out.push_back(std::move(one));
    return out;
  }
  if (prompt.size() > limits::kPrompts)
    return invalid_param("prompt", "at most {} prompts are allowed, got {}", limits::kPrompts, prompt.size());
  for (const Json& p : prompt) {
    if (p.is_string()) {
      out.push_back(text_prompt(service, p.get<std::string>()));
    } else if (p.is_array()) {
      NIB_ASSIGN(AnswerPrompt one, ids_prompt(service, p));
      out.push_back(std::move(one));
    } else {
      return invalid_param("body.prompt", "prompt: a list of strings or of lists of token ids is expected");
    }
  }
  return out;
}

// logprobs: how many alternatives; echo wants them for the prompt too.
Status read_logprobs(const std::optional<int64_t>& wanted, const Service& service, AnswerPlan& plan) {
  if (!wanted) return {};
  const int64_t most = service.config.max_logprobs < 0 ? service.vocab_size() : service.config.max_logprobs;
  if (*wanted < 0 || *wanted > most)
    return invalid_param("logprobs", "logprobs must be from 0 to {} (--max-logprobs), got {}", most, *wanted);
  plan.with_logprobs = true;
  plan.options.sampling.num_logprobs = static_cast<int>(*wanted);
  return {};
}

// The engine's view of one prompt of the call.
Result<Request> make_request(const AnswerPlan& plan, const Service& service, AnswerPrompt& prompt) {
  GenerateOptions o = plan.options;
  NIB_TRY(fit_to_context(o, service, prompt.ids));
  if (plan.with_logprobs && o.echo)
    o.sampling.num_prompt_logprobs = std::max(o.sampling.num_prompt_logprobs, o.sampling.num_logprobs);
  NIB_TRY(check_sampling(o.sampling, std::ssize(prompt.ids), service.vocab_size(), service.max_model_len(),
                         service.config.max_logprobs));
  if (!o.echo && !o.return_prompt_text)
    prompt.text.clear();
  else if (prompt.text.empty())
    prompt.text = service.tokenizer->decode(prompt.ids, o.skip_special_tokens);
  Request r;
  r.external_id = o.request_id;
  r.prompt = prompt.ids;
  r.sampling = o.sampling;
  r.priority = o.priority;
  return r;
}

struct ParsedCompletion {
  AnswerPlan plan;
  std::vector<Request> requests;
};

Result<ParsedCompletion> parse_completion(const Service& service, const HttpRequest& request) {
  NIB_ASSIGN(const Json body, parse_body(request.body));
  Fields f(body);
  f.require("prompt");
  const std::optional<int64_t> max_tokens = f.integer("max_tokens", 0, INT64_MAX);
  const std::optional<int64_t> logprobs = f.integer("logprobs");
  const std::optional<std::string> suffix = f.string("suffix");
  ParsedCompletion out;
  AnswerPlan& plan = out.plan;
  NIB_ASSIGN(plan.options, read_options(f, service, request));
  if (suffix && !suffix->empty()) return invalid_param("suffix", "suffix is not supported");
  plan.prompt_only = max_tokens == 0;
  if (plan.prompt_only && !plan.options.echo)
    return invalid_param("max_tokens", "max_tokens must be at least 1, or 0 with echo = true");
  plan.options.max_tokens = std::max<int64_t>(1, max_tokens.value_or(kDefaultMaxTokens));
  NIB_TRY(read_logprobs(logprobs, service, plan));
  NIB_ASSIGN(plan.prompts, read_prompts(body.at("prompt"), service));
  for (AnswerPrompt& prompt : plan.prompts) {
    NIB_ASSIGN(Request r, make_request(plan, service, prompt));
    out.requests.push_back(std::move(r));
  }
  return out;
}

}  // namespace

HttpResult handle_completions(const Service& service, const HttpRequest& request) {
  Result<ParsedCompletion> parsed = parse_completion(service, request);
  if (!parsed.ok()) return error_reply(parsed.status());
  auto answer = std::make_unique<CompletionAnswer>(service, std::move(parsed->plan));
  return std::make_unique<GenerationReply>(service, std::move(parsed->requests), std::move(answer), request.arrival);
}

}  // namespace nib
