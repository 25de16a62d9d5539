#include "server/options.h"

#include <openssl/rand.h>

#include <algorithm>
#include <limits>

#include "server/errors.h"
#include "server/limits.h"

namespace nib {

namespace {

constexpr int64_t kMostInt = std::numeric_limits<int64_t>::max();

Status not_implemented(std::string_view field, std::string_view what) {
  return Status(Code::kUnimplemented, fmt::format("{} is not implemented by this server", what), std::string(field));
}

// Fields whose mere presence asks for something that is not there.
struct Missing {
  std::string_view field;
  Code code;
};
constexpr Missing kMissing[] = {
    {"structured_outputs", Code::kUnimplemented},    {"guided_json", Code::kUnimplemented},
    {"guided_regex", Code::kUnimplemented},          {"guided_choice", Code::kUnimplemented},
    {"guided_grammar", Code::kUnimplemented},        {"guided_json_object", Code::kUnimplemented},
    {"thinking_token_budget", Code::kUnimplemented}, {"kv_transfer_params", Code::kUnimplemented},
    {"repetition_detection", Code::kUnimplemented},  {"mm_processor_kwargs", Code::kInvalidArgument},
    {"media_io_kwargs", Code::kInvalidArgument},     {"prompt_embeds", Code::kUnimplemented},
};

Status check_missing(Fields& f) {
  for (const Missing& m : kMissing) {
    if (!f.has(m.field)) continue;
    if (m.code == Code::kUnimplemented) return not_implemented(m.field, m.field);
    return invalid_param(std::string(m.field), "{} is not accepted by this server", m.field);
  }
  if (const Json* format = f.object("response_format")) {
    const auto type = format->find("type");
    if (type == format->end() || !type->is_string())
      return invalid_param("response_format", "response_format needs a type: text, json_object or json_schema");
    const auto& name = type->get_ref<const std::string&>();
    if (name == "json_object" || name == "json_schema" || name == "structural_tag")
      return not_implemented("response_format", fmt::format("response_format {}", type->dump()));
    if (name != "text")
      return invalid_param("response_format", "response_format: the type {} is none of text, json_object, json_schema",
                           type->dump());
  }
  if (f.boolean("use_beam_search").value_or(false))
    return invalid_param("use_beam_search", "use_beam_search is not supported");
  if (f.number("length_penalty").value_or(1.0) != 1.0)
    return invalid_param("length_penalty", "length_penalty is for beam search, which is not supported");
  return {};
}

void read_sampling(Fields& f, int64_t vocab_size, SamplingParams& s) {
  s.temperature = f.number("temperature").value_or(s.temperature);
  s.top_p = f.number("top_p").value_or(s.top_p);
  s.top_k = f.integer("top_k").value_or(s.top_k);
  s.min_p = f.number("min_p").value_or(s.min_p);
  s.repetition_penalty = f.number("repetition_penalty").value_or(s.repetition_penalty);
  s.presence_penalty = f.number("presence_penalty").value_or(s.presence_penalty);
  s.frequency_penalty = f.number("frequency_penalty").value_or(s.frequency_penalty);
  s.n = f.integer("n", 1, limits::kSequences).value_or(1);
  s.seed = f.integer("seed");
  s.ignore_eos = f.boolean("ignore_eos").value_or(false);
  s.min_tokens = f.integer("min_tokens", 0, kMostInt).value_or(0);
  s.stop_token_ids = f.token_ids("stop_token_ids", limits::kStopTokenIds);
  s.allowed_token_ids = f.token_ids("allowed_token_ids", std::numeric_limits<int32_t>::max());
  s.logprob_token_ids = f.token_ids("logprob_token_ids", limits::kLogprobTokenIds);
  if (const std::optional<int64_t> k = f.integer("prompt_logprobs", -1, std::numeric_limits<int32_t>::max()))
    s.num_prompt_logprobs = static_cast<int>(*k < 0 ? vocab_size : *k);  // -1: all
}

// {"123": -100}: keys are token ids, values are clamped to [-100, 100] as upstream.
void read_logit_bias(Fields& f, SamplingParams& s) {
  const Json* bias = f.object("logit_bias");
  if (!bias) return;
  if (bias->size() > limits::kLogitBias)
    return f.mistake("logit_bias", fmt::format("at most {} entries are allowed", limits::kLogitBias), bias);
  for (const auto& [key, value] : bias->items()) {
    const bool digits = !key.empty() && key.size() <= 9 &&
                        std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isdigit(c); });
    if (!digits || !value.is_number()) {
      f.mistake("logit_bias." + key.substr(0, 32), "a token id in digits and a number are expected", &value);
      continue;
    }
    const double clamped = std::clamp(value.get<double>(), -100.0, 100.0);
    s.logit_bias.emplace_back(std::stoi(key), static_cast<float>(clamped));
  }
}

