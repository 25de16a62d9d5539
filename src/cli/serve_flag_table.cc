#include "cli/serve_flag_table.h"

#include <algorithm>
#include <charconv>

#include "cli/size_value.h"

namespace nib::cli {

Result<Json> object_value(std::string_view flag, const std::string& text) {
  Result<Json> json = parse_json(text);
  if (!json.ok() || !json->is_object()) return invalid("{} {}: a JSON object is expected", flag, text);
  return json;
}

Status refuse(ServeOptions&, const Flag& f, const std::string& value) {
  if (f.kind == Kind::kSwitch && value == "false") return {};
  return invalid("{}: {}", f.name, f.note);
}

Status ignore(ServeOptions& o, const Flag& f, const std::string&) {
  o.notes.push_back(fmt::format("{} has no effect here: {}", f.name, f.note));
  return {};
}

namespace {

// ---- values ----

Result<double> number_value(std::string_view flag, const std::string& text, double least, double most) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least && value <= most))
    return invalid("{} {}: a number from {} to {} is expected", flag, text, least, most);
  return value;
}

Result<std::vector<std::string>> list_value(std::string_view flag, const std::string& text) {
  const Result<Json> json = parse_json(text);
  if (!json.ok() || !json->is_array()) return invalid("{} {}: a JSON list of strings is expected", flag, text);
  std::vector<std::string> out;
  for (const Json& v : *json) {
    if (!v.is_string()) return invalid("{} {}: a JSON list of strings is expected", flag, text);
    out.push_back(v.get<std::string>());
  }
  return out;
}

// Only the value that says "as it is anyway" is taken.
template <char... kOnly>
Status only(ServeOptions&, const Flag& f, const std::string& value) {
  constexpr char kText[] = {kOnly..., '\0'};
  return value == kText ? Status() : invalid("{} {}: {}", f.name, value, f.note);
}

Status one_of(const Flag& f, const std::string& value, std::initializer_list<std::string_view> values) {
  if (std::ranges::count(values, value) > 0) return {};
  std::string all;
  for (std::string_view v : values) all += (all.empty() ? "" : ", ") + std::string(v);
  return invalid("{} {}: one of {} is expected", f.name, value, all);
}

template <bool ApiConfig::*kField>
Status api_switch(ServeOptions& o, const Flag&, const std::string& value) {
  o.server.api.*kField = value == "true";
  return {};
}

template <int64_t EngineConfig::*kField>
Status engine_size(ServeOptions& o, const Flag& f, const std::string& value) {
  NIB_ASSIGN(o.engine.*kField, size_value(f.name, value, 1));
  return {};
}

template <std::vector<std::string> ApiConfig::*kField>
Status api_list(ServeOptions& o, const Flag& f, const std::string& value) {
  NIB_ASSIGN(o.server.api.*kField, list_value(f.name, value));
  return {};
}

