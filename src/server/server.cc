#include "server/server.h"

#include <ctime>

#include "base/log.h"
#include "server/stats_lines.h"

namespace nib {

Server::Server(const ServerConfig& config, ServedModel model)
    : config_(config),
      engine_(std::move(model.engine)),
      metrics_(config.api.served_model_names.at(0), engine_->config().max_model_len, config.api.max_drafts,
               [engine = engine_.get()] { return engine->stats(); }),
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

// After each interval in which something happened.
void Server::log_stats() {
  const double seconds = std::chrono::duration<double>(config_.stats_interval).count();
  EngineStats before = engine_->stats();
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, config_.stats_interval, [this] { return stopping_; })) {
    const EngineStats now = engine_->stats();
    for (const std::string& line : stats_lines(before, now, seconds)) log::info("{}", line);
    before = now;
  }
}

}  // namespace nib