// A word is blocked as it stands and behind a space.
void read_bad_words(Fields& f, const Tokenizer& tokenizer, SamplingParams& s) {
  for (const std::string& word : f.strings("bad_words", limits::kBadWords)) {
    const size_t start = std::min(word.find_first_not_of(' '), word.size());
    const std::string bare = word.substr(start);
    if (bare.empty()) {
      f.mistake("bad_words", "a word cannot be empty", nullptr);
      continue;
    }
    for (const std::string& form : {bare, " " + bare})
      s.bad_words.push_back(tokenizer.encode(form, Tokenizer::Special::kText));
  }
}

void read_stops(Fields& f, GenerateOptions& o) {
  const Json* stop = f.find("stop");
  if (stop && stop->is_string())
    o.stop = {stop->get<std::string>()};
  else
    o.stop = f.strings("stop", limits::kStops);
  for (const std::string& s : o.stop)
    if (s.size() > limits::kStopBytes) f.mistake("stop", fmt::format("longer than {} bytes", limits::kStopBytes), stop);
  o.include_stop = f.boolean("include_stop_str_in_output").value_or(false);
}

void read_stream_options(Fields& f, const Service& service, GenerateOptions& o) {
  o.stream = f.boolean("stream").value_or(false);
  o.stream_interval = f.integer("stream_interval", 1, kMostInt).value_or(service.config.stream_interval);
  o.include_usage = o.stream && service.config.force_include_usage;
  o.continuous_usage = o.include_usage;
  const Json* options = f.object("stream_options");
  if (!options) return;
  Fields s(*options, "body.stream_options");
  o.include_usage = s.boolean("include_usage").value_or(false) || o.include_usage;
  o.continuous_usage = (s.boolean("continuous_usage_stats").value_or(false) && o.include_usage) || o.continuous_usage;
  if (!s.status().ok()) f.mistake("stream_options", s.status().message(), nullptr);
}

bool is_plain_id(std::string_view id) {
  return !id.empty() && id.size() <= limits::kRequestIdBytes &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < '\x7f' && c != '"' && c != '\\'; });
}

void read_request_id(Fields& f, const HttpRequest& request, GenerateOptions& o) {
  const std::optional<std::string> given = f.string("request_id");
  if (given && !is_plain_id(*given)) f.mistake("request_id", "1 to 128 printable characters are expected", nullptr);
  const std::string_view header = request.header("x-request-id");
  o.request_id = is_plain_id(header) ? std::string(header) : given.value_or(random_id());
}

void read_cache_salt(Fields& f) {
  const std::optional<std::string> salt = f.string("cache_salt");
  if (salt && (salt->empty() || salt->size() > limits::kCacheSaltBytes ||
               salt->find_first_of(std::string("@/\\\0", 4)) != std::string::npos))
    f.mistake("cache_salt", "1 to 128 characters without @ / \\ and NUL are expected", nullptr);
}

Status check_values(const Fields& f, const Service& service, const GenerateOptions& o) {
  if (!o.stream && f.has("stream_options"))
    return invalid_param("stream_options", "stream_options is only for stream = true");
  if (o.stream && o.sampling.num_prompt_logprobs >= 0)
    return invalid_param("prompt_logprobs", "prompt_logprobs is not available with stream = true");
  for (const std::string& s : o.stop)
    if (s.empty()) return invalid_param("stop", "stop cannot hold an empty string");
  if (f.has("allowed_token_ids") && o.sampling.allowed_token_ids.empty())
    return invalid_param("allowed_token_ids", "allowed_token_ids must not be empty");
  if (o.priority != 0 && !service.config.priority_scheduling)
    return invalid_param("priority", "priority must be 0 unless the server runs with --scheduling-policy priority");
  if (const Json* best_of = f.find("best_of"); best_of && as_integer(*best_of) != o.sampling.n)
    return invalid_param("best_of", "best_of is not supported, except if it equals n");
  return {};
}

}  // namespace

