#include "text/utf8.h"

#include <gtest/gtest.h>

namespace nib {
namespace {

struct Case {
  const char *bytes, *want;
};
constexpr Case kCases[] = {
    {"plain", "plain"},
    {"z\xC3\xBCrich", "z\xC3\xBCrich"},
    {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
    {"a\xFF"
     "b",
     "a\uFFFDb"},                  // never a byte of UTF-8
    {"\x80\x80", "\uFFFD\uFFFD"},  // continuation bytes alone: one each
    {"\xE4\xBD", "\uFFFD"},        // a cut character is one part
    {"\xE4\xBDx", "\uFFFDx"},
    {"\xF0\x9F\x98", "\uFFFD"},
    {"\xE0\x80\x80", "\uFFFD\uFFFD\uFFFD"},            // overlong: no character begins so
    {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},            // a surrogate
    {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},  // beyond U+10FFFF
    {"\xF1\x80\x80\xE1\x80\xC2"
     "b",
     "\uFFFD\uFFFD\uFFFDb"},  // the example of the Unicode standard, table 3-8
};

TEST(Utf8, EachMaximalInvalidPartIsOneReplacementCharacter) {
  for (const Case& c : kCases) EXPECT_EQ(repair_utf8(c.bytes), c.want);
}

TEST(Utf8, CutsDoNotMatter) {
  for (const Case& c : kCases) {
    Utf8Repair repair;
    std::string out;
    for (const char* byte = c.bytes; *byte; ++byte) out += repair.push(std::string_view(byte, 1));
    EXPECT_EQ(out + repair.finish(), c.want);
  }
}

TEST(Utf8, AnIncompleteCharacterWaits) {
  Utf8Repair repair;
  EXPECT_EQ(repair.push("a\xF0\x9F"), "a");
  EXPECT_EQ(repair.push("\x98"), "");
  EXPECT_EQ(repair.push("\x80!"), "\xF0\x9F\x98\x80!");
  EXPECT_EQ(repair.finish(), "");
}

TEST(Utf8, ValidTextIsToldFromInvalid) {
  for (const Case& c : kCases) EXPECT_EQ(is_valid_utf8(c.bytes), std::string_view(c.bytes) == c.want) << c.bytes;
}

}  // namespace
}  // namespace nib
