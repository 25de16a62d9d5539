// A fixed set of threads that run one loop at a time; the caller is thread 0.
//   ThreadPool pool(2);
//   pool.parallel_for(n, [&](int64_t i, int thread) { ... });   // returns when all n are done
//   pool.num_threads();
// Used by one caller at a time (the engine thread). Which thread runs which i is not defined: results must not depend
// on it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace nib {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // >= 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }
  void parallel_for(int64_t n, const std::function<void(int64_t, int)>& body);  // n < 2^32

 private:
  void work(int thread);
  void run(int thread);
  bool wait_for_loop(uint64_t seen);

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  // The loop in its upper half, counted from 1; the items nobody has taken yet in its lower half. Taking one is a
  // compare and swap of both, so a thread that comes late takes nothing, and nobody waits for a thread that holds no
  // item.
  std::atomic<uint64_t> open_{0};
  std::atomic<int64_t> done_{0};  // items finished
  // Read only by a thread that holds an item: the loop cannot end under it.
  int64_t n_ = 0;
  const std::function<void(int64_t, int)>* body_ = nullptr;
};

}  // namespace nib
