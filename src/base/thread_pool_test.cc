#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <vector>

namespace nib {
namespace {

TEST(ThreadPool, RunsEveryItemOnceForEveryNumberOfThreadsAndItems) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int64_t n : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<std::atomic<int>> count(n);
      pool.parallel_for(n, [&](int64_t i, int thread) {
        EXPECT_LT(thread, threads);
        ++count[i];
      });
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(count[i], 1) << "item " << i << " of " << n << ", threads " << threads;
    }
  }
}

// A thread that comes late to a loop must not take an item of the next one twice, or one of a loop that is over.
TEST(ThreadPool, ThousandsOfShortLoopsInARowLoseNothing) {
  ThreadPool pool(5);
  for (int64_t loop = 0; loop < 20000; ++loop) {
    const int64_t n = 2 + loop % 5;
    std::atomic<int64_t> sum{0};
    pool.parallel_for(n, [&sum, loop](int64_t i, int) { sum += loop + i; });
    ASSERT_EQ(sum, n * loop + n * (n - 1) / 2) << "loop " << loop;
  }
}

TEST(ThreadPool, SleepingThreadsWakeForTheNextLoop) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> both{0};
    // Each item waits for the other, so the loop ends only if the sleeper came.
    pool.parallel_for(2, [&](int64_t, int) {
      ++both;
      while (both < 2) std::this_thread::yield();
    });
    EXPECT_EQ(both, 2);
  }
}

}  // namespace
}  // namespace nib
