// Wakes a thread that waits for events.
//   auto bell = std::make_shared<Bell>();
//   EventChannel channel(100, [bell] { bell->ring(); });
//   bell->wait();                                          // until it was rung since the last wait
#pragma once

#include <condition_variable>
#include <mutex>

namespace nib::testing {

class Bell {
 public:
  void ring() {
    std::lock_guard lock(mutex_);
    rung_ = true;
    condition_.notify_all();
  }

  void wait() {
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [&] { return rung_; });
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool rung_ = false;
};

}  // namespace nib::testing
