// nib bench serve: sends a load to a server and prints what `vllm bench serve` prints.
#include <algorithm>
#include <cmath>
#include <random>
#include <thread>
#include <utility>

#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/number_checks.h"
#include "server/http_load.h"
#include "server/open_files.h"

namespace nib::cli {

namespace {

using Clock = std::chrono::steady_clock;
using Options = BenchServeOptions;

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// ---- the prompts ----

// Words as different as a vocabulary allows, made into tokens by the server itself.
Result<std::vector<int64_t>> token_pool(HttpClient& client, const std::string& model, std::mt19937_64& random) {
  std::string text;
  for (int i = 0; i < 2000; ++i) {
    text += ' ';
    for (int length = 2 + static_cast<int>(random() % 7); length > 0; --length)
      text += static_cast<char>('a' + random() % 26);
  }
  NIB_ASSIGN(const Json answer, client.post("/tokenize", {{"model", model}, {"prompt", text}}));
  if (!answer.contains("tokens") || answer["tokens"].empty()) return invalid("/tokenize gave no tokens");
  return answer["tokens"].get<std::vector<int64_t>>();
}

Result<std::vector<Json>> make_prompts(const Options& o, HttpClient& client, const std::string& model) {
  std::mt19937_64 random(static_cast<uint64_t>(o.seed));
  NIB_ASSIGN(const std::vector<int64_t> pool, token_pool(client, model, random));
  std::vector<Json> prompts;
  for (int64_t i = 0; i < o.num_prompts; ++i) {
    Json ids = Json::array();
    for (int64_t t = 0; t < o.input_len; ++t) ids.push_back(pool[random() % pool.size()]);
    if (o.chat()) {
      NIB_ASSIGN(const Json text, client.post("/detokenize", {{"model", model}, {"tokens", ids}}));
      ids = text.value("prompt", "");
    }
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

Json request_body(const Options& o, const std::string& model, const Json& prompt, const Json& extra) {
  Json body = {{"model", model}, {"stream", true}, {"stream_options", {{"include_usage", true}}}};
  if (o.chat()) {
    body["messages"] = Json::array({{{"role", "user"}, {"content", prompt}}});
    body["max_completion_tokens"] = o.output_len;
  } else {
    body["prompt"] = prompt;
    body["max_tokens"] = o.output_len;
  }
  if (o.temperature >= 0) body["temperature"] = o.temperature;
  if (o.ignore_eos) body["ignore_eos"] = true;
  body.update(extra);
  return body;
}

// ---- the load ----

class Bench {
 public:
  Bench(const Options& o, HttpLoad& load, std::vector<std::string> bodies, int64_t max_concurrency)
      : options_(o), load_(load), bodies_(std::move(bodies)), max_open_(max_concurrency), samples_(bodies_.size()) {}

  void run() {
    begin_ = Clock::now();
    arrive();
    load_.run();
    duration_s_ = seconds(Clock::now() - begin_);
  }

  const std::vector<Sample>& samples() const { return samples_; }
  LoadFacts facts() const { return {duration_s_, most_open_, peak_tokens_per_second(samples_, begin_)}; }

 private:
  // Lets the next request arrive and plans the one after it: gaps are gamma distributed (burstiness 1: exponential).
  void arrive() {
    if (arrived_ == samples_.size()) return;
    const double rate = options_.rate();
    do {
      ++arrived_;
      start_waiting();
    } while (std::isinf(rate) && arrived_ < samples_.size());
    if (arrived_ == samples_.size()) return;
    const double gap_s =
        std::gamma_distribution<double>(options_.burstiness, 1 / (rate * options_.burstiness))(random_);
    load_.after(std::chrono::nanoseconds(static_cast<int64_t>(gap_s * 1e9)), [this] { arrive(); });
  }

  void start_waiting() {
    while (started_ < arrived_ && num_open_ < max_open_) start(started_++);
  }

  void start(size_t i) {
    Sample& s = samples_[i];
    s.begin = s.last = Clock::now();
    most_open_ = std::max(most_open_, ++num_open_);
    load_.post(options_.endpoint, bodies_[i],
               {.on_event = [this, &s](std::string_view data) { take(s, data); },
                .on_end =
                    [this, &s](const Status& status) {
                      finish(s, status);
                      --num_open_;
                      start_waiting();
                    }});
  }

  void take(Sample& s, std::string_view data) {
    if (data == "[DONE]") return;
    const Result<Json> chunk = parse_json(data);
    if (!chunk.ok() || chunk->contains("error")) {
      s.error = chunk.ok() ? error_of(500, data).message() : chunk.status().message();
      return;
    }
    if (const auto usage = chunk->find("usage"); usage != chunk->end() && usage->is_object()) {
      s.input_tokens = usage->value("prompt_tokens", 0);
      s.output_tokens = usage->value("completion_tokens", 0);
    }
    for (const Json& choice : chunk->value("choices", Json::array())) take_choice(s, choice);
  }

  void take_choice(Sample& s, const Json& choice) {
    const Json delta = choice.value("delta", Json::object());
    std::string text;
    for (const char* key : {"content", "reasoning"})
      if (delta.contains(key) && delta[key].is_string()) text += delta[key].get<std::string>();
    if (!options_.chat()) text = choice.value("text", "");
    if (text.empty() && !delta.contains("tool_calls")) return;
    const Clock::time_point now = Clock::now();
    if (s.ttft_s < 0)
      s.ttft_s = seconds(now - s.begin);
    else
      s.itl_s.push_back(seconds(now - s.last));
    s.last = now;
    s.latency_s = seconds(now - s.begin);
    s.text += text;
  }

  void finish(Sample& s, const Status& status) {
    if (!status.ok() && s.error.empty()) s.error = status.message();
    if (s.error.empty() && s.output_tokens == 0) s.error = "the stream ended without a usage";
    s.latency_s = seconds(Clock::now() - s.begin);
    if (s.ttft_s < 0) s.ttft_s = s.latency_s;  // tokens, but nothing that shows
  }

  const Options& options_;
  HttpLoad& load_;
  const std::vector<std::string> bodies_;
  const int64_t max_open_;
  std::vector<Sample> samples_;
  std::mt19937_64 random_{0};
  Clock::time_point begin_;
  double duration_s_ = 0;
  size_t arrived_ = 0, started_ = 0;
  int64_t num_open_ = 0, most_open_ = 0;
};

// ---- the command ----

Status wait_until_ready(HttpClient& client, const std::string& url, int64_t timeout_s) {
  bool told = false;
  for (const auto end = Clock::now() + std::chrono::seconds(timeout_s);;) {
    const Result<HttpAnswer> health = client.send("GET", "/health");
    if (health.ok() && health->status == 200) return {};
    if (!std::exchange(told, true)) fmt::print(stderr, "waiting for {}, at most {} s\n", url, timeout_s);
    if (Clock::now() > end) return health.ok() ? error_of(health->status, health->body) : health.status();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

Result<std::string> first_model(HttpClient& client) {
  NIB_ASSIGN(const Json models, client.get("/v1/models"));
  return models.at("data").at(0).at("id").get<std::string>();
}

Status run(Options& o) {
  if (o.backend != "openai" && o.backend != "openai-chat" && o.backend != "vllm")
    return invalid("--backend {}: openai or openai-chat is expected", o.backend);
  if (o.dataset != "random") return invalid("--dataset-name {}: only random is there yet", o.dataset);
  if (!(o.rate() > 0)) return invalid("--request-rate {}: a positive number or inf is expected", o.request_rate);
  if (o.endpoint.empty()) o.endpoint = o.chat() ? "/v1/chat/completions" : "/v1/completions";
  if (o.base_url.empty()) o.base_url = fmt::format("http://{}:{}", o.host, o.port);
  HttpClientOptions http{.api_key = o.api_key};
  for (const std::string& h : o.headers) {
    const size_t equals = h.find('=');
    if (equals == std::string::npos) return invalid("--header {}: NAME=VALUE is expected", h);
    http.headers.emplace_back(h.substr(0, equals), h.substr(equals + 1));
  }
  Json extra = Json::object();
  if (!o.extra_body.empty()) {
    NIB_ASSIGN(extra, parse_json(o.extra_body));
    if (!extra.is_object()) return invalid("--extra-body: a JSON object is expected");
  }

  raise_open_files();
  NIB_ASSIGN(const HttpUrl url, HttpUrl::parse(o.base_url));
  NIB_ASSIGN(HttpClient client, HttpClient::open(o.base_url, http));
  NIB_TRY(wait_until_ready(client, o.base_url, o.ready_timeout_s));
  std::string model = o.model;
  if (model.empty()) {
    NIB_ASSIGN(model, first_model(client));
  }
  NIB_ASSIGN(const std::vector<Json> prompts, make_prompts(o, client, model));
  std::vector<std::string> bodies;
  for (const Json& p : prompts) bodies.push_back(request_body(o, model, p, extra).dump());

  HttpLoad load(url, http);
  Bench bench(o, load, std::move(bodies), o.max_concurrency > 0 ? o.max_concurrency : o.num_prompts);
  bench.run();
  NIB_ASSIGN(const int64_t good, count_good(o, bench.samples()));
  Json result = make_result(o, model, bench.samples(), bench.facts(), good);
  print_report(o, result);
  if (o.save_detailed || o.save_result) {
    if (o.save_detailed) add_details(result, bench.samples());
    NIB_TRY(save_result(o, result));
  }
  for (const Sample& s : bench.samples())
    if (!s.ok())
      return Status(Code::kInternal,
                    fmt::format("{} requests failed, the first: {}", result["failed"].dump(), s.error));
  return {};
}

}  // namespace

void add_bench_serve_command(CLI::App& bench, const Environment& env, Exit& exit) {
  CLI::App& c = *bench.add_subcommand("serve", "Sends a load to a running server and measures it");
  auto o = std::make_shared<Options>();
  o->api_key = env.openai_api_key;
  c.add_option("--backend", o->backend, "openai (completions, the default) or openai-chat");
  c.add_option("--base-url", o->base_url, "http://host:port, instead of --host and --port");
  c.add_option("--host", o->host, "127.0.0.1");
  c.add_option("--port", o->port, "8000");
  c.add_option("--endpoint", o->endpoint, "/v1/completions or /v1/chat/completions");
  c.add_option("--model", o->model, "default: the first of /v1/models");
  c.add_option("--tokenizer", o->tokenizer, "a name for the result; the server's own is used");
  c.add_option("--api-key", o->api_key, "default: OPENAI_API_KEY");
  c.add_option("--header", o->headers, "NAME=VALUE");
  c.add_option("--dataset-name", o->dataset, "random");
  c.add_option("--input-len,--random-input-len", o->input_len, "tokens of a prompt (1024)")->check(positive_number());
  c.add_option("--output-len,--random-output-len", o->output_len, "tokens of an answer (128)")
      ->check(positive_number());
  c.add_option("--num-prompts", o->num_prompts, "requests in all (1000)")->check(positive_number());
  c.add_option("--request-rate", o->request_rate, "requests/s, or inf: all at once (the default)");
  c.add_option("--burstiness", o->burstiness, "1: a Poisson process")->check(positive_number());
  c.add_option("--max-concurrency", o->max_concurrency, "open requests at most (no limit)")->check(positive_number());
  c.add_flag("--ignore-eos", o->ignore_eos, "answers go on to their full length");
  c.add_option("--seed", o->seed, "of the prompts");
  c.add_option("--temperature", o->temperature, "default: the server's")->check(non_negative_number());
  c.add_option("--extra-body", o->extra_body, "JSON object merged into each request");
  c.add_option("--goodput", o->goodput, "ttft:MS tpot:MS e2el:MS");
  c.add_option("--percentile-metrics", o->percentile_metrics, "ttft,tpot,itl,e2el");
  c.add_option("--metric-percentiles", o->percentiles, "99");
  c.add_flag("--save-result", o->save_result, "write the result as a JSON file");
  c.add_flag("--save-detailed", o->save_detailed, "the same, with every request in it");
  c.add_option("--result-dir", o->result_dir, "folder of that file (the current one)");
  c.add_option("--result-filename", o->result_filename, "its name; default: made from backend, model and time");
  c.add_option("--label", o->label, "a word in the result and the default file name");
  c.add_option("--ready-check-timeout-sec", o->ready_timeout_s, "seconds to wait for the server (30)")
      ->check(non_negative_number());
  c.callback([o, &exit] { exit.code = report("bench serve", run(*o)); });
}

}  // namespace nib::cli
