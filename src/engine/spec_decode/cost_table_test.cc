#include "engine/spec_decode/cost_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace nib {
namespace {

using ::testing::HasSubstr;

void record(CostCurve& c, int64_t size, std::initializer_list<double> times) {
  for (double ns : times) c.record(size, ns);
}

TEST(CostCurveTest, KnowsNothingBeforeThreeRecordsOfASize) {
  CostCurve c;
  EXPECT_TRUE(c.empty());
  EXPECT_EQ(c.at(4), 0);
  record(c, 4, {70, 50});
  EXPECT_TRUE(c.empty());
  record(c, 4, {60});
  EXPECT_EQ(c.at(4), 60);
}

TEST(CostCurveTest, TheMedianOfTheLastSevenTimesCounts) {
  CostCurve c;
  record(c, 1, {9000, 10, 11, 12, 10000});  // a cold start and a disturbance
  EXPECT_EQ(c.at(1), 12);
  record(c, 1, {20, 20, 20, 20, 20});  // the machine has become slower
  EXPECT_EQ(c.at(1), 20);
}

TEST(CostCurveTest, InterpolatesBetweenSizesAndGoesOnWithTheLastSlope) {
  const CostCurve c({{2, 100}, {4, 200}, {8, 240}});
  struct Case {
    int64_t size;
    double want;
  };
  constexpr Case kCases[] = {{1, 100}, {2, 100}, {3, 150}, {4, 200}, {6, 220}, {8, 240}, {9, 250}, {18, 340}};
  for (const Case& k : kCases) EXPECT_DOUBLE_EQ(c.at(k.size), k.want) << k.size;
}

TEST(CostCurveTest, OnePointIsFlat) {
  const CostCurve c({{4, 100}});
  for (int64_t size : {1, 4, 100}) EXPECT_EQ(c.at(size), 100) << size;
}

TEST(CostCurveTest, NeverFallsWithSize) {
  std::mt19937 rng(1);
  CostCurve c;
  for (int i = 0; i < 3000; ++i) {
    c.record(1 + rng() % 600, static_cast<double>(rng() % 1000));
    if (i % 100 != 99) continue;
    for (int64_t size = 1; size < 2000; ++size) ASSERT_LE(c.at(size), c.at(size + 1)) << size;
  }
}

TEST(CostCurveTest, LargeSizesShareBucketsOfAnEighthOfAnOctave) {
  CostCurve c;
  for (int64_t size = 1; size <= 16; ++size) record(c, size, {1, 1, 1});
  EXPECT_EQ(c.points().size(), 16u);
  struct Case {
    int64_t size, bucket;
  };
  constexpr Case kCases[] = {{17, 18}, {18, 18}, {19, 20},     {32, 32},    {33, 36},
                             {36, 36}, {37, 40}, {2047, 2048}, {2048, 2048}};
  for (const Case& k : kCases) {
    CostCurve one;
    record(one, k.size, {5, 5, 5});
    EXPECT_EQ(one.points()[0].size, k.bucket) << k.size;
  }
}

TEST(CostCurveTest, ForgetsASizeThatIsNoLongerMeasured) {
  CostCurve c;
  record(c, 1, {10, 10, 10});
  record(c, 8, {900, 900, 900});  // measured in a bad moment
  for (int i = 0; i < 4096; ++i) c.record(1, 10);
  EXPECT_EQ(c.at(8), 900);
  c.record(1, 10);
  EXPECT_EQ(c.at(8), 10);  // looks cheap again, so it is tried again
}

TEST(CostCurveTest, AGivenCurveTakesNoRecords) {
  CostCurve c({{1, 100}});
  record(c, 1, {5, 5, 5, 5, 5, 5, 5});
  EXPECT_EQ(c.at(1), 100);
}

TEST(CostTableTest, GoesThroughJsonUnchanged) {
  CostTable t;
  record(t.draft, 1, {30.5, 30.5, 30.5});
  record(t.verify, 1, {100, 100, 100});
  record(t.verify, 8, {150, 150, 150});
  const Result<CostTable> again = CostTable::from_json(*parse_json(t.to_json().dump()), "costs.json");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->to_json(), t.to_json());
  for (int64_t size : {1, 3, 8, 20}) EXPECT_EQ(again->verify.at(size), t.verify.at(size)) << size;
  EXPECT_EQ(again->draft.at(2), 30.5);
}

TEST(CostTableTest, GoesThroughAFile) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "nib_cost_table_test.json";
  CostTable t;
  record(t.verify, 2, {120, 120, 120});
  ASSERT_TRUE(t.save(path).ok());
  const Result<CostTable> again = CostTable::load(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->to_json(), t.to_json());
  EXPECT_THAT(CostTable::load(path).status().message(), HasSubstr(path.string()));
  EXPECT_THAT(t.save(path / "below").message(), HasSubstr("cannot be written"));
}

TEST(CostTableTest, ARefusedFileNamesWhatIsWrong) {
  struct Case {
    const char* text;
    const char* sentence;
  };
  constexpr Case kCases[] = {
      {R"([])", "costs.json: a JSON object with \"draft\" and \"verify\" is expected"},
      {R"({"verify":[]})", "costs.json: \"draft\" must be a list of pairs"},
      {R"({"draft":[],"verify":{}})", "costs.json: \"verify\" must be a list of pairs"},
      {R"({"draft":[[0,5]],"verify":[]})", "got [0,5]"},
      {R"({"draft":[],"verify":[[1,5],[1,6]]})", "growing sizes from 1 on is expected, got [1,6]"},
      {R"({"draft":[],"verify":[[2,5],[1,6]]})", "got [1,6]"},
      {R"({"draft":[],"verify":[[1,-5]]})", "got [1,-5]"},
      {R"({"draft":[],"verify":[[1.5,5]]})", "got [1.5,5]"},
      {R"({"draft":[],"verify":[[1]]})", "got [1]"},
      {R"({"draft":[],"verify":[["1",5]]})", "got [\"1\",5]"},
  };
  for (const Case& k : kCases)
    EXPECT_THAT(CostTable::from_json(*parse_json(k.text), "costs.json").status().message(), HasSubstr(k.sentence))
        << k.text;
}

}  // namespace
}  // namespace nib
