#include "cli/bench_report.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

namespace nib::cli {

namespace {

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

}  // namespace

int64_t peak_tokens_per_second(const std::vector<Sample>& samples, std::chrono::steady_clock::time_point begin) {
  std::map<int64_t, double> tokens_in_second;
  double peak = 0;
  for (const Sample& s : samples) {
    const double tokens_per_chunk = static_cast<double>(s.output_tokens) / static_cast<double>(s.itl_s.size() + 1);
    double at_s = std::chrono::duration<double>(s.begin - begin).count() + s.ttft_s;
    const auto count = [&] { peak = std::max(peak, tokens_in_second[static_cast<int64_t>(at_s)] += tokens_per_chunk); };
    count();
    for (const double gap_s : s.itl_s) at_s += gap_s, count();
  }
  return std::llround(peak);
}

// "ttft:500 tpot:50", in ms: how many requests kept all of them.
Result<int64_t> count_good(const BenchServeOptions& o, const std::vector<Sample>& samples) {
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

Json make_result(const BenchServeOptions& o, const std::string& model, const std::vector<Sample>& samples,
                 const LoadFacts& load, int64_t good) {
  int64_t completed = 0, input = 0, output = 0;
  for (const Sample& s : samples)
    if (s.ok()) ++completed, input += s.input_tokens, output += s.output_tokens;
  const double d = load.duration_s;
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
            {"failed", std::ssize(samples) - completed},
            {"total_input_tokens", input},
            {"total_output_tokens", output},
            {"request_throughput", static_cast<double>(completed) / d},
            {"request_goodput", o.goodput.empty() ? Json() : Json(static_cast<double>(good) / d)},
            {"output_throughput", static_cast<double>(output) / d},
            {"total_token_throughput", static_cast<double>(input + output) / d},
            {"max_output_tokens_per_s", load.peak_tokens_per_s},
            {"max_concurrent_requests", load.most_open}};
  for (const Series& s : make_series(samples)) {
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

void print_report(const BenchServeOptions& o, const Json& r) {
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

Status save_result(const BenchServeOptions& o, const Json& r) {
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

}  // namespace nib::cli
