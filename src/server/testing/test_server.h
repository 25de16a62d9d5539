// A server over the ScriptNetwork on a free port, and clients for it that behave well or badly.
//   TestServer server({.max_waiting_requests = 2});
//   HttpAnswer a = server.post("/v1/completions", {{"prompt", "ab"}});
//   RawClient raw(server.port());   raw.send("GARBAGE\r\n\r\n");   raw.read_all();
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "server/http_client.h"
#include "server/server.h"
#include "server/testing/script_network.h"

namespace nib::testing {

struct TestServerOptions {
  std::chrono::microseconds step_time{};
  int64_t max_waiting_requests = 4096, max_num_seqs = 16;
  std::vector<std::string> api_keys = {};
  HttpServerConfig http = {};
  std::function<void(ServerConfig&)> change = {};
};

inline ServedModel script_model(const TestServerOptions& options) {
  EngineConfig config;
  config.max_model_len = 4096;
  config.max_num_seqs = options.max_num_seqs;
  config.max_num_batched_tokens = 256;
  config.kv_cache_memory_bytes = 1 << 20;
  config.max_waiting_requests = options.max_waiting_requests;
  config.num_threads = 1;
  ServedModel model;
  model.tokenizer = small_tokenizer();
  model.format = *ChatFormat::resolve(*model.tokenizer, /*vision=*/false);
  model.fallback.sampling.eos_token_ids = model.format.stop_ids;
  model.engine = *Engine::start({std::make_unique<ScriptNetwork>(options.step_time)}, config);
  return model;
}

class TestServer {
 public:
  explicit TestServer(const TestServerOptions& options = {}) {
    ServerConfig config;
    config.http = options.http;
    config.http.host = "127.0.0.1";
    config.http.port = 0;
    config.api.served_model_names = {"script", "other/name"};
    config.api.api_keys = options.api_keys;
    config.stats_interval = std::chrono::seconds(0);
    if (options.change) options.change(config);
    server_ = *Server::start(config, script_model(options));
  }

  int port() const { return server_->port(); }
  Server& server() { return *server_; }
  EngineStats stats() { return server_->engine().stats(); }

  HttpClient client(const std::string& key = {}) const {
    return *HttpClient::open(fmt::format("http://127.0.0.1:{}", port()),
                             {.api_key = key, .timeout = std::chrono::seconds(20)});
  }
  HttpAnswer post(const std::string& path, const Json& body) const { return *client().send("POST", path, body.dump()); }
  HttpAnswer get(const std::string& path) const { return *client().send("GET", path); }

 private:
  std::unique_ptr<Server> server_;
};

// Bytes over a socket, nothing else.
class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer_bytes = 0) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer_bytes > 0)
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() { close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return connected_; }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  void post(std::string_view path, const Json& body) {
    const std::string text = body.dump();
    send(fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                     path, text.size(), text));
  }
  // What has come until `end` is part of it, the connection ends, or ten seconds have passed.
  std::string read_until(std::string_view end) {
    std::string out;
    char buffer[4096];
    while (end.empty() || out.find(end) == std::string::npos) {
      pollfd p{fd_, POLLIN, 0};
      if (::poll(&p, 1, 10'000) <= 0) return out + "<nothing more came>";
      const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      out.append(buffer, static_cast<size_t>(n));
    }
    return out;
  }
  std::string read_all() { return read_until({}); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
  bool connected_ = false;
};

// Waits for something that must come about; false after ten seconds.
inline bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

}  // namespace nib::testing
