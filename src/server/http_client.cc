#include "server/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "server/sse.h"

namespace nib {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

Result<HttpUrl> HttpUrl::parse(std::string_view url) {
  const std::string given(url);
  if (url.starts_with("https://")) return invalid("{}: https is not supported, use http://", given);
  if (url.starts_with("http://")) url.remove_prefix(7);
  HttpUrl out;
  if (const size_t slash = url.find('/'); slash != std::string_view::npos) {
    out.prefix = url.substr(slash);
    while (out.prefix.ends_with('/')) out.prefix.pop_back();
    url = url.substr(0, slash);
  }
  const size_t bracket = url.find(']');  // [::1]:8000
  const size_t colon = url.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (colon != std::string_view::npos) out.port = url.substr(colon + 1);
  out.host = url.substr(0, colon);
  if (out.host.starts_with('[') && out.host.ends_with(']')) out.host = out.host.substr(1, out.host.size() - 2);
  if (out.host.empty() || out.port.empty()) return invalid("{}: not a URL of the form http://host:port", given);
  return out;
}

Status error_of(int http_status, std::string_view body) {
  std::string message = fmt::format("the server answered HTTP {}", http_status);
  if (const Result<Json> json = parse_json(body); json.ok() && json->is_object() && json->contains("error")) {
    const Json& error = json->at("error");
    if (error.is_string()) message = error.get<std::string>();
    if (error.is_object() && error.contains("message") && error["message"].is_string()) message = error["message"];
  }
  const Code code = http_status == 404   ? Code::kNotFound
                    : http_status == 501 ? Code::kUnimplemented
                    : http_status == 503 ? Code::kUnavailable
                    : http_status >= 500 ? Code::kInternal
                                         : Code::kInvalidArgument;
  return Status(code, message);
}

// Asynchronous calls run to their end one at a time: that is how they get a timeout.
struct HttpClient::Impl {
  HttpUrl url;
  HttpClientOptions options;
  asio::io_context io{1};
  std::unique_ptr<beast::tcp_stream> stream;  // null: not connected
  beast::flat_buffer buffer;

  Status failed(std::string_view what, const error_code& ec) {
    stream.reset();
    buffer.clear();
    return Status(Code::kUnavailable, fmt::format("{}:{}: {}: {}", url.host, url.port, what, ec.message()));
  }

  // Starts one asynchronous operation and waits for its error code.
  template <class Start>
  error_code wait(std::chrono::seconds timeout, Start start) {
    error_code result = asio::error::operation_aborted;
    stream->expires_after(timeout);
    start([&result](const error_code& ec, auto&&...) { result = ec; });
    io.restart();
    io.run();
    stream->expires_never();
    return result;
  }

  Status connect() {
    asio::ip::tcp::resolver resolver(io);
    error_code ec;
    const auto endpoints = resolver.resolve(url.host, url.port, ec);
    stream = std::make_unique<beast::tcp_stream>(io);
    buffer.clear();
    if (ec) return failed("cannot resolve the name", ec);
    ec = wait(std::chrono::seconds(10), [&](auto done) { stream->async_connect(endpoints, done); });
    if (ec) return failed("cannot connect", ec);
    stream->socket().set_option(asio::ip::tcp::no_delay(true), ec);
    return {};
  }

  http::request<http::string_body> make_request(std::string_view method, std::string_view path, std::string_view body) {
    http::request<http::string_body> request;
    request.method_string({method.data(), method.size()});
    request.target(url.prefix + std::string(path));
    request.set(http::field::host, url.host + ":" + url.port);
    if (!options.api_key.empty()) request.set(http::field::authorization, "Bearer " + options.api_key);
    for (const auto& [name, value] : options.headers) request.set(name, value);
    if (!body.empty()) {
      request.set(http::field::content_type, "application/json");
      request.body() = body;
    }
    request.prepare_payload();
    return request;
  }

  using Parser = http::response_parser<http::string_body>;

