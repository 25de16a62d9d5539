// Many requests at once on one thread, each on its own connection: a load generator's half of HTTP.
//   HttpLoad load(url, options);
//   load.post("/v1/completions", body, {.on_event = count, .on_end = finish});
//   load.run();                                        // until nothing is left to do
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/http_client.h"

namespace nib {

// All are called from run().
struct LoadCallbacks {
  std::function<void(std::string_view data)> on_event;  // each server-sent event
  std::function<void(const Status& status)> on_end;     // once; not ok: the request failed
};

class HttpLoad {
 public:
  HttpLoad(HttpUrl url, HttpClientOptions options);
  ~HttpLoad();

  // May be called before run() and from its callbacks.
  void post(std::string path, std::string body, LoadCallbacks callbacks);
  void after(std::chrono::nanoseconds delay, std::function<void()> act);
  void run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nib