Result<GenerateOptions> read_options(Fields& f, const Service& service, const HttpRequest& request) {
  GenerateOptions o;
  o.sampling = service.fallback.sampling;
  o.model = f.string("model").value_or(service.config.served_model_names[0]);
  read_request_id(f, request, o);
  read_sampling(f, service.vocab_size(), o.sampling);
  read_logit_bias(f, o.sampling);
  read_bad_words(f, *service.tokenizer, o.sampling);
  read_stops(f, o);
  read_stream_options(f, service, o);
  read_cache_salt(f);
  o.skip_special_tokens = f.boolean("skip_special_tokens").value_or(true);
  o.return_token_ids = f.boolean("return_token_ids").value_or(false);
  o.tokens_as_ids = f.boolean("return_tokens_as_token_ids").value_or(service.config.tokens_as_ids);
  o.return_prompt_text = f.boolean("return_prompt_text").value_or(false);
  o.echo = f.boolean("echo").value_or(false);
  o.truncate_prompt_tokens = f.integer("truncate_prompt_tokens", -1, kMostInt);
  const std::string side = f.string("truncation_side").value_or("left");
  if (side != "left" && side != "right") f.mistake("truncation_side", "left or right is expected", nullptr);
  o.truncate_right = side == "right";
  o.priority = f.integer("priority").value_or(0);
  o.sampling.processed_logprobs = service.config.processed_logprobs;

  const Status missing = check_missing(f);  // its reads may find mistakes, which go first
  NIB_TRY(f.status());
  if (!service.serves(o.model))
    return Status(Code::kNotFound, fmt::format("The model `{}` does not exist.", o.model.substr(0, 200)), "model");
  NIB_TRY(missing);
  NIB_TRY(check_values(f, service, o));
  return o;
}

namespace {

void truncate(const GenerateOptions& o, int64_t max_model_len, std::vector<int32_t>& prompt) {
  if (!o.truncate_prompt_tokens) return;
  int64_t keep = *o.truncate_prompt_tokens;
  if (keep < 0) keep = std::max<int64_t>(1, max_model_len - o.max_tokens.value_or(1));
  if (std::ssize(prompt) <= keep) return;
  const auto cut = std::ssize(prompt) - keep;
  if (o.truncate_right)
    prompt.resize(keep);
  else
    prompt.erase(prompt.begin(), prompt.begin() + cut);
}

}  // namespace

Status fit_to_context(GenerateOptions& o, const Service& service, std::vector<int32_t>& prompt) {
  const int64_t most = service.max_model_len();
  if (o.max_tokens && *o.max_tokens > most)
    return invalid_param(o.max_tokens_field, "{} is {}, but this model's maximum context length is {} tokens",
                         o.max_tokens_field, *o.max_tokens, most);
  truncate(o, most, prompt);
  const int64_t length = std::ssize(prompt);
  if (length == 0) return invalid_param("prompt", "the prompt is empty");
  const int64_t wanted = o.max_tokens.value_or(1);
  if (length + wanted > most)
    return invalid_param(
        "input_tokens",
        "This model's maximum context length is {} tokens. However, you requested {} output tokens and "
        "your prompt contains {} input tokens, {} in all. Please reduce the length of the input prompt "
        "or the number of requested output tokens.",
        most, wanted, length, length + wanted);
  int64_t fallback = most - length;
  if (service.fallback.max_new_tokens) fallback = std::min(fallback, *service.fallback.max_new_tokens);
  o.sampling.max_tokens = o.max_tokens.value_or(fallback);
  return {};
}

namespace {

// One pass over the bytes: JSON that would be slow or large to build is refused before anything is built.
Status check_shape(std::string_view text) {
  std::vector<size_t> commas(1, 0);
  size_t values = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') commas.push_back(c == '{' ? 0 : limits::kJsonValues * 2);
    if ((c == '}' || c == ']') && commas.size() > 1) commas.pop_back();
    if (commas.size() > limits::kJsonDepth + 1)
      return invalid("the JSON body is nested more than {} levels deep", limits::kJsonDepth);
    if (c != ',') continue;
    if (++values > limits::kJsonValues) return invalid("the JSON body holds more than {} values", limits::kJsonValues);
    if (++commas.back() == limits::kJsonMembers)
      return invalid("an object of the JSON body has more than {} members", limits::kJsonMembers);
  }
  return {};
}

}  // namespace

Result<Json> parse_body(const std::string& body) {
  const auto as_body_error = [](const Status& s) {
    return Status(s.code(), s.message().substr(0, 300), std::string(kBodyParam));
  };
  if (Status s = check_shape(body); !s.ok()) return as_body_error(s);
  Result<Json> json = parse_json(body, limits::kJsonDepth);
  if (!json.ok()) return as_body_error(json.status());
  if (!json->is_object()) return Status(Code::kInvalidArgument, "the body should be a JSON object", "body");
  return json;
}

std::string random_id() {
  unsigned char bytes[16];
  NIB_CHECK(RAND_bytes(bytes, sizeof bytes) == 1, "no randomness");
  std::string out;
  for (unsigned char b : bytes) out += fmt::format("{:02x}", b);
  return out;
}

}  // namespace nib
