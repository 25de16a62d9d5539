#include "server/http_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <filesystem>
#include <thread>
#include <unordered_set>

#include "base/log.h"
#include "server/byte_budget.h"
#include "server/http_wire.h"

namespace nib {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::awaitable;
using boost::system::error_code;
using Protocol = asio::generic::stream_protocol;
using Socket = Protocol::socket;
using Parser = http::request_parser<http::string_body>;

namespace {

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr size_t kWriteSliceBytes = 256u << 10;  // each has the whole write timeout
constexpr auto kLinger = std::chrono::seconds(2);
constexpr size_t kLingerBytes = 16u << 20;
constexpr auto kPeerPollInterval = std::chrono::milliseconds(250);

// A proxy may be sent "http://host/path", which means /path.
std::string origin_form(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    const size_t slash = target.find('/', scheme.size());
    return slash == std::string_view::npos ? "/" : std::string(target.substr(slash));
  }
  return std::string(target);
}

HttpRequest head_of(const Parser::value_type& message) {
  HttpRequest request;
  request.arrival = std::chrono::steady_clock::now();
  request.method = std::string(message.method_string());
  const std::string target = origin_form(message.target());
  const size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != std::string::npos) request.query = target.substr(question + 1);
  for (const auto& field : message)
    request.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  return request;
}

// Of its body: the parser takes a body of an encoding other than "chunked" for the next request.
bool has_known_length(const HttpRequest& head) {
  return std::ranges::none_of(head.headers, [](const HttpHeader& h) {
    return beast::iequals(h.name, "transfer-encoding") && !beast::iequals(h.value, "chunked");
  });
}

struct Refusal {
  int status = 0;  // 0: nobody is there to read a reply
  const char* message = "";
};

Refusal refusal_of(const error_code& ec) {
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow)
    return {431, "the request's head is too large"};
  if (ec == http::error::body_limit) return {413, "the request's body is too large"};
  if (ec == beast::error::timeout) return {408, "the request did not arrive in time"};
  if (ec.category() == http::make_error_code(http::error::bad_method).category() && ec != http::error::end_of_stream &&
      ec != http::error::partial_message)
    return {400, "invalid HTTP request"};
  return {};
}

}  // namespace

class Session;

// One io thread with the connections that live on it; they are touched by that thread only.
struct Loop {
  std::shared_ptr<asio::io_context> io = std::make_shared<asio::io_context>(1);
  asio::executor_work_guard<asio::io_context::executor_type> work{io->get_executor()};
  std::unordered_set<Session*> sessions;
  std::thread thread;
};

// Everything the connections share. Immutable after start but for the atomics.
struct ServerCore {
  HttpServerConfig config;
  HttpHandler handler;
  std::vector<std::unique_ptr<Loop>> loops;  // [0] accepts too
  std::unique_ptr<asio::thread_pool> workers;
  std::optional<asio::ip::tcp::acceptor> tcp;
  std::optional<asio::local::stream_protocol::acceptor> local;
  int port = 0;
  std::unique_ptr<ByteBudget> bodies;  // of all requests that are being read and handled
  std::atomic<bool> draining{false};
  std::atomic<int> num_connections{0};
  size_t next_loop = 0;

  Status listen();
  Status listen_tcp();
  Status listen_local();
  void begin(Loop& loop, Socket socket);
  template <class Acceptor>
  awaitable<void> accept(Acceptor& acceptor);
  void stop_accepting();
  template <class Visit>
  void for_each_session(Visit visit);
  void stop();
};

