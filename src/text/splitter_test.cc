#include "text/splitter.h"

#include <gmock/gmock.h>

#include <vector>

#include "text/vocabulary.h"

namespace nib {
namespace {

using testing::ElementsAreArray;
using Pieces = std::vector<std::string>;

Pieces split(const std::string& pattern, std::string_view text) {
  Pieces pieces;
  Splitter::compile(pattern)->split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST(Splitter, O200kCutsWordsNumbersAndSpaces) {
  struct Case {
    std::string text;
    Pieces want;
  };
  const Case cases[] = {
      {"Hello world", {"Hello", " world"}},
      {"can'T", {"can'T"}},
      {"1234", {"123", "4"}},
      {" 5", {" ", "5"}},  // a space does not join a digit
      {" !!", {" !!"}},
      {"hi.\n/x", {"hi", ".\n/", "x"}},
      {"  \n  x", {"  \n", " ", " x"}},
      {"\u0065\u0301clair", {"\u0065\u0301clair"}},  // a combining mark belongs to its word
      {"HELLO", {"HELLO"}},
      {"a  \u180Eb", {"a", " ", " \u180E", "b"}},  // U+180E is no white space
  };
  for (const Case& c : cases) EXPECT_THAT(split(kO200kPattern, c.text), ElementsAreArray(c.want)) << c.text;
}

TEST(Splitter, GapsBetweenMatchesArePiecesToo) {
  EXPECT_THAT(split("b+", "abbac"), ElementsAreArray({"a", "bb", "ac"}));
}

TEST(Splitter, AnEmptyMatchIsNoMatch) { EXPECT_THAT(split("x*", "abx"), ElementsAreArray({"ab", "x"})); }

TEST(Splitter, NothingIsLostWhenAMatchBreaksItsLimits) {
  const std::string text = std::string(40, 'a') + "!" + std::string(4000, 'b');
  const Pieces pieces = split("^(a+)+$", text);
  std::string joined;
  for (const std::string& piece : pieces) {
    EXPECT_LE(piece.size(), Splitter::kBlindPieceBytes);
    joined += piece;
  }
  EXPECT_EQ(joined, text);
}

TEST(Splitter, AWrongPatternIsRefused) {
  const Result<Splitter> splitter = Splitter::compile("a(");
  ASSERT_FALSE(splitter.ok());
  EXPECT_THAT(splitter.status().message(), testing::HasSubstr("no valid regular expression at byte 2"));
}

}  // namespace
}  // namespace nib
