#include "base/json.h"

#include <gmock/gmock.h>

namespace nib {
namespace {

TEST(ParseJson, GivesWhatTheLibraryGives) {
  for (const char* text : {"null", "true", "-7", "18446744073709551615", "1.5e3", R"("z\u00fcrich \ud83d\ude00")", "[]",
                           "{}", R"([1,[2,{"a":[]}],{}])", R"({"b":1,"a":{"d":[null,"x"],"c":2},"":3})"}) {
    const Result<Json> json = parse_json(text);
    ASSERT_TRUE(json.ok()) << text;
    EXPECT_EQ(json->dump(), Json::parse(text).dump());
  }
}

TEST(ParseJson, AKeyThatComesAgainKeepsItsPlaceAndTakesTheLastValue) {
  EXPECT_EQ(parse_json(R"({"a":1,"b":2,"a":3,"c":4,"b":[5],"a":6})")->dump(), R"({"a":6,"b":[5],"c":4})");
}

TEST(ParseJson, AnIntegerBeyond64BitsKeepsItsDigits) {
  for (const char* digits : {"18446744073709551616", "-9223372036854775809", "123456789012345678901234567890"}) {
    const Result<Json> json = parse_json(fmt::format("[{}]", digits));
    ASSERT_TRUE(json.ok()) << digits;
    EXPECT_EQ(big_integer(json->at(0)), digits);
  }
  for (const char* other : {"18446744073709551615", "-9223372036854775808", "1e30", "100000000000000000000.0", "\"1\""})
    EXPECT_EQ(big_integer(*parse_json(other)), "") << other;
}

TEST(ParseJson, WrongTextIsAnErrorOfOneSentence) {
  for (const char* text :
       {"", "{", "[1,]", "{\"a\"}", "nul", "1 2", "\"\xFF\"", R"("\ud800")", "1e999", "NaN", "'a'"}) {
    const Result<Json> json = parse_json(text);
    ASSERT_FALSE(json.ok()) << text;
    EXPECT_THAT(json.status().message(), testing::StartsWith("invalid JSON: ")) << text;
  }
  EXPECT_THAT(parse_json(std::string(1000, '[')).status().message(), testing::HasSubstr("at most 128"));
}

TEST(ParseJson, ErrorsQuoteLittleOfTheInputAndOnlyAscii) {
  for (const std::string& text : {'"' + std::string(1 << 20, 'a'), std::string("[\"\xFF\"]"), std::string("\u4e2d")}) {
    const std::string message = parse_json(text).status().message();
    EXPECT_LT(message.size(), 300u);
    for (char c : message) EXPECT_TRUE(c >= 0x20 && c < 0x7F) << message;
  }
}

TEST(ParseJson, ManyKeysTakeNoTime) {
  std::string text = "{";
  for (int i = 0; i < 300000; ++i) text += fmt::format("\"key{}\":{},", i, i);
  text.back() = '}';
  EXPECT_EQ(parse_json(text)->size(), 300000u);  // minutes if each key were looked for among the earlier ones
}

}  // namespace
}  // namespace nib
