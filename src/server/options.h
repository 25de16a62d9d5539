// The fields that chat and completion requests share, read and checked in one place.
//   Fields f(body);
//   Result<GenerateOptions> o = read_options(f, service, request);
//   NIB_TRY(fit_to_context(*o, service, prompt));            // truncates, and gives max_tokens its value
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/fields.h"
#include "server/http_message.h"
#include "server/service.h"

namespace nib {

struct GenerateOptions {
  std::string model, request_id;  // the id as the client gave it, or a new one
  bool stream = false, include_usage = false, continuous_usage = false;
  int64_t stream_interval = 1;  // tokens a chunk
  SamplingParams sampling;
  std::optional<int64_t> max_tokens;
  std::string max_tokens_field = "max_tokens";
  std::vector<std::string> stop;
  bool include_stop = false;
  bool skip_special_tokens = true;
  bool return_token_ids = false, tokens_as_ids = false, return_prompt_text = false;
  bool echo = false;
  std::optional<int64_t> truncate_prompt_tokens;
  bool truncate_right = false;  // keeps the first tokens
  int64_t priority = 0;
};

// Everything but the prompt and what logprobs mean, which differ. Errors: types first (all of them), then the model,
// then what is not implemented, then values.
Result<GenerateOptions> read_options(Fields& fields, const Service& service, const HttpRequest& request);

// Cuts the prompt as asked and sets sampling.max_tokens, or says that it does not fit.
Status fit_to_context(GenerateOptions& options, const Service& service, std::vector<int32_t>& prompt);

// The body as an object; a 400 that says why it is none. Bounded in depth and members before it is parsed.
Result<Json> parse_body(const std::string& body);

std::string random_id();  // 32 hexadecimal digits

}  // namespace nib