template <class Duration, Duration HttpServerConfig::*kField>
Status http_seconds(ServeOptions& o, const Flag& f, const std::string& value) {
  NIB_ASSIGN(const int64_t seconds, size_value(f.name, value, 1, 86'400));
  o.server.http.*kField = std::chrono::seconds(seconds);
  return {};
}

template <class Int, Int HttpServerConfig::*kField, int64_t kLeast, int64_t kAtMost>
Status http_number(ServeOptions& o, const Flag& f, const std::string& value) {
  NIB_ASSIGN(const int64_t n, size_value(f.name, value, kLeast, kAtMost));
  o.server.http.*kField = static_cast<Int>(n);
  return {};
}

Status set_model(ServeOptions& o, const Flag& f, const std::string& value) {
  if (!o.model.empty()) return invalid("{} {}: the model is given already as {}", f.name, value, o.model);
  o.model = value;
  return {};
}

Status set_max_model_len(ServeOptions& o, const Flag& f, const std::string& value) {
  NIB_ASSIGN(o.engine.max_model_len, model_len_value(f.name, value));
  return {};
}

Status set_dtype(ServeOptions& o, const Flag& f, const std::string& value) {
  o.f32 = value == "float32" || value == "f32" || value == "float";
  return one_of(f, value, {"auto", "bfloat16", "bf16", "float32", "f32", "float"});
}

Status set_block_size(ServeOptions& o, const Flag& f, const std::string& value) {
  NIB_ASSIGN(o.kv_block_size, size_value(f.name, value, 1, 256));
  return one_of(f, value, {"8", "16", "32", "64", "128", "256"});
}

Status set_logprobs_mode(ServeOptions& o, const Flag& f, const std::string& value) {
  o.server.api.processed_logprobs = value == "processed_logprobs";
  return one_of(f, value, {"raw_logprobs", "processed_logprobs"});
}

Status set_max_logprobs(ServeOptions& o, const Flag& f, const std::string& value) {
  NIB_ASSIGN(const int64_t n, size_value(f.name, value, -1, 1'000'000));
  o.server.api.max_logprobs = o.engine.max_logprobs = static_cast<int>(n);
  return {};
}

Status set_shutdown_timeout(ServeOptions& o, const Flag& f, const std::string& value) {
  NIB_ASSIGN(const double seconds, number_value(f.name, value, 0, 86'400));
  o.server.shutdown_timeout = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  return {};
}

Status set_limit_mm(ServeOptions&, const Flag& f, const std::string& value) {
  NIB_ASSIGN(const Json limits, object_value(f.name, value));
  for (const auto& [kind, limit] : limits.items())
    if (limit != 0) return invalid("{} {}: this server reads text only, no {}", f.name, value, kind);
  return {};
}

Status set_none_effort_policy(ServeOptions& o, const Flag& f, const std::string& value) {
  o.server.api.none_effort_policy = value == "hide" ? NoneEffortPolicy::kHide : NoneEffortPolicy::kCondition;
  if (value == "ban") return invalid("{} ban: not there yet; condition or hide is", f.name);
  return one_of(f, value, {"condition", "hide"});
}

Status set_reasoning_parser(ServeOptions& o, const Flag& f, const std::string& value) {
  o.server.api.parse_reasoning = value != "none";
  return one_of(f, value, {"inkling", "inkling2", "auto", "none"});
}

// Keeps the coupling, which has a flag of its own.
Status set_speculative_config(ServeOptions& o, const Flag& f, const std::string& value) {
  NIB_ASSIGN(const Json object, object_value(f.name, value));
  NIB_ASSIGN(SpeculativeConfig config, SpeculativeConfig::from_json(object));
  config.coupling = o.engine.speculation.coupling;
  for (const std::string& warning : config.warnings) o.notes.push_back(fmt::format("{}: {}", f.name, warning));
  o.engine.speculation = std::move(config);
  return {};
}

Status set_speculation_coupling(ServeOptions& o, const Flag&, const std::string& value) {
  NIB_ASSIGN(o.engine.speculation.coupling, SpeculativeConfig::parse_coupling(value));
  return {};
}

constexpr std::string_view kPython = "it loads Python code, and there is no Python in this server";
constexpr std::string_view kNotYet = "not there yet";
constexpr std::string_view kOneRank = "one rank on one machine is all there is yet, so only 1 is accepted";
constexpr std::string_view kText = "this server reads text only";
constexpr std::string_view kNoTls = "TLS is not there yet; put a TLS proxy in front";
constexpr std::string_view kGpuOnly = "it concerns GPU execution, and this build runs on CPUs";
constexpr std::string_view kModelDecides = "the checkpoint says what it is";

using enum Kind;

// Every flag of the table in the HTTP specification and others that `vllm serve` users have in their scripts.
const Flag kFlags[] = {
    // model
    {"--model", "", kValue, set_model, "the model: a folder, or a hub id in the local Hugging Face cache"},
    {"--tokenizer", "", kValue, [](ServeOptions& o, const Flag&, const std::string& v) { return o.tokenizer = v, Status(); },
     "folder or file of the tokenizer (default: the model's)"},
    {"--tokenizer-mode", "", kValue,
     [](ServeOptions&, const Flag& f, const std::string& v) { return one_of(f, v, {"auto", "inkling"}); },
     "auto or inkling, both the same"},
    {"--dtype", "", kValue, set_dtype, "activations and caches: auto (bfloat16), bfloat16, float32"},
    {"--quantization", "-q", kValue, ignore, kModelDecides},
    {"--load-format", "", kValue,
     [](ServeOptions&, const Flag& f, const std::string& v) { return one_of(f, v, {"auto", "safetensors"}); },
     "auto or safetensors, both the same"},
    {"--revision", "", kValue, refuse, "name the folder of that revision as MODEL instead"},
    {"--tokenizer-revision", "", kValue, refuse, "name the folder of that revision with --tokenizer instead"},
    {"--hf-overrides", "", kObject, refuse, "edit the config.json of the folder instead"},
    {"--download-dir", "", kValue, ignore, "nothing is downloaded"},
    {"--trust-remote-code", "", kSwitch, ignore, "no code comes with a model"},
    {"--max-model-len", "", kValue, set_max_model_len, "tokens of prompt and output: 4096, 64k, 1M, auto"},
    {"--seed", "", kValue,
     [](ServeOptions& o, const Flag& f, const std::string& v) {
       NIB_ASSIGN(o.engine.seed, size_value(f.name, v, -kMostSize));
       return Status();
     },
     "seed of requests that bring none"},
    {"--generation-config", "", kValue,
     [](ServeOptions& o, const Flag&, const std::string& v) { return o.generation_config = v, Status(); },
     "sampling defaults: auto (the model's), vllm (none) or a folder"},
    {"--override-generation-config", "", kObject,
     [](ServeOptions& o, const Flag& f, const std::string& v) {
       NIB_ASSIGN(o.override_generation_config, object_value(f.name, v));
       return Status();
     },
     "JSON object of sampling defaults that win over it"},
    // text
    {"--reasoning-parser", "", kValue, set_reasoning_parser, "inkling, inkling2, auto; none: reasoning is content"},
    {"--tool-call-parser", "", kValue,
     [](ServeOptions&, const Flag& f, const std::string& v) { return one_of(f, v, {"inkling", "inkling2", "auto"}); },
     "inkling, inkling2 or auto, all the same"},
    {"--enable-auto-tool-choice", "", kSwitch, ignore, "tool calls are always read"},
    {"--exclude-tools-when-tool-choice-none", "", kSwitch, api_switch<&ApiConfig::exclude_tools_when_none>,
     "with tool_choice none, tools stay out of the prompt"},
    {"--default-chat-template-kwargs", "", kObject,
     [](ServeOptions& o, const Flag& f, const std::string& v) {
       NIB_ASSIGN(o.server.api.default_template_kwargs, object_value(f.name, v));
       return Status();
     },
     "JSON, such as {\"reasoning_effort\":\"low\"}"},
    {"--chat-template", "", kValue, ignore, "the chat format is built in"},
    {"--chat-template-content-format", "", kValue, ignore, "the chat format is built in"},
    {"--trust-request-chat-template", "", kSwitch, ignore, "the chat format is built in"},
    {"--response-role", "", kValue, ignore, "answers come from the assistant"},
    {"--allow-special-in-text", "", kSwitch, api_switch<&ApiConfig::allow_special_in_text>,
     "user text may spell control tokens: unsafe"},
    {"--none-effort-policy", "", kValue, set_none_effort_policy, "reasoning at effort 0: condition (shown) or hide"},
    {"--emit-reasoning-content", "", kSwitch, api_switch<&ApiConfig::emit_reasoning_content>,
     "reasoning under its older name too (default on)"},
    {"--default-thinking-token-budget", "", kValue, only<'0'>, "a budget is not there yet"},
    {"--recover-text-tool-calls", "", kSwitch, refuse, kNotYet},
    {"--return-tokens-as-token-ids", "", kSwitch, api_switch<&ApiConfig::tokens_as_ids>, "logprobs name token_id:N"},
    {"--max-logprobs", "", kValue, set_max_logprobs, "most logprobs a token (20); -1: the whole vocabulary"},
    {"--logprobs-mode", "", kValue, set_logprobs_mode, "raw_logprobs (default) or processed_logprobs"},
    {"--structured-outputs-config", "", kObject, ignore, "requests for structured outputs get 501"},
    {"--skip-tokenizer-init", "", kSwitch, refuse, "text is read and written here"},
    // HTTP
    {"--served-model-name", "", kList,
     [](ServeOptions& o, const Flag& f, const std::string& v) {
       if (v.empty()) return invalid("{}: an empty name", f.name);
       return o.server.api.served_model_names.push_back(v), Status();
     },
     "names in the API (default: MODEL)"},
    {"--host", "", kValue, [](ServeOptions& o, const Flag&, const std::string& v) { return o.server.http.host = v, Status(); },
     "address (default: all)"},
    {"--port", "", kValue, http_number<int, &HttpServerConfig::port, 0, 65535>, "TCP port (8000); 0: any free one"},
    {"--uds", "", kValue,
     [](ServeOptions& o, const Flag&, const std::string& v) { return o.server.http.unix_socket = v, Status(); },
     "path of a Unix socket, instead of host and port"},
    {"--api-key", "", kList,
     [](ServeOptions& o, const Flag& f, const std::string& v) {
       if (v.empty()) return invalid("{}: an empty key", f.name);
       return o.server.api.api_keys.push_back(v), Status();
     },
     "keys that clients must send (also VLLM_API_KEY)"},
    {"--allowed-origins", "", kValue, api_list<&ApiConfig::cors_origins>, "CORS, JSON list"},
    {"--allowed-methods", "", kValue, api_list<&ApiConfig::cors_methods>, "CORS, JSON list"},
    {"--allowed-headers", "", kValue, api_list<&ApiConfig::cors_headers>, "CORS, JSON list"},
    {"--allow-credentials", "", kSwitch, api_switch<&ApiConfig::cors_credentials>, "CORS"},
    {"--root-path", "", kValue, ignore, "it concerns the generated API pages"},
    {"--ssl-keyfile", "", kValue, refuse, kNoTls},
    {"--ssl-certfile", "", kValue, refuse, kNoTls},
    {"--ssl-ca-certs", "", kValue, refuse, kNoTls},
    {"--ssl-cert-reqs", "", kValue, only<'0'>, kNoTls},
    {"--ssl-ciphers", "", kValue, refuse, kNoTls},
    {"--enable-ssl-refresh", "", kSwitch, refuse, kNoTls},
    {"--enable-request-id-headers", "", kSwitch, api_switch<&ApiConfig::request_id_headers>, "X-Request-Id in answers"},
    {"--h11-max-incomplete-event-size", "", kValue,
     http_number<size_t, &HttpServerConfig::max_head_bytes, 1024, 64 << 20>, "bytes of a request's head (64K)"},
    {"--h11-max-header-count", "", kValue, http_number<int, &HttpServerConfig::max_headers, 1, 100'000>,
     "header lines of a request (256)"},
    {"--max-body-bytes", "", kValue,
     http_number<size_t, &HttpServerConfig::max_body_bytes, 1024, INT64_C(1) << 32>, "bytes of a request's body (64M)"},
    {"--http-timeout-keep-alive", "", kValue,
     http_seconds<std::chrono::seconds, &HttpServerConfig::keep_alive>, "seconds an idle connection stays open (75)"},
    {"--http-write-timeout", "", kValue,
     http_seconds<std::chrono::seconds, &HttpServerConfig::write_timeout>, "seconds a client may leave its answer unread (60)"},
    {"--shutdown-timeout", "", kValue, set_shutdown_timeout, "seconds for running requests after SIGTERM (30)"},
    {"--io-threads", "", kValue, http_number<int, &HttpServerConfig::io_threads, 1, 64>, "threads for connections (1)"},
    {"--api-server-count", "", kValue, ignore, "one process serves; see --io-threads"},
    {"--disable-fastapi-docs", "", kSwitch, ignore, "there are no such pages"},
    {"--disable-frontend-multiprocessing", "", kSwitch, ignore, "one process serves"},
    {"--enable-prompt-tokens-details", "", kSwitch, api_switch<&ApiConfig::prompt_tokens_details>,
     "cached tokens in usage (default on)"},
    {"--enable-force-include-usage", "", kSwitch, api_switch<&ApiConfig::force_include_usage>, "usage in every stream"},
    {"--stream-interval", "", kValue,
     [](ServeOptions& o, const Flag& f, const std::string& v) {
       NIB_ASSIGN(o.server.api.stream_interval, size_value(f.name, v, 1));
       return Status();
     },
     "tokens per chunk of a stream (1)"},
    {"--enable-server-load-tracking", "", kSwitch, refuse, kNotYet},
    {"--enable-tokenizer-info-endpoint", "", kSwitch, refuse, kNotYet},
    {"--enable-per-request-metrics", "", kSwitch, refuse, kNotYet},
    {"--dev-endpoints", "", kSwitch, refuse, kNotYet},
    {"--middleware", "", kValue, refuse, kPython},
    {"--tool-parser-plugin", "", kValue, refuse, kPython},
    {"--reasoning-parser-plugin", "", kValue, refuse, kPython},
    {"--logits-processors", "", kList, refuse, kPython},
    {"--worker-extension-cls", "", kValue, refuse, kPython},
    {"--worker-cls", "", kValue, refuse, kPython},
    {"--config", "", kValue, refuse, "YAML files are not read; give the flags themselves"},
    // scheduler and cache
    {"--max-num-seqs", "", kValue, engine_size<&EngineConfig::max_num_seqs>, "most sequences running at once (128)"},
    {"--max-num-batched-tokens", "", kValue, engine_size<&EngineConfig::max_num_batched_tokens>, "most tokens computed in one step (2048)"},
    {"--max-waiting-requests", "", kValue, engine_size<&EngineConfig::max_waiting_requests>,
     "waiting requests beyond which new ones get 503 (4096)"},
    {"--kv-cache-memory-bytes", "", kValue, engine_size<&EngineConfig::kv_cache_memory_bytes>, "bytes of the KV cache, such as 4G (default: by free memory)"},
    {"--gpu-memory-utilization", "", kValue, ignore, "this build runs on CPUs; --kv-cache-memory-bytes sizes the cache"},
    {"--kv-cache-dtype", "", kValue,
     [](ServeOptions&, const Flag& f, const std::string& v) { return one_of(f, v, {"auto", "bfloat16"}); },
     "auto (as --dtype) or bfloat16"},
    {"--kv-cache-dtype-skip-layers", "", kList, ignore, "the cache has one type"},
    {"--calculate-kv-scales", "", kSwitch, ignore, "the cache needs no scales"},
    {"--block-size", "", kValue, set_block_size, "tokens per cache block (16)"},
    {"--enable-prefix-caching", "", kSwitch, refuse, "prefix caching is not there yet, leave it out"},
    {"--prefix-caching-hash-algo", "", kValue, ignore, "there is no prefix cache yet"},
    {"--enable-chunked-prefill", "", kSwitch,
     [](ServeOptions&, const Flag& f, const std::string& v) {
       return v == "true" ? Status() : invalid("--no-{}: prompts are always computed in chunks", f.name.substr(2));
     },
     "always on"},
    {"--scheduling-policy", "", kValue,
     [](ServeOptions& o, const Flag& f, const std::string& v) {
       o.engine.priority_scheduling = o.server.api.priority_scheduling = v == "priority";
       return one_of(f, v, {"fcfs", "priority"});
     },
     "fcfs (default) or priority"},
    {"--async-scheduling", "", kSwitch, ignore, "steps are planned between steps"},
    {"--swap-space", "", kValue, ignore, "preempted requests are computed again"},
    {"--cpu-offload-gb", "", kValue, refuse, "weights lie in main memory already"},
    {"--disable-sliding-window", "", kSwitch, refuse, "the model is made of sliding windows"},
    {"--kv-events-config", "", kObject, refuse, kNotYet},
    {"--kv-transfer-config", "", kObject, refuse, kNotYet},
    {"--kv-offloading-size", "", kValue, refuse, kNotYet},
    {"--kv-offloading-backend", "", kValue, refuse, kNotYet},
    {"--speculative-config", "-sc", kObject, set_speculative_config,
     "JSON object: method dspark or ngram, num_speculative_tokens, draft_sample_method, ... (docs/speculation.md)"},
    {"--speculation-coupling", "", kValue, set_speculation_coupling,
     "sampled requests whose tokens are those of a run without speculation: always, seeded (default), never; the "
     "others are equal in distribution"},
    // machine
    {"--device", "", kValue,
     [](ServeOptions&, const Flag& f, const std::string& v) {
       if (v == "cuda") return invalid("{} cuda: this build has no CUDA backend", f.name);
       return one_of(f, v, {"auto", "cpu"});
     },
     "auto or cpu"},
    {"--cpu-isa", "", kValue, [](ServeOptions& o, const Flag&, const std::string& v) { return o.cpu_isa = v, Status(); },
     "ref, avx2, avx512 or amx (default: the machine's best)"},
    {"--num-threads", "", kValue,
     [](ServeOptions& o, const Flag& f, const std::string& v) {
       NIB_ASSIGN(const int64_t n, size_value(f.name, v, 1, 1024));
       o.engine.num_threads = static_cast<int>(n);
       return Status();
     },
     "threads of the engine (default: one per core)"},
    {"--tensor-parallel-size", "-tp", kValue, only<'1'>, kOneRank},
    {"--pipeline-parallel-size", "-pp", kValue, only<'1'>, kOneRank},
    {"--data-parallel-size", "-dp", kValue, only<'1'>, kOneRank},
    {"--enable-expert-parallel", "", kSwitch, ignore, "there is one rank"},
    {"--distributed-executor-backend", "", kValue, ignore, "there is one rank"},
    {"--disable-custom-all-reduce", "", kSwitch, ignore, "there is one rank"},
    {"--enforce-eager", "", kSwitch, ignore, kGpuOnly},
    {"--compilation-config", "-O", kObject, ignore, kGpuOnly},
    {"--attention-backend", "", kValue, ignore, kGpuOnly},
    {"--moe-backend", "", kValue, ignore, kGpuOnly},
    {"--kernel-config", "", kObject, ignore, kGpuOnly},
    {"--enable-sleep-mode", "", kSwitch, refuse, kNotYet},
    {"--weight-transfer-config", "", kObject, refuse, kNotYet},
    {"--enable-return-routed-experts", "", kSwitch, refuse, kNotYet},
    // LoRA, images
    {"--enable-lora", "", kSwitch, refuse, "LoRA is not there yet"},
    {"--lora-modules", "", kList, refuse, "LoRA is not there yet"},
    {"--max-loras", "", kValue, ignore, "there is no LoRA yet"},
    {"--max-lora-rank", "", kValue, ignore, "there is no LoRA yet"},
    {"--max-cpu-loras", "", kValue, ignore, "there is no LoRA yet"},
    {"--lora-dtype", "", kValue, ignore, "there is no LoRA yet"},
    {"--fully-sharded-loras", "", kSwitch, ignore, "there is no LoRA yet"},
    {"--limit-mm-per-prompt", "", kObject, set_limit_mm, "JSON; only 0 of each kind"},
    {"--language-model-only", "", kSwitch, ignore, kText},
    {"--enable-multimodal", "", kSwitch, ignore, kText},
    {"--mm-encoder-tp-mode", "", kValue, ignore, kText},
    {"--mm-processor-cache-gb", "", kValue, ignore, kText},
    {"--mm-max-image-tokens", "", kValue, ignore, kText},
    {"--on-bad-image", "", kValue, ignore, kText},
    {"--allowed-local-media-path", "", kValue, ignore, kText},
    {"--allowed-media-domains", "", kList, ignore, kText},
    {"--trust-request-mm-kwargs", "", kSwitch, ignore, kText},
    // logging
    {"--disable-log-stats", "", kSwitch,
     [](ServeOptions& o, const Flag&, const std::string& v) {
       return o.server.stats_interval = std::chrono::seconds(v == "true" ? 0 : 10), Status();
     },
     "no line of figures every 10 s"},
    {"--enable-log-requests", "", kSwitch, api_switch<&ApiConfig::log_requests>, "one log line per request"},
    {"--disable-log-requests", "", kSwitch, ignore, "requests are not logged unless --enable-log-requests is given"},
    {"--max-log-len", "", kValue, ignore, "prompts are never logged"},
    {"--uvicorn-log-level", "", kValue, ignore, "see --enable-log-requests"},
    {"--disable-uvicorn-access-log", "", kSwitch, ignore, "see --enable-log-requests"},
    {"--log-config-file", "", kValue, ignore, "the log goes to standard error"},
    {"--otlp-traces-endpoint", "", kValue, refuse, kNotYet},
};

}  // namespace

std::span<const Flag> serve_flags() { return kFlags; }

}  // namespace nib::cli
