// A queue with a bound between threads: full is an answer, not a wait.
//   BoundedQueue<Job> queue(4096);
//   if (!queue.try_push(std::move(job))) return busy();   // from any thread
//   for (Job& j : queue.drain()) ...                      // from the consumer
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

namespace nib {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  bool try_push(T item) {
    {
      std::lock_guard lock(mutex_);
      if (items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return true;
  }

  // Everything that is there now, oldest first; empty if nothing is.
  std::vector<T> drain() {
    std::lock_guard lock(mutex_);
    std::vector<T> out(std::make_move_iterator(items_.begin()), std::make_move_iterator(items_.end()));
    items_.clear();
    return out;
  }

  // Waits until something is there or the time is over.
  void wait_for(std::chrono::microseconds timeout) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, timeout, [&] { return !items_.empty(); });
  }

  size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<T> items_;
};

}  // namespace nib
