#include "server/server.h"

#include <ctime>

#include "base/log.h"

namespace nib {

Server::Server(const ServerConfig& config, ServedModel model)
    : config_(config),
      engine_(std::move(model.engine)),
      metrics_(config.api.served_model_names.at(0), *engine_),
      service_{.config = config.api,
               .fallback = std::move(model.fallback),
               .tokenizer = std::move(model.tokenizer),
               .format = std::move(model.format),
               .engine = engine_.get(),
               .metrics = &metrics_,
               .started_unix_s = std::time(nullptr)},
      api_(service_) {}

Result<std::unique_ptr<Server>> Server::start(const ServerConfig& config, ServedModel model) {
  std::unique_ptr<Server> server(new Server(config, std::move(model)));
  NIB_ASSIGN(server->http_, HttpServer::start(config.http, server->api_.http_handler()));
  if (config.stats_interval.count() > 0) server->stats_thread_ = std::thread([s = server.get()] { s->log_stats(); });
  return server;
}

Server::~Server() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (stats_thread_.joinable()) stats_thread_.join();
}

void Server::drain(const std::function<bool()>& hurry) {
  api_.start_draining();
  http_->drain(config_.shutdown_timeout, hurry);
}

// One line each interval in which something happened.
void Server::log_stats() {
  EngineStats before = engine_->stats();
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, config_.stats_interval, [this] { return stopping_; })) {
    const EngineStats now = engine_->stats();
    const double seconds = std::chrono::duration<double>(config_.stats_interval).count();
    const bool idle = now.num_running == 0 && now.num_waiting == 0 && now.num_steps == before.num_steps;
    const auto rate = [&](int64_t from, int64_t to) { return static_cast<double>(to - from) / seconds; };
    if (!idle)
      log::info(
          "Engine 000: Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} tokens/s, Running: {} "
          "reqs, Waiting: {} reqs, GPU KV cache usage: {:.1f}%, Prefix cache hit rate: 0.0%",
          rate(before.num_prompt_tokens, now.num_prompt_tokens),
          rate(before.num_generation_tokens, now.num_generation_tokens), now.num_running, now.num_waiting,
          100 * now.kv_cache_usage);
    before = now;
  }
}

}  // namespace nib
