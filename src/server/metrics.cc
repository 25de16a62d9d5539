#include "server/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace nib {

using prometheus::ClientMetric;
using prometheus::Family;
using prometheus::Histogram;
using prometheus::Labels;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Buckets = Histogram::BucketBoundaries;

namespace {

const Buckets kFirstTokenSeconds = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                    1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Buckets kTokenSeconds = {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
const Buckets kRequestSeconds = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kChoices = {1, 2, 5, 10, 20};
const Buckets kHttpSeconds = {.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300};

// 1, 2, 5, 10, ... up to most
Buckets one_two_five(int64_t most) {
  Buckets out;
  for (double decade = 1;; decade *= 10)
    for (const double m : {1.0, 2.0, 5.0}) {
      if (m * decade > static_cast<double>(most)) return out;
      out.push_back(m * decade);
    }
}

std::string_view name_of(FinishReason finish) {
  switch (finish) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    default:
      return "error";
  }
}

// The engine's own counts, read when they are asked for.
class EngineCollectable : public prometheus::Collectable {
 public:
  EngineCollectable(std::function<EngineStats()> stats, int64_t max_drafts, Labels labels)
      : stats_(std::move(stats)), max_drafts_(max_drafts), labels_(std::move(labels)) {}

  std::vector<MetricFamily> Collect() const override {
    const EngineStats s = stats_();
    const auto running = static_cast<double>(s.num_running), waiting = static_cast<double>(s.num_waiting);
    const auto computed = static_cast<double>(s.num_prompt_tokens);
    std::vector<MetricFamily> out = {
        gauge("vllm:num_requests_running", "Requests in the running batch", running),
        gauge("vllm:num_requests_waiting", "Requests that wait to be scheduled", waiting),
        gauge("vllm:num_requests_waiting_by_reason", "The same, by reason", waiting, {{"reason", "capacity"}}),
        gauge("vllm:kv_cache_usage_perc", "Share of the fullest cache pool in use, 0 to 1", s.kv_cache_usage),
        gauge("vllm:gpu_cache_usage_perc", "Older name of kv_cache_usage_perc", s.kv_cache_usage),
        counter("vllm:num_preemptions_total", "Preemptions", s.num_preemptions),
        counter("vllm:prompt_tokens_total", "Prompt tokens computed", computed),
        counter("vllm:prompt_tokens_by_source_total", "Prompt tokens by where they came from", computed,
                {{"source", "local_compute"}}),
        counter("vllm:generation_tokens_total", "Tokens generated", s.num_generation_tokens),
        counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache", 0),
        counter("vllm:prefix_cache_hits_total", "Prompt tokens found there", 0),
        step_rows(s),
        gauge("vllm:engine_sleep_state", "1 for the state the engine is in", 1, {{"sleep_state", "awake"}}),
        gauge("vllm:cache_config_info", "The cache's configuration as labels", 1, cache_labels(s)),
    };
    if (max_drafts_ > 0) add_speculation(s, out);
    return out;
  }

 private:
  static Labels cache_labels(const EngineStats& s) {
    return {{"block_size", std::to_string(s.block_size)},
            {"num_gpu_blocks", std::to_string(s.num_blocks)},
            {"enable_prefix_caching", "False"}};
  }
  ClientMetric metric(const Labels& extra) const {
    ClientMetric m;
    for (const auto& [name, value] : labels_) m.label.push_back({name, value});
    for (const auto& [name, value] : extra) m.label.push_back({name, value});
    return m;
  }
  MetricFamily gauge(const char* name, const char* help, double value, const Labels& extra = {}) const {
    ClientMetric m = metric(extra);
    m.gauge.value = value;
    return {name, help, MetricType::Gauge, {std::move(m)}};
  }
  MetricFamily counter(const char* name, const char* help, double value, const Labels& extra = {}) const {
    ClientMetric m = metric(extra);
    m.counter.value = value;
    return {name, help, MetricType::Counter, {std::move(m)}};
  }

