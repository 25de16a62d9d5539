// What Prometheus reads at /metrics, under vLLM's names. Thread-safe.
//   Metrics metrics("nano", engine.config().max_model_len, /*max_drafts=*/0, [&] { return engine.stats(); });
//   metrics.count_http("POST", "/v1/completions", 200, seconds);
//   reply.body = metrics.text();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "engine/engine.h"

namespace nib {

// Facts of one request that has ended, counted once.
struct FinishedRequest {
  FinishReason finish = FinishReason::kStop;
  int64_t prompt_tokens = 0, generation_tokens = 0, max_tokens = 0, n = 1, cached_tokens = 0;
  RequestTimes times;  // of its first sequence
  double e2e_s = 0;    // from arrival to the end
};

class Metrics {
 public:
  // stats: the engine's own counts, asked for by each text(). max_drafts: of a sequence in a step; 0: no speculation.
  Metrics(std::string model_name, int64_t max_model_len, int64_t max_drafts, std::function<EngineStats()> stats);
  ~Metrics();

  void observe_first_token(double seconds);
  void observe_inter_token(double seconds);
  void observe_finished(const FinishedRequest& r);
  void count_http(std::string_view method, std::string_view handler, int status, double seconds);

  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nib
