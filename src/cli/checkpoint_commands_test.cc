// plan, inspect, check and debug quantize as a user runs them: output, files and exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "cli/commands.h"
#include "cli/number_checks.h"
#include "model/checkpoint.h"
#include "model/testing/make_checkpoint.h"

namespace nib::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kSource = NIB_SOURCE_DIR;

struct Outcome {
  int code = 0;
  std::string out, error;
};

Outcome nib(std::vector<std::string> args) {
  CLI::App app;
  Exit exit;
  CLI::App& debug = *app.add_subcommand("debug");
  add_plan_command(app, "/no-hub", exit);
  add_inspect_command(app, "/no-hub", exit);
  add_check_command(app, "/no-hub", exit);
  add_debug_quantize_command(debug, exit);
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  try {
    std::reverse(args.begin(), args.end());
    app.parse(args);
  } catch (const CLI::ParseError&) {
    exit.code = 2;
  }
  std::fflush(stdout);
  return {exit.code, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr()};
}

TEST(PlanCommand, PrintsTheRankOfInkling2Small) {
  const std::string config = (kSource / "configs/inkling-2-small.json").string();
  const Outcome run = nib({"plan", config, "--tensor-parallel-size", "4", "--bandwidth", "4540"});
  EXPECT_EQ(run.code, 0) << run.error;
  for (const char* figure : {"376.09 GB      94.02 GB", "9.40 GB       2.35 GB", "1.85 GB       0.46 GB",
                             "1.85 GB       1.85 GB", "0.17 GB       0.17 GB", "time at 4540 GB/s a rank"})
    EXPECT_THAT(run.out, HasSubstr(figure));
  const Outcome json = nib({"plan", config, "--json"});
  ASSERT_TRUE(parse_json(json.out).ok());
  EXPECT_EQ(parse_json(json.out)->at("cache").at("full_bytes_per_token"), 32768);
}