  void add_speculation(const EngineStats& s, std::vector<MetricFamily>& out) const {
    const auto add = [&](const char* name, const char* help, int64_t count) {
      out.push_back(counter(name, help, static_cast<double>(count)));
    };
    add("vllm:spec_decode_num_drafts_total", "Drafts that were verified", s.num_drafts);
    add("vllm:spec_decode_num_draft_tokens_total", "Their tokens", s.num_draft_tokens);
    add("vllm:spec_decode_num_accepted_tokens_total", "Those of them that were accepted", s.num_accepted_tokens);
    add("nib:spec_decode_num_pauses_total", "Times that a sequence went on without drafts", s.num_draft_pauses);
    MetricFamily by_position{"vllm:spec_decode_num_accepted_tokens_per_pos_total",
                             "The same, by place in the draft",
                             MetricType::Counter,
                             {}};
    for (int64_t i = 0; i < std::min(max_drafts_, EngineStats::kMaxDrafts); ++i) {
      by_position.metric.push_back(metric({{"position", std::to_string(i)}}));
      by_position.metric.back().counter.value = static_cast<double>(s.accepted_per_position[i]);
    }
    out.push_back(std::move(by_position));
  }

  MetricFamily step_rows(const EngineStats& s) const {
    ClientMetric m = metric({});
    m.histogram.sample_count = static_cast<std::uint64_t>(s.num_steps);
    m.histogram.sample_sum = static_cast<double>(s.num_step_rows);
    std::uint64_t so_far = 0;
    for (size_t i = 0; i < s.steps_by_rows.size(); ++i) {
      const double bound = i < s.kStepRowsBounds.size() ? static_cast<double>(s.kStepRowsBounds[i]) : INFINITY;
      m.histogram.bucket.push_back({so_far += static_cast<std::uint64_t>(s.steps_by_rows[i]), bound});
    }
    return {"vllm:iteration_tokens_total", "Tokens computed in a step", MetricType::Histogram, {std::move(m)}};
  }

  const std::function<EngineStats()> stats_;
  const int64_t max_drafts_;
  const Labels labels_;
};

}  // namespace

struct Metrics::Impl {
  Impl(std::string model_name, int64_t max_drafts, std::function<EngineStats()> stats)
      : labels{{"model_name", std::move(model_name)}, {"engine", "0"}},
        engine_counts(std::move(stats), max_drafts, labels) {}

  Histogram& histogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels, buckets);
  }

  Labels labels;
  prometheus::Registry registry;
  EngineCollectable engine_counts;
  Family<prometheus::Counter>* success = nullptr;
  Family<prometheus::Counter>* http_requests = nullptr;
  Family<Histogram>* http_seconds = nullptr;
  prometheus::Counter* cached_tokens = nullptr;
  Histogram *prompt_tokens = nullptr, *generation_tokens = nullptr, *max_generation_tokens = nullptr,
            *computed_tokens = nullptr, *params_n = nullptr, *params_max_tokens = nullptr;
  Histogram *first_token = nullptr, *inter_token = nullptr, *per_output_token_old = nullptr,
            *per_output_token = nullptr;
  Histogram *e2e = nullptr, *queue = nullptr, *prefill = nullptr, *decode = nullptr, *inference = nullptr;
};