// One connection: read a request, let it be answered, write the answer, again. Lives on one io thread.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(ServerCore& server, Loop& loop, Socket socket)
      : server_(server),
        stream_(std::move(socket)),
        signal_(*loop.io),
        peer_poll_(*loop.io),
        io_(loop.io),
        body_lease_(*server.bodies) {}

  awaitable<void> run();
  bool idle() const { return idle_; }
  void close();

 private:
  awaitable<bool> serve_one();
  std::optional<HttpReply> check_head(const HttpRequest& head) const;
  awaitable<bool> await_first_byte();
  awaitable<bool> read_body(Parser& parser);
  awaitable<bool> refuse(Refusal refusal);
  awaitable<bool> answer(HttpRequest request);
  awaitable<HttpResult> handle(HttpRequest request);
  awaitable<int> pump(bool head_only);
  awaitable<bool> write_progress(ReplySource::Progress progress);
  awaitable<bool> write_reply(const HttpReply& reply, bool head_only);
  awaitable<bool> write(std::string_view bytes);
  awaitable<void> wait_for_signal();
  awaitable<void> linger();

  std::function<void()> make_wake();
  void on_wake();
  void signal();
  void watch_peer();
  void on_peer_event();
  void poll_peer_later();
  void peer_is_gone();
  std::string_view connection_header() const { return keep_alive_ ? "keep-alive" : "close"; }

  ServerCore& server_;
  beast::basic_stream<Protocol> stream_;
  beast::flat_buffer buffer_;
  asio::steady_timer signal_;     // cancelled to wake the coroutine
  asio::steady_timer peer_poll_;  // looks after a peer that has sent more bytes already
  std::shared_ptr<asio::io_context> io_;
  ByteBudget::Lease body_lease_;
  std::unique_ptr<ReplySource> source_;
  bool signalled_ = false;
  bool watching_ = false;  // for the peer to go away, while a reply is made
  bool gone_ = false;
  bool idle_ = true;
  bool keep_alive_ = true;
  bool chunked_ = true;  // HTTP/1.1
  bool head_sent_ = false;
};

// ---- the life of a connection ----

awaitable<void> Session::run() {
  bool open = true;  // without a local of its own, g++ 12 lays this coroutine's frame out wrongly
  while (open && !gone_ && !server_.draining) open = co_await serve_one();
  if (!gone_) co_await linger();
}

void Session::close() {
  error_code ignored;
  gone_ = true;
  stream_.socket().close(ignored);
  signal();
}

awaitable<bool> Session::await_first_byte() {
  if (buffer_.size() > 0) co_return true;
  idle_ = true;
  stream_.expires_after(server_.config.keep_alive);
  const auto [ec, n] = co_await stream_.async_read_some(buffer_.prepare(4096), kAwait);
  buffer_.commit(n);
  idle_ = false;
  co_return !ec && !server_.draining;
}

// One request from its first byte to the last of its answer. False: the connection ends here.
awaitable<bool> Session::serve_one() {
  Parser parser;
  parser.header_limit(static_cast<std::uint32_t>(server_.config.max_head_bytes));
  parser.body_limit(server_.config.max_body_bytes);
  if (!co_await await_first_byte()) co_return false;
  stream_.expires_after(server_.config.read_timeout);
  const auto [ec, n] = co_await http::async_read_header(stream_, buffer_, parser, kAwait);
  keep_alive_ = !ec && parser.keep_alive();
  chunked_ = parser.get().version() >= 11;
  if (ec) co_return co_await refuse(refusal_of(ec));
  HttpRequest request = head_of(parser.get());
  if (const std::optional<HttpReply> early = check_head(request)) {
    if (!parser.is_done() || early->status == 400) keep_alive_ = false;  // the body is not worth reading
    const bool ok = co_await write_reply(*early, request.method == "HEAD");
    server_.handler.observe(request, early->status);
    co_return ok&& keep_alive_;
  }
  if (!co_await read_body(parser)) co_return false;
  request.body = std::move(parser.get().body());
  co_return co_await answer(std::move(request));
}

std::optional<HttpReply> Session::check_head(const HttpRequest& head) const {
  if (std::ssize(head.headers) > server_.config.max_headers)
    return server_.handler.refuse(431, fmt::format("more than {} headers", server_.config.max_headers));
  if (!has_known_length(head)) return server_.handler.refuse(400, "only \"chunked\" is known as a transfer encoding");
  return server_.handler.check_head(head);
}