TEST(PlanCommand, TakesLengthsAsServeDoes) {
  const std::string config = (kSource / "configs/inkling-2-small.json").string();
  struct Case {
    const char* given;
    int64_t tokens;
  };
  for (const Case& c : {Case{"4096", 4096}, Case{"64k", 64'000}, Case{"64K", 65'536}, Case{"1M", 1 << 20},
                        Case{"0.5m", 500'000}, Case{"auto", 1 << 20}, Case{"-1", 1 << 20}}) {
    const Outcome run = nib({"plan", config, "--json", fmt::format("--max-model-len={}", c.given)});
    ASSERT_EQ(run.code, 0) << run.error;
    EXPECT_EQ(parse_json(run.out)->at("max_model_len"), c.tokens) << c.given;
  }
}

TEST(Commands, BadUseAndBadInputEndInOneSentence) {
  const std::string config = (kSource / "configs/inkling-2-small.json").string();
  struct Case {
    std::vector<std::string> args;
    int code;
    const char* error;
  };
  const Case cases[] = {
      {{"plan"}, 2, ""},
      {{"plan", config, "--tensor-parallel-size", "0"}, 2, ""},
      {{"plan", config, "--tensor-parallel-size", "3"}, 1, "nib plan: --tensor-parallel-size 3 does not divide"},
      {{"plan", config, "--bandwidth", "nan"}, 2, ""},
      {{"plan", config, "--max-model-len", "0"}, 2, ""},
      {{"plan", config, "--max-model-len", "64q"}, 2, ""},
      {{"plan", config, "--max-model-len", "-2"}, 2, ""},
      {{"plan", "org/model"}, 1, "nib plan: org/model: neither a folder nor in the Hugging Face cache"},
      {{"inspect", "nowhere"}, 1, "nib inspect: nowhere: no such folder"},
      {{"check", (kSource / "configs").string()}, 1, "config.json: cannot be read"},
      {{"debug", "quantize", "--format", "int3", "--in", "a", "--out", "b"}, 2, ""},
      {{"debug", "quantize", "--format", "nvfp4", "--in", "/no-file", "--out", "b"}, 1, "/no-file: cannot be read"},
  };
  for (const Case& c : cases) {
    const Outcome run = nib(c.args);
    EXPECT_EQ(run.code, c.code) << c.args[0];
    EXPECT_THAT(run.error, HasSubstr(c.error));
    EXPECT_LE(std::count(run.error.begin(), run.error.end(), '\n'), 1);
  }
}

TEST(NumberChecks, TakeFiniteNumbersAndSayWhatTheyWant) {
  for (const char* good : {"1", "0.5", "1e9"}) EXPECT_EQ(positive_number()(std::string(good)), "") << good;
  for (const char* bad : {"0", "-1", "nan", "inf", "x", ""})
    EXPECT_EQ(positive_number()(std::string(bad)), std::string(bad) + ": a number above 0 is expected");
  EXPECT_EQ(non_negative_number()(std::string("0")), "");
  EXPECT_EQ(non_negative_number()(std::string("-0.1")), "-0.1: a number from 0 on is expected");
}

TEST(InspectCommand, ListsTensorsUsesAndConfig) {
  const Outcome run = nib({"inspect", (kSource / "tests/data/oracle/inkling-tiny-nvfp4").string()});
  EXPECT_EQ(run.code, 0) << run.error;
  for (const char* line : {"model.llm.layers.3.mlp.experts.w13_weight.scale2", "131 tensors, 822194 bytes in 1 file",
                           "not used by the text network", "activation scales (not read)", "warning: 4 expert tensors",
                           "\"InklingForConditionalGeneration\""})
    EXPECT_THAT(run.out, HasSubstr(line));
  const Outcome json = nib({"inspect", "--json", (kSource / "tests/data/oracle/inkling2-tiny-a").string()});
  EXPECT_EQ(parse_json(json.out)->at("tensors").size(), 312u);
}

TEST(CheckCommand, PassesAHealthyCheckpointAndFailsADamagedOne) {
  TempFolder temp;
  ASSERT_TRUE(make_tiny_checkpoint({}, temp.path()).ok());
  EXPECT_EQ(nib({"check", temp.path().string()}).code, 0);
  const Result<Checkpoint> c = Checkpoint::open(temp.path());
  const int64_t at = c->find("model.llm.layers.3.mlp.experts.w2_weight_scale")->offset;
  std::fstream file(temp.path() / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(at);
  file.put('\x7f');
  file.close();
  const Outcome run = nib({"check", temp.path().string()});
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.out,
              HasSubstr("problem: model.safetensors: model.llm.layers.3.mlp.experts.w2_weight_scale holds a NaN"));
}

// What cannot be mapped is refused before it is opened: a pipe would never end.
TEST(CheckCommand, NamesAShardThatIsNoFile) {
  struct Case {
    const char* name;
    std::function<void(const fs::path&)> make;
    const char* error;
  };
  const Case cases[] = {
      {"a pipe", [](const fs::path& p) { ASSERT_EQ(::mkfifo(p.c_str(), 0600), 0); }, "it is a pipe, a socket or a"},
      {"a folder", [](const fs::path& p) { fs::create_directory(p); }, "it is a folder, not a file"},
      {"a device", [](const fs::path& p) { fs::create_symlink("/dev/zero", p); }, "it is a pipe, a socket or a device"},
      {"a link to itself", [](const fs::path& p) { fs::create_symlink(p, p); }, "model-00002-of-00003.safetensors"},
  };
  for (const char* file : {"model-00002-of-00003.safetensors", "config.json", "model.safetensors.index.json"})
    for (const Case& c : cases) {
      TempFolder temp;
      ASSERT_TRUE(make_tiny_checkpoint({.num_shards = 3}, temp.path()).ok());
      ASSERT_TRUE(fs::remove(temp.path() / file));
      c.make(temp.path() / file);
      const Outcome run = nib({"check", temp.path().string()});
      EXPECT_EQ(run.code, 1) << file << " is " << c.name;
      if (std::string_view(c.name) != "a link to itself") {
        EXPECT_THAT(run.error, AllOf(HasSubstr(file), HasSubstr(c.error)));
      }
      EXPECT_EQ(std::count(run.error.begin(), run.error.end(), '\n'), 1) << run.error;
    }
}

TEST(Commands, AFileInsteadOfItsFolderIsNamedWithTheFolder) {
  TempFolder temp;
  ASSERT_TRUE(make_tiny_checkpoint({}, temp.path()).ok());
  for (const char* file : {"config.json", "model.safetensors"})
    EXPECT_THAT(nib({"check", temp.path() / file}).error,
                HasSubstr(fmt::format("{}: is no folder; MODEL is the folder that holds config.json, tokenizer and "
                                      "weights: give {} if it does",
                                      (temp.path() / file).string(), temp.path().string())));
}

// ------------------------------------------------------------------------------------------------ debug quantize

OutTensor f32(const char* name, std::vector<int64_t> shape, const std::vector<float>& values) {
  OutTensor t{name, DType::kF32, std::move(shape), std::vector<std::byte>(values.size() * sizeof(float))};
  std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}

std::vector<float> floats(const std::string& hex) {
  std::vector<float> out;
  for (size_t i = 0; i < hex.size(); i += 8)
    out.push_back(std::bit_cast<float>(static_cast<uint32_t>(std::stoul(hex.substr(i, 8), nullptr, 16))));
  return out;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  for (std::byte b : bytes) out += fmt::format("{:02x}", static_cast<int>(b));
  return out;
}

std::string float_hex(std::span<const std::byte> bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 4) {
    uint32_t word = 0;
    std::memcpy(&word, bytes.data() + i, 4);
    out += fmt::format("{:08x}", word);
  }
  return out;
}

// All vectors of a file as the rows of one matrix, each with its own amax.
TEST(QuantizeCommand, WritesTheVectorsOfFourOverSix) {
  const Json vectors = read_json_file(kSource / "tests/data/quantization/four_over_six.json")->at("vectors");
  std::vector<float> x, amax;
  std::string packed, dequantized, scales, outer;
  for (const Json& v : vectors) {
    for (float f : floats(v["x_bits"])) x.push_back(f);
    amax.push_back(floats(v["amax_bits"])[0]);
    const Json& c = v["configs"][0];  // the defaults: token, 256, mae
    packed += c["packed_hex"];
    dequantized += c["dequant_bits"];
    outer += c["s_dec_bits"];
    scales += fmt::format("{:02x}", c["scale_byte"].get<int>());
  }
  TempFolder temp;
  const int64_t n = static_cast<int64_t>(amax.size());
  const std::string in = temp.path() / "in", out = temp.path() / "out";
  ASSERT_TRUE(write_safetensors(in, std::vector{f32("x", {n, 16}, x), f32("amax", {n}, amax)}).ok());
  const Outcome run = nib({"debug", "quantize", "--format", "nvfp4", "--in", in, "--out", out});
  ASSERT_EQ(run.code, 0) << run.error;
  const Result<Checkpoint> file = Checkpoint::open_file(out);
  const auto bytes = [&](const char* name) { return file->data(*file->find(name)); };
  EXPECT_EQ(hex(bytes("codes")), packed);
  EXPECT_EQ(hex(bytes("scales")), scales);
  EXPECT_EQ(float_hex(bytes("dequantized")), dequantized);
  EXPECT_EQ(float_hex(bytes("global_scale")), outer);
}

TEST(QuantizeCommand, RefusesWhatIsNoFiniteNumberByItsPlace) {
  TempFolder temp;
  const std::string in = temp.path() / "in", out = temp.path() / "out";
  const float nan = NAN, infinity = INFINITY;
  struct Case {
    float x, amax;
    const char* error;
  };
  for (const Case& c : {Case{nan, 1, "in: x is nan at [1, 5]"}, Case{-infinity, 1, "in: x is -inf at [1, 5]"},
                        Case{1, infinity, "in: amax is inf at [2]"}})
    for (const char* format : {"nvfp4", "mxfp8"}) {
      if (std::string_view(format) == "mxfp8" && c.x == 1) continue;  // reads no amax
      std::vector<float> x(3 * 32, 0.5f), amax = {1, 1, c.amax};
      x[32 + 5] = x[32 + 9] = c.x;
      ASSERT_TRUE(write_safetensors(in, std::vector{f32("x", {3, 32}, x), f32("amax", {3}, amax)}).ok());
      const Outcome run = nib({"debug", "quantize", "--format", format, "--in", in, "--out", out});
      EXPECT_EQ(run.code, 1);
      EXPECT_THAT(run.error, HasSubstr(c.error)) << format;
      EXPECT_FALSE(fs::exists(out));
    }
}

TEST(QuantizeCommand, ComputesMissingMaximaAndShapesItsOutput) {
  TempFolder temp;
  const std::string in = temp.path() / "in", out = temp.path() / "out";
  std::vector<float> x(3 * 64);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3;
  ASSERT_TRUE(write_safetensors(in, std::vector{f32("x", {3, 64}, x)}).ok());
  struct Case {
    std::vector<std::string> flags;
    std::vector<int64_t> codes, scales, global;  // shapes; global empty: absent
  };
  const Case cases[] = {
      {{"--format", "nvfp4"}, {3, 32}, {3, 4}, {3}},
      {{"--format", "nvfp4", "--scope", "tensor", "--error", "mse", "--ceiling", "448"}, {3, 32}, {3, 4}, {1}},
      {{"--format", "nvfp4", "--rule", "six"}, {3, 32}, {3, 4}, {3}},
      {{"--format", "mxfp8", "--mx-rule", "floor"}, {3, 64}, {3, 2}, {}},
  };
  for (const Case& c : cases) {
    std::vector<std::string> args = {"debug", "quantize", "--in", in, "--out", out};
    args.insert(args.end(), c.flags.begin(), c.flags.end());
    ASSERT_EQ(nib(args).code, 0);
    const Result<Checkpoint> file = Checkpoint::open_file(out);
    EXPECT_EQ(file->find("codes")->shape, c.codes);
    EXPECT_EQ(file->find("scales")->shape, c.scales);
    EXPECT_EQ(file->find("dequantized")->shape, (std::vector<int64_t>{3, 64}));
    const TensorInfo* global = file->find("global_scale");
    EXPECT_EQ(global ? global->shape : std::vector<int64_t>{}, c.global);
  }
}

}  // namespace
}  // namespace nib::cli
