#include "text/tool_call_scanner.h"

#include <gtest/gtest.h>

namespace nib {
namespace {

struct Case {
  const char *payload, *name, *arguments;
  ToolCallEnd::Kind end;
};
constexpr auto kComplete = ToolCallEnd::kComplete;
constexpr auto kIncomplete = ToolCallEnd::kIncomplete;
constexpr auto kBroken = ToolCallEnd::kBroken;

const Case kCases[] = {
    {R"({"name":"f","args":{"k":1}})", "f", R"({"k":1})", kComplete},
    {R"( { "name" : "f" , "args" : {"k": 1} } )", "f", R"({"k": 1})", kComplete},
    {R"({"name":"args","args":{"name":"x"}})", "args", R"({"name":"x"})", kComplete},
    {R"({"name":"f","args":{"s":"a}b\"}","l":[{},[1]]}})", "f", R"({"s":"a}b\"}","l":[{},[1]]})", kComplete},
    {R"({"args":{"k":1},"name":"f"})", "f", R"({"k":1})", kComplete},                      // the other order
    {R"({"id":7,"x":[{"args":{}}],"name":"f","y":"}","args":{}})", "f", "{}", kComplete},  // other keys are skipped
    {R"({"name":"f"})", "f", "{}", kComplete},                                             // no arguments
    {R"({"name":"\u0066\"","args":{}})", "f\"", "{}", kComplete},                          // the name is unescaped
    {R"({"name":"f","args":{"k":nonsense}})", "f", R"({"k":nonsense})", kComplete},        // passed on as it is
    {R"({"name":"f","args":{}}write)", "f", "{}", kComplete},                              // what follows is ignored
    {R"({"args":{"k":1}})", "header", R"({"k":1})", kComplete},                            // no name: the header's
    {R"({&quot;name&quot;:&quot;f&quot;,&quot;args&quot;:{&quot;k&quot;:&quot;&amp;lt;&quot;}})", "f",
     R"({"k":"&lt;"})", kComplete},
    {R"({"name":"d","args":{"k":"v")", "d", R"({"k":"v")", kIncomplete},
    {R"({"name":"d)", "", "", kIncomplete},
    {"", "", "", kIncomplete},
    {R"({"args":{"k":1},"na)", "", "", kIncomplete},
    {R"({"name":"f","args":[1]})", "f", "", kBroken},  // arguments that are no object
    {R"({"name":"f","args":"{}"})", "f", "", kBroken},
    {R"({"name":7,"args":{}})", "", "", kBroken},
    {R"({"name":"a<|b","args":{}})", "", "", kBroken},  // would poison the history
    {R"({"name":"a\u003c|b","args":{}})", "", "", kBroken},
    {R"({"name":"\ud800","args":{}})", "", "", kBroken},
    {R"({"name":"f",})", "f", "", kBroken},
    {R"([])", "", "", kBroken},
    {R"(f(1))", "", "", kBroken},
};

struct Outcome {
  std::string name, arguments;
  ToolCallEnd::Kind end;
};

Outcome scan(std::string_view payload, size_t step) {
  ToolCallScanner scanner;
  Outcome out;
  const auto take = [&](const std::vector<ToolCallEvent>& events) {
    for (const ToolCallEvent& e : events) (e.kind == ToolCallEvent::kName ? out.name : out.arguments) += e.text;
  };
  for (size_t at = 0; at < payload.size(); at += step) take(scanner.push(payload.substr(at, step)));
  const ToolCallEnd end = scanner.finish("header");
  take(end.events);
  out.end = end.kind;
  return out;
}

TEST(ToolCallScanner, FindsNameAndArgumentsHoweverItIsCut) {
  for (const Case& c : kCases) {
    for (size_t step : {1, 2, 3, 7, 1000}) {
      const Outcome out = scan(c.payload, step);
      EXPECT_EQ(out.name, c.name) << c.payload;
      EXPECT_EQ(out.arguments, c.arguments) << c.payload;
      EXPECT_EQ(out.end, c.end) << c.payload;
    }
  }
}

TEST(ToolCallScanner, GivesPartsAsTheyArrive) {
  ToolCallScanner scanner;
  EXPECT_EQ(scanner.push(R"({"name":"get_weath)").size(), 0u);
  const auto name = scanner.push(R"(er","args":)");
  ASSERT_EQ(name.size(), 1u);
  EXPECT_EQ(name[0].text, "get_weather");
  EXPECT_EQ(scanner.push(R"({"city":)")[0].text, R"({"city":)");
  EXPECT_EQ(scanner.push(R"("SF")")[0].text, R"("SF")");
  EXPECT_EQ(scanner.push(R"(}})")[0].text, R"(})");
}

}  // namespace
}  // namespace nib
