// A blocking HTTP/1.1 client for JSON APIs and their event streams.
//   Result<HttpClient> client = HttpClient::open("http://localhost:8000", {.api_key = key});
//   Result<Json> answer = client->post("/v1/completions", body);   // not 2xx: a Status with the server's message
//   Status s = client->post_stream("/v1/chat/completions", body, [&](const Json& chunk) { return show(chunk); });
// One connection, opened when first used and again when the server has closed it. Not thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace nib {

struct HttpClientOptions {
  std::string api_key = {};                                       // sent as Authorization: Bearer, if not empty
  std::vector<std::pair<std::string, std::string>> headers = {};  // sent with each request
  std::chrono::seconds timeout = std::chrono::seconds(600);       // of silence; connecting waits at most 10 s
};

struct HttpAnswer {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
};

// http://host[:port][/prefix]
struct HttpUrl {
  std::string host, port = "80", prefix;
  static Result<HttpUrl> parse(std::string_view url);
};

class HttpClient {
 public:
  static Result<HttpClient> open(std::string_view base_url, HttpClientOptions options = {});
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) noexcept;
  ~HttpClient();

  // Any status is an answer; a Status is a connection that failed. body goes out as application/json.
  Result<HttpAnswer> send(std::string_view method, std::string_view path, std::string_view body = {});

  Result<Json> get(std::string_view path);
  Result<Json> post(std::string_view path, const Json& body);

  // Calls visit for each event until [DONE], the end, or until visit returns false (then the connection is closed,
  // which aborts the request). An {"error": ...} event ends the stream as a Status.
  Status post_stream(std::string_view path, const Json& body, const std::function<bool(const Json& event)>& visit);

 private:
  struct Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The Status that says what an error answer says: its message, or "HTTP 502" if it has none.
Status error_of(int http_status, std::string_view body);

}  // namespace nib
