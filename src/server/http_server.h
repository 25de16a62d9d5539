// An HTTP/1.1 server: one coroutine per connection on a few io threads, long requests parsed on worker threads.
//   Result<std::unique_ptr<HttpServer>> server = HttpServer::start({.port = 8000}, handler);
//   (*server)->drain(30s);      // no new requests; those that run may end
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"
#include "server/http_message.h"

namespace nib {

struct HttpServerConfig {
  std::string host = "0.0.0.0";
  int port = 8000;               // 0: any free one
  std::string unix_socket = {};  // a path: listens there instead
  int io_threads = 1, worker_threads = 1;
  size_t max_body_bytes = 64u << 20;
  size_t max_bodies_bytes = 512u << 20;  // of all requests that are being read
  size_t max_head_bytes = 64u << 10;
  int max_headers = 256;
  size_t inline_body_bytes = 32u << 10;                      // longer bodies are handled by the workers
  std::chrono::seconds keep_alive{75};                       // of an idle connection
  std::chrono::seconds read_timeout{30}, write_timeout{60};  // of silence within a message
};

class HttpServer {
 public:
  // Whether the address can be had, before a model is loaded for nothing.
  static Status try_address(const HttpServerConfig& config);
  // Fails if the address cannot be bound, naming it.
  static Result<std::unique_ptr<HttpServer>> start(const HttpServerConfig& config, HttpHandler handler);
  ~HttpServer();  // closes every connection

  int port() const;
  int num_connections() const;
  // Stops accepting, closes idle connections and waits for requests that run: at most timeout, or until hurry() says
  // so.
  void drain(std::chrono::milliseconds timeout, const std::function<bool()>& hurry);

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nib
