#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace nib {
namespace {

struct Case {
  std::vector<std::string> stops;
  std::vector<std::string> tokens;
  std::string want;
  std::string stop;      // empty: none
  int token_number = 0;  // of the match
};

const Case kCases[] = {
    {{"END"}, {"go", " E", "N", "D now"}, "go ", "END", 4},
    {{"END"}, {"go E", "N", "o"}, "go ENo", "", 0},
    {{"END"}, {"E", "N"}, "EN", "", 0},  // held text is released at the end
    {{"aab"}, {"aaaab"}, "aa", "aab", 1},
    {{"b", "ab"}, {"ab"}, "a", "b", 1},            // at one place, the first of the list
    {{"abcd", "bc"}, {"abc", "d"}, "a", "bc", 1},  // the one that is complete first
    {{"\u00fc"}, {"z", "\u00fc", "rich"}, "z", "\u00fc", 2},
    {{}, {"a", "b"}, "ab", "", 0},
};

TEST(StopMatcher, EndsTheTextBeforeTheStopString) {
  for (const Case& c : kCases) {
    StopMatcher m(c.stops, /*include_in_output=*/false, /*min_tokens=*/0);
    std::string out;
    for (size_t i = 0; i < c.tokens.size(); ++i) out += m.push(c.tokens[i], int(i) + 1);
    out += m.flush();
    EXPECT_EQ(out, c.want);
    EXPECT_EQ(m.match() ? m.match()->stop : "", c.stop);
    EXPECT_EQ(m.match() ? m.match()->token_number : 0, c.token_number);
  }
}

TEST(StopMatcher, CanKeepTheStopString) {
  StopMatcher m({"END"}, /*include_in_output=*/true, 0);
  EXPECT_EQ(m.push("go E", 1), "go ");
  EXPECT_EQ(m.push("ND now", 2), "END");
  EXPECT_EQ(m.push("more", 3), "");
}

TEST(StopMatcher, WhatTheFirstTokensCompleteIsNoMatch) {
  StopMatcher m({"aa"}, false, /*min_tokens=*/2);
  EXPECT_EQ(m.push("a", 1) + m.push("a", 2), "a");  // the last letter may begin another
  EXPECT_EQ(m.push("a", 3), "");
  EXPECT_EQ(m.match()->token_number, 3);
}

TEST(StopMatcher, NoStopStringReachesAcrossAFlush) {
  StopMatcher m({"ab"}, false, 0);
  EXPECT_EQ(m.push("a", 1), "");
  EXPECT_EQ(m.flush(), "a");
  EXPECT_EQ(m.push("b", 2), "b");
  EXPECT_FALSE(m.match());
}

TEST(StopMatcher, FindsWhatASearchOfTheWholeTextFinds) {
  std::mt19937 random(5);
  const auto random_text = [&](size_t length) {
    std::string text(length, 0);
    for (char& c : text) c = char('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    const std::vector<std::string> stops = {random_text(1 + random() % 6), random_text(1 + random() % 6)};
    const std::string text = random_text(random() % 30);
    size_t begin = text.size(), end = std::string::npos;
    for (const std::string& stop : stops)
      if (const size_t at = text.find(stop); at != std::string::npos && at + stop.size() < end)
        begin = at, end = at + stop.size();
    StopMatcher m(stops, false, 0);
    std::string out;
    for (size_t at = 0, n = 0; at < text.size(); at += n) {
      n = std::min<size_t>(1 + random() % 4, text.size() - at);
      out += m.push(std::string_view(text).substr(at, n), int(at) + 1);
    }
    EXPECT_EQ(out + m.flush(), text.substr(0, begin)) << text << " " << stops[0] << " " << stops[1];
  }
}

}  // namespace
}  // namespace nib
