// The endpoints: one table of method, path and handler, with what guards them all (keys, content type, CORS).
//   Api api(service);
//   HttpServer::start(config, api.http_handler());
#pragma once

#include <atomic>

#include "server/auth.h"
#include "server/http_message.h"
#include "server/service.h"

namespace nib {

HttpResult handle_chat(const Service& service, const HttpRequest& request);
HttpResult handle_completions(const Service& service, const HttpRequest& request);
HttpResult handle_tokenize(const Service& service, const HttpRequest& request);
HttpResult handle_detokenize(const Service& service, const HttpRequest& request);
HttpResult handle_models(const Service& service, const HttpRequest& request);
HttpResult handle_model(const Service& service, const HttpRequest& request);
HttpResult handle_health(const Service& service, const HttpRequest& request);
HttpResult handle_version(const Service& service, const HttpRequest& request);
HttpResult handle_metrics(const Service& service, const HttpRequest& request);

class Api {
 public:
  explicit Api(const Service& service) : service_(service), keys_(service.config.api_keys) {}

  // REQUIRES: this outlives the server that uses it.
  HttpHandler http_handler();
  // New requests get 503 from now on, and /health says so.
  void start_draining() { draining_ = true; }

  // The parts of the handler, called by it and by tests.
  std::optional<HttpReply> check_head(const HttpRequest& head) const;
  HttpResult handle(HttpRequest request) const;
  void observe(const HttpRequest& head, int status) const;

 private:
  std::vector<HttpHeader> common_headers(const HttpRequest& request) const;
  HttpReply preflight(const HttpRequest& head) const;

  const Service& service_;
  KeyRing keys_;
  std::atomic<bool> draining_{false};
};

}  // namespace nib
