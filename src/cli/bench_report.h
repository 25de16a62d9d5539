// What `nib bench serve` measured, in the form of `vllm bench serve`: a printed block and a JSON object.
//   Json result = make_result(options, model, load, good);
//   print_report(options, result);
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace nib::cli {

struct BenchServeOptions {
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
  std::chrono::steady_clock::time_point begin, last;
  double ttft_s = -1, latency_s = 0;
  std::vector<double> itl_s;  // gaps between chunks, each of one or more tokens
  int64_t input_tokens = 0, output_tokens = 0;
  std::string text, error;
  bool ok() const { return error.empty(); }
  double tpot_s() const {
    return output_tokens > 1 ? (latency_s - ttft_s) / static_cast<double>(output_tokens - 1) : 0;
  }
};

// What the load as a whole went through.
struct LoadFacts {
  double duration_s = 0;
  int64_t most_open = 0;          // requests at once
  int64_t peak_tokens_per_s = 0;  // in any second
};

// Output tokens of the busiest second since `begin`. A request's tokens are spread evenly over its chunks.
int64_t peak_tokens_per_second(const std::vector<Sample>& samples, std::chrono::steady_clock::time_point begin);

// How many requests kept every bound of --goodput.
Result<int64_t> count_good(const BenchServeOptions& o, const std::vector<Sample>& samples);

Json make_result(const BenchServeOptions& o, const std::string& model, const std::vector<Sample>& samples,
                 const LoadFacts& load, int64_t good);
void add_details(Json& result, const std::vector<Sample>& samples);  // lists with an entry per request
void print_report(const BenchServeOptions& o, const Json& result);
Status save_result(const BenchServeOptions& o, const Json& result);

}  // namespace nib::cli
