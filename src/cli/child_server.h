// This binary serving a model as a child process on a free local port; stopped when the object goes.
//   Result<ChildServer> server = ChildServer::start("models/nano");
//   server->url();                               // http://127.0.0.1:PORT, ready
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace nib::cli {

class ChildServer {
 public:
  // `flags`: of nib serve, after its own.
  static Result<ChildServer> start(const std::string& model, const std::vector<std::string>& flags = {});
  ChildServer(ChildServer&& other) noexcept : pid_(std::exchange(other.pid_, 0)), url_(std::move(other.url_)) {}
  ChildServer& operator=(ChildServer&&) = delete;
  ~ChildServer();  // SIGTERM, then waits for its end

  const std::string& url() const { return url_; }

 private:
  ChildServer(pid_t pid, std::string url) : pid_(pid), url_(std::move(url)) {}
  Status wait_until_ready() const;

  pid_t pid_ = 0;
  std::string url_;
};

}  // namespace nib::cli
