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
  void parallel_for(int64_t n, const std::function<void(int64_t, int)>& body);

 private:
  void work(int thread);
  void run(int thread);

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int> busy_{0};
  std::atomic<int64_t> next_{0};
  int64_t n_ = 0;
  const std::function<void(int64_t, int)>* body_ = nullptr;
  std::atomic<bool> stop_{false};
};

}  // namespace nib
