#include "compute/ops/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>
#include <sstream>

#include "base/json.h"

namespace nib {
namespace {

Json vectors(const std::string& name) {
  std::ifstream in(std::string(NIB_SOURCE_DIR) + "/tests/data/quantization/" + name);
  EXPECT_TRUE(in.good()) << name;
  std::stringstream text;
  text << in.rdbuf();
  const Result<Json> json = parse_json(text.str());
  EXPECT_TRUE(json.ok());
  return json->at("vectors");
}

float from_bits(const std::string& hex) {
  return std::bit_cast<float>(static_cast<uint32_t>(std::stoul(hex, nullptr, 16)));
}

std::vector<float> floats(const std::string& hex) {
  std::vector<float> out;
  for (size_t i = 0; i < hex.size(); i += 8) out.push_back(from_bits(hex.substr(i, 8)));
  return out;
}

std::string bits(View<const float, 2> x) {
  std::string out;
  for (int64_t i = 0; i < x.dim(1); ++i) out += fmt::format("{:08x}", std::bit_cast<uint32_t>(x(0, i)));
  return out;
}

std::string hex(View<const uint8_t, 2> x) {
  std::string out;
  for (int64_t i = 0; i < x.dim(1); ++i) out += fmt::format("{:02x}", x(0, i));
  return out;
}

// One row and room for its encoding.
struct Row {
  explicit Row(std::vector<float> values, int64_t group)
      : x(std::move(values)), codes(x.size()), scales(x.size() / group), dequantized(x.size()) {}
  int64_t n() const { return static_cast<int64_t>(x.size()); }
  View<const float, 2> in() const { return View<const float, 2>(x.data(), {1, n()}); }
  QuantizedRows out(int64_t code_bytes) {
    return {View<uint8_t, 2>(codes.data(), {1, code_bytes}),
            View<uint8_t, 2>(scales.data(), {1, static_cast<int64_t>(scales.size())}), View<float, 1>(&outer, {1}),
            View<float, 2>(dequantized.data(), {1, n()})};
  }
  std::vector<float> x;
  std::vector<uint8_t> codes, scales;
  float outer = 0;
  std::vector<float> dequantized;
};

void expect_nvfp4(const Json& vector, const Json& want, const Nvfp4Params& p) {
  Row row(floats(vector["x_bits"]), 16);
  const float amax = from_bits(vector["amax_bits"]);
  const QuantizedRows out = row.out(8);
  ops::quantize_nvfp4(out, row.in(), View<const float, 1>(&amax, {1}), p);
  EXPECT_EQ(row.scales[0], want["scale_byte"].get<int>()) << vector["name"];
  EXPECT_EQ(hex(out.codes), want["packed_hex"].get<std::string>()) << vector["name"];
  EXPECT_EQ(bits(out.dequantized), want["dequant_bits"].get<std::string>()) << vector["name"];
  EXPECT_EQ(std::bit_cast<uint32_t>(row.outer), std::stoul(want["s_dec_bits"].get<std::string>(), nullptr, 16));
}

TEST(Quantize, MapToSixEqualsEveryVectorBitForBit) {
  const Json all = vectors("nvfp4.json");
  ASSERT_EQ(all.size(), 48u);
  for (const Json& v : all) expect_nvfp4(v, v, {.rule = Nvfp4Rule::kSix, .ceiling = 448});
}

TEST(Quantize, FourOverSixEqualsEveryVectorBitForBit) {
  const Json all = vectors("four_over_six.json");
  ASSERT_EQ(all.size(), 64u);
  for (const Json& v : all)
    for (const Json& c : v["configs"])
      expect_nvfp4(v, c,
                   {.ceiling = c["e4m3_max"].get<float>(),
                    .scope = c["scope"] == "token" ? ScaleScope::kToken : ScaleScope::kTensor});
}

TEST(Quantize, TheErrorMeasureMakesTheChoiceOfEveryVector) {
  int differs = 0;
  for (const Json& v : vectors("four_over_six.json"))
    for (const Json& c : v["configs"]) {
      for (auto [error, key] : {std::pair{BlockError::kMse, "choice_mse"}, {BlockError::kAbsMax, "choice_abs_max"}}) {
        const int choice = c[key].get<int>(), want = c[choice == 4 ? "scale_byte_4" : "scale_byte_6"].get<int>();
        Row row(floats(v["x_bits"]), 16);
        const float amax = from_bits(v["amax_bits"]);
        ops::quantize_nvfp4(row.out(8), row.in(), View<const float, 1>(&amax, {1}),
                            {.ceiling = c["e4m3_max"].get<float>(),
                             .error = error,
                             .scope = c["scope"] == "token" ? ScaleScope::kToken : ScaleScope::kTensor});
        EXPECT_EQ(row.scales[0], want) << v["name"] << " " << key;
        differs += choice != c["choice"].get<int>();
      }
    }
  EXPECT_GT(differs, 0);  // else the measures would not be told apart
}

TEST(Quantize, Mxfp8EqualsEveryVectorBitForBit) {
  const Json all = vectors("mxfp8.json");
  ASSERT_EQ(all.size(), 45u);
  for (const Json& v : all)
    for (const auto& [rule, want] : v["rules"].items()) {
      Row row(floats(v["x_bits"]), 32);
      const QuantizedRows out = row.out(32);
      ops::quantize_mxfp8(out, row.in(), rule == "ceil" ? MxRule::kCeil : MxRule::kFloor);
      EXPECT_EQ(row.scales[0], want["scale_byte"].get<int>()) << v["name"] << rule;
      EXPECT_EQ(hex(out.codes), want["elements_hex"].get<std::string>()) << v["name"] << rule;
      EXPECT_EQ(bits(out.dequantized), want["dequant_bits"].get<std::string>()) << v["name"] << rule;
    }
}

TEST(Quantize, RoundingHitsEveryCodeAndTiesGoToTheEvenMantissa) {
  for (int b = 0; b < 127; ++b) {
    EXPECT_EQ(e4m3_from_float(e4m3_to_float(b)), b);
    EXPECT_EQ(e4m3_from_float(-e4m3_to_float(b)), b | 128);
    if (b < 126) {
      EXPECT_EQ(e4m3_from_float((e4m3_to_float(b) + e4m3_to_float(b + 1)) / 2), b + b % 2) << b;
    }
  }
  for (int c = 0; c < 8; ++c) {
    EXPECT_EQ(e2m1_from_float(kE2M1[c]), c);
    EXPECT_EQ(e2m1_from_float(-kE2M1[c]), c | 8);
    if (c < 7) {
      EXPECT_EQ(e2m1_from_float((kE2M1[c] + kE2M1[c + 1]) / 2), c + c % 2) << c;
    }
  }
  struct Case {
    float x;
    int e4m3, e2m1;
  };
  for (const Case c : {Case{1e30f, 0x7e, 7}, Case{-1e30f, 0xfe, 15}, Case{INFINITY, 0x7e, 7}, Case{NAN, 0x7f, 7}}) {
    EXPECT_EQ(e4m3_from_float(c.x), c.e4m3) << c.x;
    EXPECT_EQ(e2m1_from_float(c.x), c.e2m1) << c.x;
  }
}

// Holds where the scale byte is a normal number of E4M3: a subnormal one has too few bits to come back.
TEST(Quantize, EncodingADecodedRowAgainGivesTheSameValues) {
  std::mt19937 rng(5);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<float> x(64);
    for (float& v : x) v = std::normal_distribution<float>(0, std::exp2(trial % 20 - 10))(rng);
    Row first(x, 16);
    float amax = 0;
    ops::absolute_maxima(View<float, 1>(&amax, {1}), first.in(), ScaleScope::kToken);
    const Nvfp4Params p{.rule = trial % 2 ? Nvfp4Rule::kSix : Nvfp4Rule::kFourOverSix};
    ops::quantize_nvfp4(first.out(32), first.in(), View<const float, 1>(&amax, {1}), p);
    Row second(first.dequantized, 16);
    ops::quantize_nvfp4(second.out(32), second.in(), View<const float, 1>(&amax, {1}), p);
    for (int i = 0; i < 64; ++i)
      if (first.scales[i / 16] >= 8) {
        EXPECT_EQ(second.dequantized[i], first.dequantized[i]) << trial << " " << i;
      }
  }
}

}  // namespace
}  // namespace nib
