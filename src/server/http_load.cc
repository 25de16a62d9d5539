#include "server/http_load.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>

#include "server/sse.h"

namespace nib {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::awaitable;
using boost::system::error_code;

namespace {
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
}

struct HttpLoad::Impl {
  HttpUrl url;
  HttpClientOptions options;
  asio::io_context io{1};
  asio::ip::tcp::resolver::results_type endpoints;
  error_code resolve_error;

  using Request = http::request<http::string_body>;
  using Parser = http::response_parser<http::string_body>;

  Request make_request(const std::string& path, std::string body) const {
    Request request{http::verb::post, url.prefix + path, 11};
    request.set(http::field::host, url.host + ":" + url.port);
    request.set(http::field::content_type, "application/json");
    request.set(http::field::connection, "close");
    if (!options.api_key.empty()) request.set(http::field::authorization, "Bearer " + options.api_key);
    for (const auto& [name, value] : options.headers) request.set(name, value);
    request.body() = std::move(body);
    request.prepare_payload();
    return request;
  }

  Status failed(const char* what, const error_code& ec) const {
    return Status(Code::kUnavailable, fmt::format("{}:{}: {}: {}", url.host, url.port, what, ec.message()));
  }

  awaitable<void> run_one(std::string path, std::string body, LoadCallbacks callbacks) {
    const Status status = co_await exchange(make_request(path, std::move(body)), callbacks);
    callbacks.on_end(status);
  }

  awaitable<Status> exchange(Request request, const LoadCallbacks& callbacks) {
    if (resolve_error) co_return failed("cannot resolve the name", resolve_error);
    beast::tcp_stream stream(io);
    stream.expires_after(options.timeout);
    const auto [connect_error, endpoint] = co_await stream.async_connect(endpoints, kAwait);
    if (connect_error) co_return failed("cannot connect", connect_error);
    error_code ignored;
    stream.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
    const auto [write_error, written] = co_await http::async_write(stream, request, kAwait);
    if (write_error) co_return failed("cannot send", write_error);
    const Status status = co_await read_answer(stream, callbacks);
    co_return status;
  }

  awaitable<Status> read_answer(beast::tcp_stream& stream, const LoadCallbacks& callbacks) {
    beast::flat_buffer buffer;
    Parser parser;
    parser.body_limit(boost::none);
    SseReader events;
    std::string error_body;
    while (!parser.is_done()) {
      stream.expires_after(options.timeout);
      const auto [ec, n] = co_await http::async_read_some(stream, buffer, parser, kAwait);
      if (ec) co_return failed("the answer broke off", ec);
      const std::string part = std::exchange(parser.get().body(), {});
      if (parser.get().result_int() != 200)
        error_body += part;
      else
        events.push(part, [&](std::string_view data) { return callbacks.on_event(data), true; });
    }
    const int code = static_cast<int>(parser.get().result_int());
    co_return code == 200 ? Status() : error_of(code, error_body);
  }
};

HttpLoad::HttpLoad(HttpUrl url, HttpClientOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->url = std::move(url);
  impl_->options = std::move(options);
  asio::ip::tcp::resolver resolver(impl_->io);
  impl_->endpoints = resolver.resolve(impl_->url.host, impl_->url.port, impl_->resolve_error);
}

HttpLoad::~HttpLoad() = default;

void HttpLoad::post(std::string path, std::string body, LoadCallbacks callbacks) {
  asio::co_spawn(impl_->io, impl_->run_one(std::move(path), std::move(body), std::move(callbacks)), asio::detached);
}

void HttpLoad::after(std::chrono::nanoseconds delay, std::function<void()> act) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->io, delay);
  timer->async_wait([timer, act = std::move(act)](const error_code& ec) {
    if (!ec) act();
  });
}

void HttpLoad::run() {
  impl_->io.restart();
  impl_->io.run();
}

}  // namespace nib
