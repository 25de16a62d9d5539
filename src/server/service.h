// What the endpoints work with: the model's text side, the engine, and how the operator wants them to behave. Made once
// at start, const afterwards, shared by all threads.
//   HttpResult handle_chat(const Service& service, const HttpRequest& request);
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"
#include "text/chat_format.h"
#include "text/tokenizer.h"

namespace nib {

class Metrics;

enum class NoneEffortPolicy { kCondition, kHide };  // what happens to reasoning at effort 0: shown or hidden

// The flags of `nib serve` that the endpoints read.
struct ApiConfig {
  std::vector<std::string> served_model_names;  // at least one
  std::string model_root;                       // MODEL as given
  std::vector<std::string> api_keys;            // none: open to all
  int max_logprobs = 20;                        // -1: the whole vocabulary
  bool processed_logprobs = false;
  bool priority_scheduling = false;
  bool parse_reasoning = true;         // --reasoning-parser none: reasoning is content
  bool emit_reasoning_content = true;  // the older name of `reasoning`, beside it
  bool prompt_tokens_details = true;   // cached_tokens in usage
  bool force_include_usage = false;    // in every stream
  bool request_id_headers = false;     // X-Request-Id in answers
  bool exclude_tools_when_none = false;
  bool allow_special_in_text = false;
  bool log_requests = false;
  bool tokens_as_ids = false;   // logprobs name tokens token_id:N, in every answer
  int64_t stream_interval = 1;  // tokens a chunk
  int64_t max_drafts = 0;       // of a sequence in a step, for usage and metrics; 0: speculation is off
  NoneEffortPolicy none_effort_policy = NoneEffortPolicy::kCondition;
  Json default_template_kwargs = Json::object();
  std::vector<std::string> cors_origins = {"*"}, cors_methods = {"*"}, cors_headers = {"*"};
  bool cors_credentials = false;
};

// What a request gets that does not say: of generation_config.json and --override-generation-config.
struct GenerationFallback {
  SamplingParams sampling;
  std::optional<int64_t> max_new_tokens;
};

struct Service {
  ApiConfig config;
  GenerationFallback fallback;
  std::shared_ptr<const Tokenizer> tokenizer;
  ChatFormat format;
  Engine* engine = nullptr;    // outlives this
  Metrics* metrics = nullptr;  // outlives this
  int64_t started_unix_s = 0;

  int64_t max_model_len() const { return engine->config().max_model_len; }
  int64_t vocab_size() const { return engine->model().unpadded_vocab_size; }
  bool serves(std::string_view model) const;
};

}  // namespace nib
