#include "cli/bench_report.h"

#include <gtest/gtest.h>

namespace nib::cli {
namespace {

using std::chrono::milliseconds;

// A request sent `sent_ms` after the load began, whose chunks came `gaps_ms` after each other.
Sample sample(std::chrono::steady_clock::time_point begin, int sent_ms, int64_t tokens,
              const std::vector<double>& gaps_ms) {
  Sample s;
  s.begin = begin + milliseconds(sent_ms);
  s.output_tokens = tokens;
  s.ttft_s = gaps_ms[0] * 1e-3;
  s.latency_s = s.ttft_s;
  for (size_t i = 1; i < gaps_ms.size(); ++i) {
    s.itl_s.push_back(gaps_ms[i] * 1e-3);
    s.latency_s += gaps_ms[i] * 1e-3;
  }
  return s;
}

TEST(BenchReport, CountsTokensAndNotChunks) {
  const std::chrono::steady_clock::time_point begin{};
  struct Case {
    int64_t tokens;
    std::vector<double> gaps_ms;
    double ttft_ms, tpot_ms, itl_ms;
    int64_t peak;
  };
  const Case cases[] = {
      {5, {100, 200, 200, 200, 200}, 100, 200, 200, 5},  // one token a chunk
      {17, {100, 400, 400}, 100, 50, 400, 17},           // speculation: eight in each of two chunks
      {20, {900, 400, 400, 400}, 900, 63.158, 400, 10},  // five a chunk; two chunks in second 1
      {9, {100}, 100, 0, 0, 9},                          // all at once
  };
  for (const Case& c : cases) {
    const std::vector<Sample> samples = {sample(begin, 0, c.tokens, c.gaps_ms)};
    const LoadFacts load = {.duration_s = 2, .peak_tokens_per_s = peak_tokens_per_second(samples, begin)};
    const Json r = make_result({}, "m", samples, load, 0);
    EXPECT_NEAR(r["mean_ttft_ms"].get<double>(), c.ttft_ms, 1e-3);
    EXPECT_NEAR(r["mean_tpot_ms"].get<double>(), c.tpot_ms, 1e-3) << c.tokens;
    EXPECT_NEAR(r["mean_itl_ms"].get<double>(), c.itl_ms, 1e-3) << c.tokens;
    EXPECT_EQ(r["max_output_tokens_per_s"], c.peak) << c.tokens;
    EXPECT_EQ(r["total_output_tokens"], c.tokens);
  }
}

TEST(BenchReport, ThePeakIsThatOfAllRequestsTogether) {
  const std::chrono::steady_clock::time_point begin{};
  EXPECT_EQ(peak_tokens_per_second({sample(begin, 0, 8, {500, 600}), sample(begin, 1000, 6, {100, 100, 100})}, begin),
            4 + 6);
  EXPECT_EQ(peak_tokens_per_second({}, begin), 0);
}

}  // namespace
}  // namespace nib::cli
