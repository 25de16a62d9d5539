#include "server/sse.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace nib {
namespace {

TEST(Sse, events_are_found_however_the_bytes_are_cut) {
  const std::string bytes = sse_event("one") + ": ping\n\n" + "event: x\r\ndata: two\r\ndata: lines\r\n\r\n" +
                            "data:three\n\n" + std::string(kSseDone) + "data: never ended\n";
  const std::vector<std::string> want = {"one", "two\nlines", "three", "[DONE]"};
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    SseReader reader;
    std::vector<std::string> got;
    for (size_t at = 0; at < bytes.size();) {
      const size_t count = 1 + random() % 9;
      reader.push(std::string_view(bytes).substr(at, count), [&](std::string_view data) {
        got.emplace_back(data);
        return true;
      });
      at += count;
    }
    EXPECT_EQ(got, want);
  }
}

}  // namespace
}  // namespace nib