Metrics::Metrics(std::string model_name, int64_t max_model_len, int64_t max_drafts, std::function<EngineStats()> stats)
    : impl_(std::make_unique<Impl>(std::move(model_name), max_drafts, std::move(stats))) {
  Impl& m = *impl_;
  const Buckets tokens = one_two_five(max_model_len);
  const auto counters = [&](const char* name, const char* help) {
    return &prometheus::BuildCounter().Name(name).Help(help).Register(m.registry);
  };
  m.success = counters("vllm:request_success_total", "Requests that ended, by how");
  for (const FinishReason r :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort, FinishReason::kError}) {
    Labels labels = m.labels;
    labels["finished_reason"] = name_of(r);
    m.success->Add(labels);
  }
  m.cached_tokens = &counters("vllm:prompt_tokens_cached_total", "Prompt tokens read from a cache")->Add(m.labels);
  m.http_requests = counters("http_requests_total", "HTTP requests by endpoint, method and status");
  m.http_seconds =
      &prometheus::BuildHistogram().Name("http_request_duration_seconds").Help("HTTP requests").Register(m.registry);

  m.prompt_tokens = &m.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", tokens);
  m.generation_tokens = &m.histogram("vllm:request_generation_tokens", "Tokens generated for a request", tokens);
  m.max_generation_tokens = &m.histogram("vllm:request_max_num_generation_tokens", "The longest choice", tokens);
  m.computed_tokens = &m.histogram("vllm:request_prefill_kv_computed_tokens", "Prompt tokens computed", tokens);
  m.params_n = &m.histogram("vllm:request_params_n", "n of a request", kChoices);
  m.params_max_tokens = &m.histogram("vllm:request_params_max_tokens", "max_tokens of a request", tokens);
  m.first_token = &m.histogram("vllm:time_to_first_token_seconds", "Time to first token", kFirstTokenSeconds);
  m.inter_token = &m.histogram("vllm:inter_token_latency_seconds", "Time between tokens", kTokenSeconds);
  m.per_output_token_old = &m.histogram("vllm:time_per_output_token_seconds", "Older name", kTokenSeconds);
  m.per_output_token =
      &m.histogram("vllm:request_time_per_output_token_seconds", "A request's mean time per token", kTokenSeconds);
  m.e2e = &m.histogram("vllm:e2e_request_latency_seconds", "Time of a whole request", kRequestSeconds);
  m.queue = &m.histogram("vllm:request_queue_time_seconds", "Time waiting to be scheduled", kRequestSeconds);
  m.prefill = &m.histogram("vllm:request_prefill_time_seconds", "Time from scheduled to first token", kRequestSeconds);
  m.decode = &m.histogram("vllm:request_decode_time_seconds", "Time from first to last token", kRequestSeconds);
  m.inference =
      &m.histogram("vllm:request_inference_time_seconds", "Time from scheduled to last token", kRequestSeconds);
}

Metrics::~Metrics() = default;

void Metrics::observe_first_token(double seconds) { impl_->first_token->Observe(seconds); }

void Metrics::observe_inter_token(double seconds) {
  impl_->inter_token->Observe(seconds);
  impl_->per_output_token_old->Observe(seconds);
}

void Metrics::observe_finished(const FinishedRequest& r) {
  Impl& m = *impl_;
  Labels labels = m.labels;
  labels["finished_reason"] = name_of(r.finish);
  m.success->Add(labels).Increment();
  m.cached_tokens->Increment(static_cast<double>(r.cached_tokens));
  m.prompt_tokens->Observe(static_cast<double>(r.prompt_tokens));
  m.generation_tokens->Observe(static_cast<double>(r.generation_tokens));
  m.max_generation_tokens->Observe(static_cast<double>(r.generation_tokens));
  m.computed_tokens->Observe(static_cast<double>(r.prompt_tokens - r.cached_tokens));
  m.params_n->Observe(static_cast<double>(r.n));
  m.params_max_tokens->Observe(static_cast<double>(r.max_tokens));
  m.e2e->Observe(r.e2e_s);
  const RequestTimes& t = r.times;
  const auto seconds = [](int64_t from_ns, int64_t to_ns) { return static_cast<double>(to_ns - from_ns) * 1e-9; };
  if (t.scheduled_ns == 0 || t.first_token_ns == 0) return;
  m.queue->Observe(seconds(t.arrival_ns, t.scheduled_ns));
  m.prefill->Observe(seconds(t.scheduled_ns, t.first_token_ns));
  m.decode->Observe(seconds(t.first_token_ns, t.last_token_ns));
  m.inference->Observe(seconds(t.scheduled_ns, t.last_token_ns));
  const int64_t per_choice = r.generation_tokens / r.n;
  if (per_choice > 1)
    m.per_output_token->Observe(seconds(t.first_token_ns, t.last_token_ns) / static_cast<double>(per_choice - 1));
}

void Metrics::count_http(std::string_view method, std::string_view handler, int status, double seconds) {
  const Labels labels = {{"method", std::string(method)}, {"handler", std::string(handler)}};
  Labels with_status = labels;
  with_status["status"] = fmt::format("{}xx", status / 100);
  impl_->http_requests->Add(with_status).Increment();
  impl_->http_seconds->Add(labels, kHttpSeconds).Observe(seconds);
}

std::string Metrics::text() const {
  std::vector<MetricFamily> families = impl_->engine_counts.Collect();
  for (MetricFamily& f : impl_->registry.Collect()) families.push_back(std::move(f));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace nib
