#include "cli/child_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "server/http_client.h"

extern char** environ;

namespace nib::cli {

namespace {

// A port that nobody uses now; the child binds it a moment later.
Result<int> free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool bound = fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (fd >= 0) ::close(fd);
  if (!bound) return Status(Code::kInternal, fmt::format("no free port on 127.0.0.1: {}", std::strerror(errno)));
  return static_cast<int>(ntohs(address.sin_port));
}

}  // namespace

Result<ChildServer> ChildServer::start(const std::string& model, const std::vector<std::string>& flags) {
  NIB_ASSIGN(const int port, free_port());
  std::vector<std::string> args = {
      "nib", "serve", model, "--host", "127.0.0.1", "--port", std::to_string(port), "--disable-log-stats"};
  args.insert(args.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  if (const int error = ::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, argv.data(), environ); error != 0)
    return Status(Code::kInternal, fmt::format("cannot start nib serve: {}", std::strerror(error)));
  ChildServer server(pid, fmt::format("http://127.0.0.1:{}", port));
  NIB_TRY(server.wait_until_ready());
  return server;
}

Status ChildServer::wait_until_ready() const {
  NIB_ASSIGN(HttpClient client, HttpClient::open(url_));
  for (;;) {
    if (const Result<HttpAnswer> answer = client.send("GET", "/health"); answer.ok() && answer->status == 200)
      return {};
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0)
      return invalid("nib serve ended before it was ready; its message stands above");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

ChildServer::~ChildServer() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGTERM);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace nib::cli
