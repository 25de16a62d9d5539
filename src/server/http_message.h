// What the HTTP layer hands to the API and gets back; plain data, no word of sockets.
//   HttpReply reply = {.status = 200, .body = json.dump()};
//   std::string_view key = request.header("authorization");
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace nib {

struct HttpHeader {
  std::string name, value;
};

struct HttpRequest {
  std::string method, path, query, body;
  std::vector<HttpHeader> headers;
  std::chrono::steady_clock::time_point arrival;

  std::string_view header(std::string_view name) const;  // of any case; empty if absent
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<HttpHeader> headers = {};
};

// A reply that takes time: an event stream or one answer at the end. All calls but the wake-up come from one thread at
// a time. Destroying it before its end means that the client is gone.
class ReplySource {
 public:
  struct Progress {
    std::string bytes;               // the next part of a stream
    std::optional<HttpReply> whole;  // the answer, if it is no stream
    bool done = false;
  };

  virtual ~ReplySource() = default;
  // Begins. wake may be called from any thread and says that poll() may have more. A reply: it ended at once.
  virtual std::optional<HttpReply> start(std::function<void()> wake) = 0;
  virtual bool streams() const = 0;
  virtual Progress poll() = 0;
  // The client read too slowly and its request was given up: the connection is to be closed.
  virtual bool broken() const = 0;

  std::vector<HttpHeader> headers;  // of the answer, beside its own
};

using HttpResult = std::variant<HttpReply, std::unique_ptr<ReplySource>>;

// What the server asks of the application. Each may be called from many threads at once and must not throw.
struct HttpHandler {
  // Sees the head before the body is read: a reply ends the request here.
  std::function<std::optional<HttpReply>(const HttpRequest& head)> check_head;
  std::function<HttpResult(HttpRequest request)> handle;
  // After each request: its status, 499 if the client went away first.
  std::function<void(const HttpRequest& head, int status)> observe;
  // The reply for what never became a request: 400, 408, 413, 431.
  std::function<HttpReply(int status, std::string message)> refuse;
};

}  // namespace nib