awaitable<bool> Session::read_body(Parser& parser) {
  if (!parser.is_done() && beast::iequals(parser.get()[http::field::expect], "100-continue"))
    if (!co_await write("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
  while (!parser.is_done()) {
    stream_.expires_after(server_.config.read_timeout);
    const auto [ec, n] = co_await http::async_read_some(stream_, buffer_, parser, kAwait);
    if (ec) co_return co_await refuse(refusal_of(ec));
    if (!body_lease_.grow_to(parser.get().body().size()))
      co_return co_await refuse({503, "too many large requests at once, try again later"});
  }
  co_return true;
}

// Always false: after this the connection is of no use.
awaitable<bool> Session::refuse(Refusal refusal) {
  keep_alive_ = false;
  body_lease_.give_back();
  if (refusal.status == 0) {
    gone_ = true;
  } else {
    const HttpReply reply = server_.handler.refuse(refusal.status, refusal.message);
    co_await write_reply(reply, false);
  }
  co_return false;
}

// What the peer still sends is read for a moment: closing at once would reset the connection and lose our answer.
awaitable<void> Session::linger() {
  error_code ignored;
  stream_.socket().shutdown(asio::socket_base::shutdown_send, ignored);
  std::vector<char> sink(8u << 10);
  stream_.expires_after(kLinger);
  for (size_t total = 0; total < kLingerBytes && !gone_;) {
    const auto [ec, n] = co_await stream_.async_read_some(asio::buffer(sink), kAwait);
    if (ec) break;
    total += n;
  }
}

// ---- answering ----

// Runs where it hurts no other connection: long bodies on a worker.
awaitable<HttpResult> Session::handle(HttpRequest request) {
  if (request.body.size() <= server_.config.inline_body_bytes) co_return server_.handler.handle(std::move(request));
  auto work = [](const HttpHandler& handler, HttpRequest r) -> awaitable<HttpResult> {
    co_return handler.handle(std::move(r));
  };
  co_return co_await asio::co_spawn(*server_.workers, work(server_.handler, std::move(request)), asio::use_awaitable);
}

// False: the connection ends here.
awaitable<bool> Session::answer(HttpRequest request) {
  std::string body = std::move(request.body);
  const HttpRequest head = request;  // without the body, which may be large
  request.body = std::move(body);
  const bool head_only = head.method == "HEAD";
  HttpResult result = co_await handle(std::move(request));
  body_lease_.give_back();
  if (server_.draining) keep_alive_ = false;
  int status;
  if (const HttpReply* reply = std::get_if<HttpReply>(&result)) {
    status = reply->status;
    if (!co_await write_reply(*reply, head_only)) status = 499;
  } else {
    source_ = std::move(std::get<1>(result));
    status = co_await pump(head_only);
    source_.reset();
  }
  server_.handler.observe(head, status);
  co_return status != 499 && keep_alive_;
}

// Carries a reply to the client as it is made. Returns its status; 499: the client is gone.
awaitable<int> Session::pump(bool head_only) {
  head_sent_ = false;
  if (std::optional<HttpReply> at_once = source_->start(make_wake())) {
    std::ranges::copy(source_->headers, std::back_inserter(at_once->headers));
    const bool ok = co_await write_reply(*at_once, head_only);
    co_return ok ? at_once->status : 499;
  }
  watch_peer();
  int status = 499;
  while (!gone_ && !source_->broken()) {
    ReplySource::Progress progress = source_->poll();
    const bool done = progress.done;
    const int final_status = progress.whole ? progress.whole->status : 200;
    if (!co_await write_progress(std::move(progress))) break;
    if (done) {
      status = final_status;
      break;
    }
    co_await wait_for_signal();
  }
  watching_ = false;
  error_code ignored;
  peer_poll_.cancel();
  stream_.socket().cancel(ignored);
  co_return status;
}

awaitable<bool> Session::write_progress(ReplySource::Progress progress) {
  if (progress.whole) {
    std::ranges::copy(source_->headers, std::back_inserter(progress.whole->headers));
    co_return co_await write_reply(*progress.whole, false);
  }
  if (progress.bytes.empty() && !progress.done) co_return true;
  std::string out;
  if (!std::exchange(head_sent_, true)) {
    if (!chunked_) keep_alive_ = false;
    out = format_head(200, "text/event-stream; charset=utf-8", source_->headers);
    out += "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
    out +=
        fmt::format("{}Connection: {}\r\n\r\n", chunked_ ? "Transfer-Encoding: chunked\r\n" : "", connection_header());
  }
  if (!progress.bytes.empty()) out += chunked_ ? chunk_of(progress.bytes) : progress.bytes;
  if (progress.done && chunked_) out += "0\r\n\r\n";
  co_return co_await write(out);
}

awaitable<bool> Session::write_reply(const HttpReply& reply, bool head_only) {
  std::string out = format_head(reply.status, reply.content_type, reply.headers);
  out += fmt::format("Content-Length: {}\r\nConnection: {}\r\n\r\n", reply.body.size(), connection_header());
  if (!head_only) out += reply.body;
  co_return co_await write(out);
}

awaitable<bool> Session::write(std::string_view bytes) {
  while (!bytes.empty() && !gone_) {
    const std::string_view slice = bytes.substr(0, kWriteSliceBytes);
    bytes.remove_prefix(slice.size());
    stream_.expires_after(server_.config.write_timeout);
    const auto [ec, n] = co_await asio::async_write(stream_, asio::buffer(slice), kAwait);
    if (ec) {
      gone_ = true;
      co_return false;
    }
  }
  stream_.expires_never();
  co_return !gone_;
}

// ---- waking up ----

// The engine thread calls it: it posts, at most once until the post has run, and keeps only the io_context alive.
std::function<void()> Session::make_wake() {
  auto pending = std::make_shared<std::atomic<bool>>(false);
  return [pending, io = io_, weak = weak_from_this()] {
    if (pending->exchange(true)) return;
    asio::post(*io, [pending, weak] {
      pending->store(false);
      if (const std::shared_ptr<Session> self = weak.lock()) self->on_wake();
    });
  };
}

void Session::on_wake() {
  if (source_ && source_->broken()) return close();  // it may be stuck in a write
  signal();
}

void Session::signal() {
  signalled_ = true;
  signal_.cancel();
}

awaitable<void> Session::wait_for_signal() {
  if (!signalled_ && !gone_) {
    signal_.expires_at(asio::steady_timer::time_point::max());
    co_await signal_.async_wait(kAwait);
  }
  signalled_ = false;
}

// ---- noticing that the client went away while its answer is made ----

void Session::watch_peer() {
  watching_ = true;
  stream_.socket().async_wait(asio::socket_base::wait_read, [self = shared_from_this()](const error_code& ec) {
    if (!ec && self->watching_) self->on_peer_event();
  });
}

void Session::on_peer_event() {
  char byte;
  const ssize_t n = ::recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n > 0) return poll_peer_later();  // the next request is there: readable tells nothing any more
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return watch_peer();
  peer_is_gone();
}

void Session::poll_peer_later() {
  peer_poll_.expires_after(kPeerPollInterval);
  peer_poll_.async_wait([self = shared_from_this()](const error_code& ec) {
    if (ec || !self->watching_) return;
    pollfd fd{self->stream_.socket().native_handle(), POLLRDHUP, 0};
    const bool hung_up = ::poll(&fd, 1, 0) > 0 && (fd.revents & (POLLRDHUP | POLLHUP | POLLERR));
    hung_up ? self->peer_is_gone() : self->poll_peer_later();
  });
}

void Session::peer_is_gone() { close(); }

// ---- the server ----

void ServerCore::begin(Loop& loop, Socket socket) {
  auto session = std::make_shared<Session>(*this, loop, std::move(socket));
  loop.sessions.insert(session.get());
  asio::co_spawn(*loop.io, session->run(), [this, &loop, session](std::exception_ptr e) {
    loop.sessions.erase(session.get());
    --num_connections;
    try {
      if (e) std::rethrow_exception(e);
    } catch (const std::exception& error) {
      log::error("a connection ended with an exception: {}", error.what());
    }
  });
}

template <class Acceptor>
awaitable<void> ServerCore::accept(Acceptor& acceptor) {
  asio::steady_timer pause(*loops[0]->io);
  while (!draining) {
    Loop& loop = *loops[next_loop++ % loops.size()];
    auto [ec, socket] = co_await acceptor.async_accept(*loop.io, kAwait);
    if (ec == asio::error::operation_aborted || !acceptor.is_open()) break;
    if (ec) {  // out of file descriptors, most likely: the connections that are open go on
      log::warn("cannot accept a connection: {}", ec.message());
      pause.expires_after(std::chrono::milliseconds(100));
      co_await pause.async_wait(kAwait);
      continue;
    }
    error_code ignored;
    if constexpr (std::is_same_v<Acceptor, asio::ip::tcp::acceptor>)
      socket.set_option(asio::ip::tcp::no_delay(true), ignored);
    ++num_connections;
    asio::post(*loop.io, [this, &loop, s = Socket(std::move(socket))]() mutable { begin(loop, std::move(s)); });
  }
}

Status ServerCore::listen_tcp() {
  const std::string where = fmt::format("{}:{}", config.host, config.port);
  error_code ec;
  asio::ip::tcp::resolver resolver(*loops[0]->io);
  const auto found = resolver.resolve(config.host, std::to_string(config.port), asio::ip::resolver_base::passive, ec);
  if (ec) return invalid("--host {}: {}", config.host, ec.message());
  tcp.emplace(*loops[0]->io);
  const asio::ip::tcp::endpoint endpoint = found.begin()->endpoint();
  tcp->open(endpoint.protocol(), ec);
  if (!ec) tcp->set_option(asio::socket_base::reuse_address(true), ec);
  if (!ec) tcp->bind(endpoint, ec);
  if (!ec) tcp->listen(4096, ec);
  if (ec) return invalid("cannot listen on {}: {}; choose another --host or --port", where, ec.message());
  port = tcp->local_endpoint().port();
  return {};
}

Status ServerCore::listen_local() {
  error_code ec;
  std::filesystem::remove(config.unix_socket, ec);
  local.emplace(*loops[0]->io);
  local->open(asio::local::stream_protocol(), ec);
  if (!ec) local->bind(config.unix_socket, ec);
  if (!ec) local->listen(4096, ec);
  if (ec) return invalid("cannot listen on the Unix socket {}: {}", config.unix_socket, ec.message());
  return {};
}

void ServerCore::stop_accepting() {
  error_code ignored;
  if (tcp) tcp->close(ignored);
  if (local) local->close(ignored);
}

// On the thread of each, as only it may touch them.
template <class Visit>
void ServerCore::for_each_session(Visit visit) {
  for (const auto& loop : loops)
    asio::post(*loop->io, [&sessions = loop->sessions, visit] {
      const std::vector<Session*> now(sessions.begin(), sessions.end());
      for (Session* s : now) visit(*s);
    });
}

void ServerCore::stop() {
  draining = true;
  asio::post(*loops[0]->io, [this] { stop_accepting(); });
  while (num_connections > 0) {  // one that was being accepted may have missed the first round
    for_each_session([](Session& s) { s.close(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (const auto& loop : loops) loop->work.reset();
  for (const auto& loop : loops) loop->thread.join();
  workers->join();
}

struct HttpServer::Impl : ServerCore {};

Status HttpServer::try_address(const HttpServerConfig& config) {
  if (!config.unix_socket.empty()) return {};
  ServerCore core;
  core.config = config;
  core.loops.push_back(std::make_unique<Loop>());
  return core.listen_tcp();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() { impl_->stop(); }

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpServerConfig& config, HttpHandler handler) {
  auto impl = std::make_unique<Impl>();
  impl->config = config;
  impl->handler = std::move(handler);
  impl->bodies = std::make_unique<ByteBudget>(config.max_bodies_bytes);
  for (int i = 0; i < config.io_threads; ++i) impl->loops.push_back(std::make_unique<Loop>());
  NIB_TRY(config.unix_socket.empty() ? impl->listen_tcp() : impl->listen_local());
  impl->workers = std::make_unique<asio::thread_pool>(config.worker_threads);
  asio::io_context& first = *impl->loops[0]->io;
  if (impl->tcp) asio::co_spawn(first, impl->accept(*impl->tcp), asio::detached);
  if (impl->local) asio::co_spawn(first, impl->accept(*impl->local), asio::detached);
  for (const auto& loop : impl->loops) loop->thread = std::thread([io = loop->io] { io->run(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::port() const { return impl_->port; }
int HttpServer::num_connections() const { return impl_->num_connections; }

void HttpServer::drain(std::chrono::milliseconds timeout, const std::function<bool()>& hurry) {
  impl_->draining = true;
  asio::post(*impl_->loops[0]->io, [impl = impl_.get()] { impl->stop_accepting(); });
  impl_->for_each_session([](Session& s) {
    if (s.idle()) s.close();
  });
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (impl_->num_connections > 0 && std::chrono::steady_clock::now() < end && !hurry())
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace nib
