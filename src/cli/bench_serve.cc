// nib bench serve: sends a load to a server and prints what `vllm bench serve` prints.
#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "cli/commands.h"
#include "server/http_load.h"
#include "server/open_files.h"

namespace nib::cli {

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string backend = "openai", base_url, host = "127.0.0.1", endpoint, model, tokenizer, dataset = "random";
  std::string label, result_dir = ".", result_filename, api_key, extra_body, request_rate = "inf";
  std::string percentile_metrics = "ttft,tpot,itl", percentiles = "99";
  std::vector<std::string> headers, goodput;
  int port = 8000;
  int64_t input_len = 1024, output_len = 128, num_prompts = 1000, max_concurrency = 0, seed = 0, ready_timeout_s = 30;
  double burstiness = 1, temperature = -1;
  bool ignore_eos = false, save_result = false, save_detailed = false;

  bool chat() const { return backend == "openai-chat"; }
  double rate() const { return request_rate == "inf" ? INFINITY : std::atof(request_rate.c_str()); }
};

// What one request went through; times in seconds.
struct Sample {
  Clock::time_point begin, last;
  double ttft_s = -1, latency_s = 0;
  std::vector<double> itl_s;
  int64_t input_tokens = 0, output_tokens = 0;
  std::string text, error;
  bool ok() const { return error.empty(); }
  double tpot_s() const {
    return output_tokens > 1 ? (latency_s - ttft_s) / static_cast<double>(output_tokens - 1) : 0;
  }
};

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
  double duration_s() const { return duration_s_; }
  int64_t most_open() const { return most_open_; }
  int64_t peak_tokens_per_s() const {
    int64_t peak = 0;
    for (const auto& [second, count] : tokens_in_second_) peak = std::max(peak, count);
    return peak;
  }

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
    ++tokens_in_second_[static_cast<int64_t>(seconds(now - begin_))];
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
  std::map<int64_t, int64_t> tokens_in_second_;
};

// ---- the report ----

struct Series {
  std::string key, name, title;
  std::vector<double> values_ms;
};

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = p / 100 * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (at - static_cast<double>(low));
}

double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double deviation(const std::vector<double>& values) {
  const double m = mean(values);
  double sum = 0;
  for (double v : values) sum += (v - m) * (v - m);
  return values.empty() ? 0 : std::sqrt(sum / static_cast<double>(values.size()));
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) out.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return out;
}

std::vector<Series> make_series(const std::vector<Sample>& samples) {
  std::vector<Series> out = {{"ttft", "TTFT", "Time to First Token", {}},
                             {"tpot", "TPOT", "Time per Output Token (excl. 1st token)", {}},
                             {"itl", "ITL", "Inter-token Latency", {}},
                             {"e2el", "E2EL", "End-to-end Latency", {}}};
  for (const Sample& s : samples) {
    if (!s.ok()) continue;
    out[0].values_ms.push_back(s.ttft_s * 1e3);
    if (s.output_tokens > 1) out[1].values_ms.push_back(s.tpot_s() * 1e3);
    for (double gap : s.itl_s) out[2].values_ms.push_back(gap * 1e3);
    out[3].values_ms.push_back(s.latency_s * 1e3);
  }
  return out;
}

// "ttft:500 tpot:50", in ms: how many requests kept all of them.
Result<int64_t> count_good(const Options& o, const std::vector<Sample>& samples) {
  std::map<std::string, double> bounds_ms;
  for (const std::string& g : o.goodput) {
    const size_t colon = g.find(':');
    const std::string key = g.substr(0, colon);
    if (colon == std::string::npos || (key != "ttft" && key != "tpot" && key != "e2el"))
      return invalid("--goodput {}: ttft:MS, tpot:MS or e2el:MS is expected", g);
    bounds_ms[key] = std::atof(g.c_str() + colon + 1);
  }
  return std::count_if(samples.begin(), samples.end(), [&](const Sample& s) {
    const std::map<std::string, double> seen = {
        {"ttft", s.ttft_s * 1e3}, {"tpot", s.tpot_s() * 1e3}, {"e2el", s.latency_s * 1e3}};
    return s.ok() && std::all_of(bounds_ms.begin(), bounds_ms.end(),
                                 [&](const auto& bound) { return seen.at(bound.first) <= bound.second; });
  });
}

