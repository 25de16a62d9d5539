#include "text/canonical_json.h"

#include <gtest/gtest.h>

namespace nib {
namespace {

struct Case {
  const char *json, *want;
};
constexpr Case kCases[] = {
    {R"({"b": 1, "a": [3, 1, {"d": null, "c": true}]})", R"({"a":[3,1,{"c":true,"d":null}],"b":1})"},
    {R"({"Z":0,"a":0,"é":0,"z":0})", R"({"Z":0,"a":0,"z":0,"é":0})"},  // by code point
    {R"("Z\u00fcrich \u4f60 \"\\\/ \n\u0001\u007f")", "\"Z\u00fcrich \u4f60 \\\"\\\\/ \\n\\u0001\x7f\""},
    {"1.0", "1.0"},
    {"-0.0", "-0.0"},
    {"0.1", "0.1"},
    {"123456.75", "123456.75"},
    {"0.0001", "0.0001"},
    {"0.00001", "1e-05"},
    {"1e15", "1000000000000000.0"},
    {"1e16", "1e+16"},
    {"1.5e300", "1.5e+300"},
    {"18446744073709551615", "18446744073709551615"},
    {"-9223372036854775808", "-9223372036854775808"},
    {R"({"b":18446744073709551616,"a":[-123456789012345678901234567890]})",
     R"({"a":[-123456789012345678901234567890],"b":18446744073709551616})"},
    {"123456789012345678901234567890.0", "1.2345678901234568e+29"},
    {"{}", "{}"},
    {"[]", "[]"},
};

TEST(CanonicalJson, SortsKeysAndPrintsAsPythonDoes) {
  for (const Case& c : kCases) EXPECT_EQ(canonical_json(*parse_json(c.json)), c.want);
}

}  // namespace
}  // namespace nib
