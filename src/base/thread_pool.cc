#include "base/thread_pool.h"

#include "base/check.h"

namespace nib {

namespace {
// Workers spin this many times before they sleep: the loops of one forward pass follow each other within microseconds.
constexpr int kSpins = 4000;

inline void pause() { __builtin_ia32_pause(); }
}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  NIB_CHECK(num_threads >= 1, "num_threads is {}", num_threads);
  for (int t = 1; t < num_threads; ++t) threads_.emplace_back([this, t] { work(t); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    ++generation_;
  }
  wake_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void ThreadPool::run(int thread) {
  for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n_;) (*body_)(i, thread);
}

void ThreadPool::parallel_for(int64_t n, const std::function<void(int64_t, int)>& body) {
  if (n <= 0) return;
  if (n == 1 || threads_.empty()) {
    for (int64_t i = 0; i < n; ++i) body(i, 0);
    return;
  }
  body_ = &body;
  n_ = n;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  run(0);
  while (busy_.load(std::memory_order_acquire) != 0) pause();
}

void ThreadPool::work(int thread) {
  for (uint64_t seen = 0;;) {
    for (int i = 0; i < kSpins && generation_.load(std::memory_order_acquire) == seen; ++i) pause();
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
    }
    ++seen;
    if (stop_) return;
    run(thread);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace nib