  // Sends the request and reads the head of the answer. A kept connection may have been closed meanwhile: then once
  // more on a new one.
  Status exchange(const http::request<http::string_body>& request, Parser& parser) {
    for (const bool reused : {stream != nullptr, false}) {
      if (!stream) NIB_TRY(connect());
      error_code ec = wait(options.timeout, [&](auto done) { http::async_write(*stream, request, done); });
      if (!ec) ec = wait(options.timeout, [&](auto done) { http::async_read_header(*stream, buffer, parser, done); });
      if (!ec) return {};
      const Status status = failed("no answer", ec);
      if (!reused || ec == beast::error::timeout || parser.got_some()) return status;
    }
    return Status(Code::kUnavailable, "no answer");
  }

  // The next part of the body; empty at its end.
  Result<std::string> read_some(Parser& parser) {
    while (!parser.is_done()) {
      const error_code ec =
          wait(options.timeout, [&](auto done) { http::async_read_some(*stream, buffer, parser, done); });
      if (ec) return failed("the answer broke off", ec);
      if (parser.get().body().empty()) continue;
      return std::exchange(parser.get().body(), {});
    }
    if (!parser.keep_alive()) stream.reset();
    return std::string();
  }
};

HttpClient::HttpClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpClient::HttpClient(HttpClient&&) noexcept = default;
HttpClient& HttpClient::operator=(HttpClient&&) noexcept = default;
HttpClient::~HttpClient() = default;

Result<HttpClient> HttpClient::open(std::string_view base_url, HttpClientOptions options) {
  auto impl = std::make_unique<Impl>();
  NIB_ASSIGN(impl->url, HttpUrl::parse(base_url));
  impl->options = std::move(options);
  return HttpClient(std::move(impl));
}

Result<HttpAnswer> HttpClient::send(std::string_view method, std::string_view path, std::string_view body) {
  Impl::Parser parser;
  parser.body_limit(boost::none);
  NIB_TRY(impl_->exchange(impl_->make_request(method, path, body), parser));
  HttpAnswer answer;
  answer.status = static_cast<int>(parser.get().result_int());
  for (const auto& field : parser.get()) {
    std::string name(field.name_string());
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    answer.headers.emplace_back(std::move(name), field.value());
  }
  for (;;) {
    NIB_ASSIGN(const std::string part, impl_->read_some(parser));
    if (part.empty()) return answer;
    answer.body += part;
  }
}

namespace {
Result<Json> json_of(const HttpAnswer& answer) {
  if (answer.status / 100 != 2) return error_of(answer.status, answer.body);
  return parse_json(answer.body);
}
}  // namespace

Result<Json> HttpClient::get(std::string_view path) {
  NIB_ASSIGN(const HttpAnswer answer, send("GET", path));
  return json_of(answer);
}

Result<Json> HttpClient::post(std::string_view path, const Json& body) {
  NIB_ASSIGN(const HttpAnswer answer, send("POST", path, body.dump()));
  return json_of(answer);
}

Status HttpClient::post_stream(std::string_view path, const Json& body,
                               const std::function<bool(const Json& event)>& visit) {
  Impl::Parser parser;
  parser.body_limit(boost::none);
  NIB_TRY(impl_->exchange(impl_->make_request("POST", path, body.dump()), parser));
  const int status = static_cast<int>(parser.get().result_int());
  SseReader reader;
  std::string error_body;
  Status end;
  const auto take = [&](std::string_view data) {
    if (data == "[DONE]") return true;
    const Result<Json> event = parse_json(data);
    if (!event.ok())
      end = event.status();
    else if (event->is_object() && event->contains("error"))
      end = error_of(500, data);
    return end.ok() && visit(*event);
  };
  for (;;) {
    NIB_ASSIGN(const std::string part, impl_->read_some(parser));
    if (part.empty()) return status / 100 == 2 ? end : error_of(status, error_body);
    if (status / 100 != 2) {
      error_body += part;
    } else if (!reader.push(part, take)) {
      impl_->stream.reset();
      return end;
    }
  }
}

}  // namespace nib