Json make_result(const Options& o, const std::string& model, const Bench& bench, int64_t good) {
  int64_t completed = 0, input = 0, output = 0;
  for (const Sample& s : bench.samples())
    if (s.ok()) ++completed, input += s.input_tokens, output += s.output_tokens;
  const double d = bench.duration_s();
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  std::strftime(date, sizeof date, "%Y%m%d-%H%M%S", localtime_r(&now, &local));
  Json r = {{"date", date},
            {"backend", o.backend},
            {"label", o.label.empty() ? Json() : Json(o.label)},
            {"model_id", model},
            {"tokenizer_id", o.tokenizer.empty() ? model : o.tokenizer},
            {"num_prompts", o.num_prompts},
            {"request_rate", std::isinf(o.rate()) ? Json("inf") : Json(o.rate())},
            {"burstiness", o.burstiness},
            {"max_concurrency", o.max_concurrency > 0 ? Json(o.max_concurrency) : Json()},
            {"duration", d},
            {"completed", completed},
            {"failed", std::ssize(bench.samples()) - completed},
            {"total_input_tokens", input},
            {"total_output_tokens", output},
            {"request_throughput", static_cast<double>(completed) / d},
            {"request_goodput", o.goodput.empty() ? Json() : Json(static_cast<double>(good) / d)},
            {"output_throughput", static_cast<double>(output) / d},
            {"total_token_throughput", static_cast<double>(input + output) / d},
            {"max_output_tokens_per_s", bench.peak_tokens_per_s()},
            {"max_concurrent_requests", bench.most_open()}};
  for (const Series& s : make_series(bench.samples())) {
    r["mean_" + s.key + "_ms"] = mean(s.values_ms);
    r["median_" + s.key + "_ms"] = percentile(s.values_ms, 50);
    r["std_" + s.key + "_ms"] = deviation(s.values_ms);
    for (const std::string& p : split(o.percentiles))
      r["p" + p + "_" + s.key + "_ms"] = percentile(s.values_ms, std::atof(p.c_str()));
  }
  return r;
}

void add_details(Json& r, const std::vector<Sample>& samples) {
  for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"})
    r[key] = Json::array();
  for (const Sample& s : samples) {
    r["input_lens"].push_back(s.input_tokens);
    r["output_lens"].push_back(s.output_tokens);
    r["ttfts"].push_back(s.ttft_s);
    r["itls"].push_back(s.itl_s);
    r["generated_texts"].push_back(s.text);
    r["errors"].push_back(s.error);
  }
}

void print_report(const Options& o, const Json& r) {
  const auto row = [](const std::string& label, const std::string& value) {
    fmt::print("{:<40} {:<10}\n", label, value);
  };
  const auto whole = [&](const std::string& label, const char* key) { row(label, r[key].dump()); };
  const auto real = [&](const std::string& label, const std::string& key) {
    row(label, fmt::format("{:.2f}", r[key].get<double>()));
  };
  fmt::print("{:=^50}\n", " Serving Benchmark Result ");
  whole("Successful requests:", "completed");
  whole("Failed requests:", "failed");
  if (o.max_concurrency > 0) whole("Maximum request concurrency:", "max_concurrency");
  if (!std::isinf(o.rate())) real("Request rate configured (RPS):", "request_rate");
  real("Benchmark duration (s):", "duration");
  whole("Total input tokens:", "total_input_tokens");
  whole("Total generated tokens:", "total_output_tokens");
  real("Request throughput (req/s):", "request_throughput");
  if (!o.goodput.empty()) real("Request goodput (req/s):", "request_goodput");
  real("Output token throughput (tok/s):", "output_throughput");
  real("Peak output token throughput (tok/s):", "max_output_tokens_per_s");
  whole("Peak concurrent requests:", "max_concurrent_requests");
  real("Total token throughput (tok/s):", "total_token_throughput");
  const std::vector<std::string> wanted = split(o.percentile_metrics);
  for (const Series& s : make_series({})) {
    if (std::find(wanted.begin(), wanted.end(), s.key) == wanted.end()) continue;
    fmt::print("{:-^50}\n", s.title);
    real(fmt::format("Mean {} (ms):", s.name), "mean_" + s.key + "_ms");
    real(fmt::format("Median {} (ms):", s.name), "median_" + s.key + "_ms");
    for (const std::string& p : split(o.percentiles))
      real(fmt::format("P{} {} (ms):", p, s.name), "p" + p + "_" + s.key + "_ms");
  }
  fmt::print("{:=^50}\n", "");
}

