#include "base/thread_pool.h"

#include "base/check.h"

namespace nib {

namespace {

// Workers spin this many times before they sleep: the loops of one forward pass follow each other within microseconds.
constexpr int kSpins = 2000;
constexpr uint64_t kOneLoop = uint64_t{1} << 32;
constexpr uint64_t kItems = kOneLoop - 1;

// Spins shortly, then lets others run: where threads outnumber cores the one that is waited for may need this core.
class Backoff {
 public:
  void pause() {
    if (++spins_ < kSpins)
      __builtin_ia32_pause();
    else
      std::this_thread::yield();
  }

 private:
  int spins_ = 0;
};

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  NIB_CHECK(num_threads >= 1, "num_threads is {}", num_threads);
  for (int t = 1; t < num_threads; ++t) threads_.emplace_back([this, t] { work(t); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void ThreadPool::parallel_for(int64_t n, const std::function<void(int64_t, int)>& body) {
  NIB_CHECK(n < static_cast<int64_t>(kItems), "{} items", n);
  if (n <= 1 || threads_.empty()) {
    for (int64_t i = 0; i < n; ++i) body(i, 0);
    return;
  }
  body_ = &body;
  n_ = n;
  done_.store(0, std::memory_order_relaxed);
  const uint64_t loop = (open_.load(std::memory_order_relaxed) & ~kItems) + kOneLoop;
  open_.store(loop | static_cast<uint64_t>(n));
  if (sleepers_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  run(0);
  for (Backoff backoff; done_.load(std::memory_order_acquire) != n;) backoff.pause();
}

// Takes items of the open loop until none is left.
void ThreadPool::run(int thread) {
  for (uint64_t open = open_.load(std::memory_order_relaxed); (open & kItems) != 0;) {
    if (!open_.compare_exchange_weak(open, open - 1, std::memory_order_acquire, std::memory_order_relaxed)) continue;
    (*body_)(n_ - static_cast<int64_t>(open & kItems), thread);
    done_.fetch_add(1, std::memory_order_release);
    open = open_.load(std::memory_order_relaxed);
  }
}

// Until there is another loop than the one seen; false when the pool ends.
bool ThreadPool::wait_for_loop(uint64_t seen) {
  const auto another = [&] { return stop_.load() || (open_.load() & ~kItems) != seen; };
  for (int i = 0; i < kSpins && !another(); ++i) __builtin_ia32_pause();
  if (!another()) {
    std::unique_lock lock(mutex_);
    ++sleepers_;
    wake_.wait(lock, another);
    --sleepers_;
  }
  return !stop_.load();
}

void ThreadPool::work(int thread) {
  for (uint64_t seen = 0; wait_for_loop(seen);) {
    seen = open_.load() & ~kItems;
    run(thread);
  }
}

}  // namespace nib
