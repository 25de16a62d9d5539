// POST /tokenize and /detokenize
#include "server/api.h"
#include "server/errors.h"
#include "server/fields.h"
#include "server/logprobs_json.h"
#include "server/options.h"
#include "text/chat.h"

namespace nib {

namespace {

Status check_model(Fields& f, const Service& service) {
  const std::string model = f.string("model").value_or(service.config.served_model_names[0]);
  NIB_TRY(f.status());
  if (service.serves(model)) return {};
  return Status(Code::kNotFound, fmt::format("The model `{}` does not exist.", model.substr(0, 200)), "model");
}

Result<std::vector<TokenId>> tokens_of(const Service& service, const Json& body, Fields& f) {
  if (f.has("messages")) {
    const ChatOptions options = {.allow_special_in_text = service.config.allow_special_in_text,
                                 .default_template_kwargs = service.config.default_template_kwargs,
                                 .max_images = 0,
                                 .exclude_tools_when_none = service.config.exclude_tools_when_none};
    NIB_ASSIGN(RenderedPrompt prompt, render_chat(*service.tokenizer, service.format, body, options));
    return std::move(prompt.ids);
  }
  f.require("prompt");
  const std::string prompt = f.string("prompt").value_or("");
  NIB_TRY(f.status());
  return service.tokenizer->encode(prompt, Tokenizer::Special::kRecognise);
}

Result<Json> tokenize(const Service& service, const HttpRequest& request) {
  NIB_ASSIGN(const Json body, parse_body(request.body));
  Fields f(body);
  const bool with_strings = f.boolean("return_token_strs").value_or(false);
  f.boolean("add_special_tokens");
  f.array("messages");
  NIB_TRY(check_model(f, service));
  NIB_ASSIGN(const std::vector<TokenId> ids, tokens_of(service, body, f));
  Json strings;
  if (with_strings) {
    const TokenNames names(*service.tokenizer, false);
    strings = Json::array();
    for (const TokenId id : ids) strings.push_back(names.text(id));
  }
  return Json{
      {"count", ids.size()}, {"max_model_len", service.max_model_len()}, {"tokens", ids}, {"token_strs", strings}};
}

Result<Json> detokenize(const Service& service, const HttpRequest& request) {
  NIB_ASSIGN(const Json body, parse_body(request.body));
  Fields f(body);
  f.require("tokens");
  const std::vector<TokenId> ids = f.token_ids("tokens", std::numeric_limits<int32_t>::max());
  NIB_TRY(check_model(f, service));
  for (const TokenId id : ids)
    if (id >= service.tokenizer->size())
      return invalid_param("tokens", "token id {} is outside the vocabulary of {}", id, service.tokenizer->size());
  return Json{{"prompt", service.tokenizer->decode(ids, /*skip_special=*/false)}};
}

HttpReply reply_of(const Result<Json>& json) {
  if (!json.ok()) return error_reply(json.status());
  return {.body = dump_json(*json)};
}

}  // namespace

HttpResult handle_tokenize(const Service& service, const HttpRequest& request) {
  return reply_of(tokenize(service, request));
}

HttpResult handle_detokenize(const Service& service, const HttpRequest& request) {
  return reply_of(detokenize(service, request));
}

}  // namespace nib