Status save(const Options& o, const Json& r) {
  std::string name = o.result_filename;
  if (name.empty()) {
    std::string model = r["model_id"];
    std::replace(model.begin(), model.end(), '/', '_');
    name = fmt::format("{}-{}qps-{}-{}.json", o.label.empty() ? o.backend : o.label, o.request_rate, model,
                       r["date"].get<std::string>());
  }
  const std::filesystem::path path = std::filesystem::path(o.result_dir) / name;
  std::filesystem::create_directories(o.result_dir);
  std::ofstream file(path);
  file << r.dump() << '\n';
  if (!file.flush()) return invalid("{}: cannot be written", path.string());
  return {};
}

// ---- the command ----

Status wait_until_ready(HttpClient& client, int64_t timeout_s) {
  for (const auto end = Clock::now() + std::chrono::seconds(timeout_s);;) {
    const Result<HttpAnswer> health = client.send("GET", "/health");
    if (health.ok() && health->status == 200) return {};
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
  NIB_TRY(wait_until_ready(client, o.ready_timeout_s));
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
  Json result = make_result(o, model, bench, good);
  print_report(o, result);
  if (o.save_detailed || o.save_result) {
    if (o.save_detailed) add_details(result, bench.samples());
    NIB_TRY(save(o, result));
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
  c.add_option("--backend", o->backend, "openai (completions) or openai-chat");
  c.add_option("--base-url", o->base_url, "http://host:port");
  c.add_option("--host", o->host);
  c.add_option("--port", o->port);
  c.add_option("--endpoint", o->endpoint, "/v1/completions or /v1/chat/completions");
  c.add_option("--model", o->model, "default: the first of /v1/models");
  c.add_option("--tokenizer", o->tokenizer, "a name for the result; the server's own is used");
  c.add_option("--api-key", o->api_key, "default: OPENAI_API_KEY");
  c.add_option("--header", o->headers, "NAME=VALUE");
  c.add_option("--dataset-name", o->dataset, "random");
  c.add_option("--input-len,--random-input-len", o->input_len, "tokens of a prompt")->check(CLI::PositiveNumber);
  c.add_option("--output-len,--random-output-len", o->output_len, "tokens of an answer")->check(CLI::PositiveNumber);
  c.add_option("--num-prompts", o->num_prompts)->check(CLI::PositiveNumber);
  c.add_option("--request-rate", o->request_rate, "requests/s, or inf: all at once");
  c.add_option("--burstiness", o->burstiness, "1: a Poisson process")->check(CLI::PositiveNumber);
  c.add_option("--max-concurrency", o->max_concurrency, "open requests at most")->check(CLI::PositiveNumber);
  c.add_flag("--ignore-eos", o->ignore_eos);
  c.add_option("--seed", o->seed, "of the prompts");
  c.add_option("--temperature", o->temperature)->check(CLI::NonNegativeNumber);
  c.add_option("--extra-body", o->extra_body, "JSON over each request");
  c.add_option("--goodput", o->goodput, "ttft:MS tpot:MS e2el:MS");
  c.add_option("--percentile-metrics", o->percentile_metrics, "ttft,tpot,itl,e2el");
  c.add_option("--metric-percentiles", o->percentiles, "99");
  c.add_flag("--save-result", o->save_result);
  c.add_flag("--save-detailed", o->save_detailed, "with every request");
  c.add_option("--result-dir", o->result_dir);
  c.add_option("--result-filename", o->result_filename);
  c.add_option("--label", o->label);
  c.add_option("--ready-check-timeout-sec", o->ready_timeout_s)->check(CLI::NonNegativeNumber);
  c.callback([o, &exit] { exit.code = report("bench serve", run(*o)); });
}

}  // namespace nib::cli
