// A model behind its HTTP API: owns the engine, the text side and the connections.
//   Result<std::unique_ptr<Server>> server = Server::start(config, std::move(model));
//   wait_for_signal();
//   (*server)->drain();
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/engine.h"
#include "server/api.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/service.h"

namespace nib {

struct ServerConfig {
  HttpServerConfig http;
  ApiConfig api;
  std::chrono::milliseconds shutdown_timeout{30'000};  // for requests that run when the server is told to stop
  std::chrono::seconds stats_interval{10};             // of the log line; 0: none
};

struct ServedModel {
  std::shared_ptr<const Tokenizer> tokenizer;
  ChatFormat format;
  GenerationFallback fallback;
  std::unique_ptr<Engine> engine;
};

class Server {
 public:
  static Result<std::unique_ptr<Server>> start(const ServerConfig& config, ServedModel model);
  ~Server();  // what still runs is aborted

  int port() const { return http_->port(); }
  Engine& engine() { return *engine_; }
  // Refuses new requests and waits for those that run: at most shutdown_timeout, or until hurry() says so.
  void drain(const std::function<bool()>& hurry = [] { return false; });

 private:
  Server(const ServerConfig& config, ServedModel model);
  void log_stats();

  const ServerConfig config_;
  std::unique_ptr<Engine> engine_;
  Metrics metrics_;
  Service service_;
  Api api_;
  std::unique_ptr<HttpServer> http_;  // goes first: its connections use all of the above

  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread stats_thread_;
};

}  // namespace nib
