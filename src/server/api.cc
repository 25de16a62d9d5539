#include "server/api.h"

#include <algorithm>
#include <cctype>

#include "base/log.h"
#include "server/errors.h"
#include "server/metrics.h"

namespace nib {

namespace {

struct Route {
  std::string_view method, path;  // a path that ends in / takes anything behind it
  HttpResult (*handle)(const Service&, const HttpRequest&);
};

constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", handle_chat},
    {"POST", "/v1/completions", handle_completions},
    {"GET", "/v1/models", handle_models},
    {"GET", "/v1/models/", handle_model},
    {"POST", "/tokenize", handle_tokenize},
    {"POST", "/detokenize", handle_detokenize},
    {"GET", "/health", handle_health},
    {"GET", "/ping", handle_health},
    {"POST", "/ping", handle_health},
    {"GET", "/version", handle_version},
    {"GET", "/metrics", handle_metrics},
};

bool matches(const Route& route, std::string_view path) {
  return route.path.ends_with('/') ? path.size() > route.path.size() && path.starts_with(route.path)
                                   : path == route.path;
}

std::string join(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& p : parts) out += (out.empty() ? "" : ", ") + p;
  return out;
}

const Route* find_route(std::string_view method, std::string_view path) {
  for (const Route& r : kRoutes)
    if (r.method == method && matches(r, path)) return &r;
  return nullptr;
}

bool is_known_path(std::string_view path) {
  return std::any_of(std::begin(kRoutes), std::end(kRoutes), [&](const Route& r) { return matches(r, path); });
}

HttpReply method_not_allowed(std::string_view path) {
  std::vector<std::string> methods;
  for (const Route& r : kRoutes)
    if (matches(r, path)) methods.emplace_back(r.method);
  HttpReply reply = http_error(405, "Method Not Allowed", "Method Not Allowed");
  reply.headers.push_back({"Allow", join(methods)});
  return reply;
}

// Paths that are not ours are one label, or anybody could fill the memory with labels.
std::string_view handler_label(std::string_view path) {
  for (const Route& r : kRoutes)
    if (matches(r, path)) return r.path;
  return "none";
}

bool is_json(std::string_view content_type) {
  std::string type(content_type.substr(0, content_type.find(';')));
  while (type.ends_with(' ')) type.pop_back();
  for (char& c : type) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return type == "application/json";
}

// /ping takes a body of any kind, or none.
bool needs_json(const HttpRequest& head) { return head.method == "POST" && head.path != "/ping"; }

}  // namespace

HttpHandler Api::http_handler() {
  return {
      .check_head = [this](const HttpRequest& head) { return check_head(head); },
      .handle = [this](HttpRequest request) { return handle(std::move(request)); },
      .observe = [this](const HttpRequest& head, int status) { observe(head, status); },
      .refuse =
          [](int status, std::string message) {
            if (status == 503) return error_reply(Status(Code::kUnavailable, std::move(message)));
            return http_error(status, status == 413 ? "Payload Too Large" : "Bad Request", std::move(message));
          },
  };
}

std::optional<HttpReply> Api::check_head(const HttpRequest& head) const {
  std::optional<HttpReply> reply;
  if (head.method == "OPTIONS" && !head.header("origin").empty())
    reply = preflight(head);
  else if (!keys_.admits(head))
    reply = HttpReply{.status = 401, .body = R"({"error":"Unauthorized"})"};
  else if (!is_known_path(head.path))
    reply = http_error(404, "Not Found", "Not Found");
  else if (!find_route(head.method, head.path))
    reply = method_not_allowed(head.path);
  else if (needs_json(head) && !is_json(head.header("content-type")))
    reply = http_error(415, "Unsupported Media Type",
                       "Unsupported Media Type: only 'application/json' is allowed as Content-Type");
  else if (draining_ && head.path != "/metrics")
    reply = error_reply(Status(Code::kUnavailable, "the server is shutting down"));
  if (reply) std::ranges::move(common_headers(head), std::back_inserter(reply->headers));
  return reply;
}

HttpResult Api::handle(HttpRequest request) const {
  HttpResult result;
  const Route* route = find_route(request.method, request.path);
  NIB_CHECK(route != nullptr, "{} {} passed check_head", request.method, request.path);
  try {
    result = route->handle(service_, request);
  } catch (const std::exception& e) {  // out of memory, or a slip of ours: this request ends, nothing else
    log::error("{} {} failed: {}", request.method, request.path, e.what());
    result = error_reply(Status(Code::kInternal, "the server failed on this request"));
  }
  std::vector<HttpHeader> headers = common_headers(request);
  std::visit(
      [&](auto& r) {
        if constexpr (std::is_same_v<std::decay_t<decltype(r)>, HttpReply>)
          std::ranges::move(headers, std::back_inserter(r.headers));
        else
          r->headers = std::move(headers);
      },
      result);
  return result;
}

void Api::observe(const HttpRequest& head, int status) const {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - head.arrival).count();
  service_.metrics->count_http(find_route(head.method, head.path) ? head.method : "other", handler_label(head.path),
                               status, seconds);
  if (service_.config.log_requests) log::info("{} {} {} {:.3f} s", head.method, head.path, status, seconds);
}

std::vector<HttpHeader> Api::common_headers(const HttpRequest& request) const {
  const ApiConfig& c = service_.config;
  std::vector<HttpHeader> out;
  if (const std::string_view id = request.header("x-request-id"); c.request_id_headers && !id.empty())
    out.push_back({"X-Request-Id", std::string(id)});
  const std::string origin(request.header("origin"));
  if (origin.empty()) return out;
  const bool any = std::ranges::count(c.cors_origins, "*") > 0;
  if (!any && std::ranges::count(c.cors_origins, origin) == 0) return out;
  out.push_back({"Access-Control-Allow-Origin", any && !c.cors_credentials ? "*" : origin});
  if (!any || c.cors_credentials) out.push_back({"Vary", "Origin"});
  if (c.cors_credentials) out.push_back({"Access-Control-Allow-Credentials", "true"});
  return out;
}

HttpReply Api::preflight(const HttpRequest& head) const {
  HttpReply reply{.content_type = "text/plain", .body = "OK"};
  const bool any_method = std::ranges::count(service_.config.cors_methods, "*") > 0;
  const bool any_header = std::ranges::count(service_.config.cors_headers, "*") > 0;
  // "*" allows what is asked for: clients bring headers of their own, and browsers send no key under a literal "*".
  const std::string_view asked = head.header("access-control-request-headers");
  reply.headers = {{"Access-Control-Allow-Methods",
                    any_method ? "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT" : join(service_.config.cors_methods)},
                   {"Access-Control-Allow-Headers", !any_header     ? join(service_.config.cors_headers)
                                                    : asked.empty() ? "Authorization, Content-Type"
                                                                    : std::string(asked)},
                   {"Access-Control-Max-Age", "600"}};
  return reply;
}

}  // namespace nib
