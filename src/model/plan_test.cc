// Plans against the published arithmetic of Inkling 2 Small and against the files of small checkpoints.
#include "model/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/quant_config.h"
#include "model/self_check.h"
#include "model/testing/make_checkpoint.h"
#include "model/weight_reader.h"

namespace nib {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kSource = NIB_SOURCE_DIR;

int64_t of(const std::array<int64_t, kNumTensorKinds>& bytes, TensorKind kind) {
  return bytes[static_cast<size_t>(kind)];
}

// As a person would print it: two digits behind the point.
std::string gb(int64_t bytes) { return fmt::format("{:.2f}", static_cast<double>(bytes) / 1e9); }

MemoryPlan plan_of_small(const PlanOptions& options) {
  const Result<ModelShape> shape = ModelShape::load(kSource / "configs/inkling-2-small.json");
  EXPECT_TRUE(shape.ok()) << shape.status().message();
  const Result<MemoryPlan> plan = plan_memory(*shape, options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return *plan;
}

TEST(Plan, WeightsOfInkling2SmallAreThePublishedOnes) {
  const MemoryPlan p = plan_of_small({.tensor_parallel_size = 4});
  EXPECT_EQ(gb(of(p.weights_all_ranks, TensorKind::kExpert)), "376.09");
  EXPECT_EQ(gb(p.nvfp4_experts_all_ranks), "275.19");
  EXPECT_EQ(gb(p.mxfp8_experts_all_ranks), "100.90");
  struct Case {
    TensorKind kind;
    const char* rank;
  };
  for (const Case c :
       {Case{TensorKind::kExpert, "94.02"}, Case{TensorKind::kAttention, "2.35"}, Case{TensorKind::kHead, "0.46"},
        Case{TensorKind::kEmbed, "1.85"}, Case{TensorKind::kRouter, "0.17"}})
    EXPECT_EQ(gb(of(p.weights, c.kind)), c.rank) << name(c.kind);
  EXPECT_NEAR(static_cast<double>(p.weight_bytes()) / 1e9, 98.9, 0.05);
}

TEST(Plan, OneTokenTouchesThePublishedBytes) {
  const MemoryPlan p = plan_of_small({.tensor_parallel_size = 4, .bandwidth_gb_s = 1000});
  EXPECT_NEAR(static_cast<double>(of(p.touched_all_ranks, TensorKind::kExpert)) / 1e9, 7.8, 0.05);
  EXPECT_NEAR(static_cast<double>(of(p.touched_all_ranks, TensorKind::kAttention)) / 1e9, 9.4, 0.05);
  EXPECT_EQ(gb(of(p.touched_all_ranks, TensorKind::kHead)), "1.85");
  EXPECT_EQ(of(p.touched_all_ranks, TensorKind::kEmbed), 2 * 4608);
  EXPECT_DOUBLE_EQ(p.token_ms(), static_cast<double>(p.touched_bytes() + p.touched_cache) / 1e9);
}

TEST(Plan, CachesOfInkling2SmallAreThePublishedOnes) {
  struct Case {
    int64_t ranks, full_per_token;
    const char *million, *window_mb, *conv_mb;
  };
  const Case cases[] = {
      {1, 32768, "34.4", "167.8", "3.24"}, {4, 8192, "8.6", "41.9", "0.81"}, {8, 4096, "4.3", "21.0", "0.41"}};
  for (const Case& c : cases) {
    const MemoryPlan p = plan_of_small({.tensor_parallel_size = c.ranks});
    EXPECT_EQ(p.full_per_token, c.full_per_token);
    EXPECT_EQ(p.kv_full, c.full_per_token * 1048576);
    EXPECT_EQ(fmt::format("{:.1f}", static_cast<double>(p.kv_full) / 1e9), c.million);
    EXPECT_EQ(fmt::format("{:.1f}", static_cast<double>(p.window_per_sequence) / 1e6), c.window_mb);
    EXPECT_EQ(fmt::format("{:.2f}", static_cast<double>(p.conv_per_sequence) / 1e6), c.conv_mb);
    EXPECT_EQ(p.bank_per_token, 82944);
  }
}

TEST(Plan, ACheckpointIsPlannedByItsOwnBytes) {
  for (const TinyOptions& o :
       {TinyOptions{}, TinyOptions{.dtype = DType::kF32, .experts = TinyOptions::Experts::kPlain},
        TinyOptions{.generation = Generation::kInkling, .experts = TinyOptions::Experts::kNvfp4}}) {
    TempFolder temp;
    ASSERT_TRUE(make_tiny_checkpoint(o, temp.path()).ok());
    const Result<ModelShape> shape = ModelShape::load(temp.path());
    ASSERT_TRUE(shape.ok()) << shape.status().message();
    const MemoryPlan p = *plan_memory(*shape, {});
    const Result<Checkpoint> checkpoint = Checkpoint::open(temp.path());
    int64_t read = 0;  // the first generation also has scales of the activations, which nothing reads
    for (const auto& [name, t] : checkpoint->tensors())
      if (name.find("input_amax") == std::string::npos && name.find("original_shape") == std::string::npos)
        read += t.bytes;
    EXPECT_EQ(p.weight_bytes(), read);
    EXPECT_EQ(p.converted, 0);
  }
}

TEST(Plan, CopiesMadeWhileLoadingAreCounted) {
  TempFolder temp;
  ASSERT_TRUE(make_tiny_checkpoint({.dtype = DType::kF16, .experts = TinyOptions::Experts::kPlain}, temp.path()).ok());
  const MemoryPlan p = *plan_memory(*ModelShape::load(temp.path()), {});
  EXPECT_GT(p.converted, p.weight_bytes());  // F16 becomes F32
}

TEST(Plan, RanksMustDivideTheSizes) {
  const Result<ModelShape> shape = ModelShape::load(kSource / "configs/inkling-2-small.json");
  struct Case {
    int64_t ranks;
    const char* want;
  };
  for (const Case c : {Case{5, "--tensor-parallel-size 5 does not divide the 8 KV heads"},
                       Case{16, "--tensor-parallel-size 16 does not divide the 8 KV heads"}})
    EXPECT_THAT(plan_memory(*shape, {.tensor_parallel_size = c.ranks}).status().message(), HasSubstr(c.want));
  EXPECT_THAT(plan_memory(*shape, {.max_model_len = 2000000}).status().message(),
              HasSubstr("--max-model-len 2000000 is more than the 1048576 positions"));
}

TEST(Plan, AModelLargerThanMemoryIsRefusedBeforeAnythingIsMapped) {
  const MemoryPlan p = plan_of_small({});
  EXPECT_TRUE(check_fits(p, p.total_bytes()).ok());
  EXPECT_THAT(check_fits(p, p.total_bytes() - 1).message(), HasSubstr("the model needs 42"));
  TempFolder temp;
  ASSERT_TRUE(make_tiny_checkpoint({}, temp.path()).ok());
  Result<Checkpoint> checkpoint = Checkpoint::open(temp.path());
  const Result<OpenedWeights> opened = open_weights(*ModelConfig::load(temp.path()), *std::move(checkpoint), 1'000'000);
  EXPECT_THAT(opened.status().message(), HasSubstr("the weights take 0.00 GB (experts 0.00, attention 0.00, "));
  EXPECT_GT(memory_limit_bytes(), int64_t{64} << 20);
}

TEST(Plan, JsonHoldsEveryByte) {
  const Json j = plan_of_small({.tensor_parallel_size = 8, .max_model_len = 4096, .max_num_seqs = 3}).json();
  EXPECT_EQ(j["cache"]["full_bytes"].get<int64_t>(), 3 * 4096 * 4096);
  EXPECT_EQ(j["weights"]["experts"]["all_bytes"].get<int64_t>() / 1000000000, 376);
  EXPECT_FALSE(j.contains("token_ms"));
}

TEST(DeclaredPrecision, IsACrossCheckOnly) {
  struct Case {
    Json declared;
    std::vector<std::string> want;  // beginnings of the warnings about a checkpoint whose experts are all NVFP4
  };
  const auto layers = [](const char* algo, const Json& extra) {
    Json modules = Json::object();
    for (int i = 0; i < 12; ++i) {
      Json settings = {{"quant_algo", algo}};
      settings.update(extra);
      modules[fmt::format("model.llm.layers.{}.mlp.experts", i)] = settings;
    }
    return Json{{"quantization", {{"quant_algo", "MIXED_PRECISION"}, {"quantized_layers", modules}}}};
  };
  const Case cases[] = {
      {Json::object(), {}},
      {{{"quant_algo", "NVFP4"}}, {}},
      {layers("NVFP4", Json::object()), {}},
      {layers("NVFP4", {{"block_size", {32, 32}}}), {}},  // as published; the shapes of the stored scales decide
      {layers("MXFP8", Json::object()), {"24 expert tensors differ from the declared precision"}},
      {{{"quant_algo", "NVFP4"}, {"exclude_modules", {"model.llm.layers.1.mlp"}}},
       {"2 expert tensors differ from the declared precision (the first: model.llm.layers.1.mlp.experts.w13_weight is "
        "NVFP4 but declared BF16)"}},
      {{{"quant_algo", "NVFP4"}, {"exclude_modules", {"model.llm.layers.1.mlp.exp"}}}, {}},  // not at a dot
      {{{"quant_algo", 7}, {"quantized_layers", "all"}}, {}},
  };
  TempFolder temp;
  ASSERT_TRUE(make_tiny_checkpoint({.experts = TinyOptions::Experts::kNvfp4}, temp.path()).ok());
  const Result<Checkpoint> checkpoint = Checkpoint::open(temp.path());
  const Result<Binding> binding = bind_tensors(*ModelConfig::load(temp.path()), *checkpoint);
  ASSERT_TRUE(binding.ok());
  for (const Case& c : cases) {
    const std::vector<std::string> got = cross_check(DeclaredPrecision::from_json(c.declared), *binding);
    ASSERT_EQ(got.size(), c.want.size()) << c.declared;
    for (size_t i = 0; i < got.size(); ++i) EXPECT_THAT(got[i], HasSubstr(c.want[i]));
  }
}

TEST(SelfCheck, FindsWhatNoHealthyCheckpointHolds) {
  TempFolder temp;
  ASSERT_TRUE(make_tiny_checkpoint({}, temp.path()).ok());
  EXPECT_TRUE(self_check(temp.path())->problems.empty());
  const fs::path file = temp.path() / "model.safetensors";
  std::vector<OutTensor> tensors;
  {
    const Result<Checkpoint> c = Checkpoint::open_file(file);
    for (const auto& [name, t] : c->tensors()) {
      const auto bytes = c->data(t);
      tensors.push_back({name, t.dtype, t.shape, {bytes.begin(), bytes.end()}});
      OutTensor& out = tensors.back();
      if (name == "model.llm.norm.weight") out.bytes[7] = std::byte{0x7f}, out.bytes[6] = std::byte{0x80};
      if (name == "model.llm.layers.11.mlp.experts.w2_weight") out.bytes[9] = std::byte{0xff};
      if (name == "model.llm.layers.3.mlp.experts.w2_weight_scale") out.bytes[5] = std::byte{0x7f};
      if (name == "model.llm.layers.4.mlp.experts.w2_weight_amax") out.bytes[4 * 2 + 3] |= std::byte{0x80};
      if (name == "model.llm.layers.5.mlp.experts.w2_weight_outer_scale_denominator")
        std::ranges::fill(out.bytes, std::byte{0});
    }
  }
  ASSERT_TRUE(write_safetensors(file, tensors).ok());
  EXPECT_THAT(self_check(temp.path())->problems,
              ElementsAre(HasSubstr("model.llm.norm.weight holds NaN or infinity at element 3"),
                          HasSubstr("layers.3.mlp.experts.w2_weight_scale holds a NaN or negative scale at element 5"),
                          HasSubstr("outer scale of model.llm.layers.4.mlp.experts.w2_weight for expert 2 is -"),
                          HasSubstr("outer scale of model.llm.layers.5.mlp.experts.w2_weight for expert 0 is inf"),
                          HasSubstr("layers.11.mlp.experts.w2_weight holds NaN or infinity at element 9")));
}

// The inventory of the first generation's large checkpoints, which are published to the byte.
TEST(Plan, TheFirstGenerationsPublishedBytesAreReproduced) {
  TinyOptions o{.generation = Generation::kInkling,
                .num_layers = 42,
                .hidden_size = 4096,
                .num_heads = 32,
                .num_kv_heads = 8,
                .head_dim = 128,
                .d_rel = 16,
                .window = 512,
                .extent = 1024,
                .num_experts = 256,
                .top_k = 6,
                .expert_width = 2048,
                .vocab_size = 201024,
                .unpadded_vocab_size = 200058,
                .num_dense_layers = 2,
                .dense_width = 16384};
  o.text_config["swa_num_key_value_heads"] = 8;
  TempFolder temp;
  const fs::path file = temp.path() / "config.json";
  ASSERT_TRUE(write_json_file(file, tiny_config(o)).ok());
  const MemoryPlan p = *plan_memory(*ModelShape::load(file), {});
  // 531,912,898,740 bytes in all, less vision and audio towers and the drafting heads, which the text network does not
  // read; its scalars are BF16 in the file (4 bytes each here) where the table says so.
  const int64_t drafting = 4'463'824'912;
  const int64_t towers =
      2 * (75 * 128 + 512 * 320 + 5120 * 4800 + 9600 * 4096 + 128 + 320 + 4800 + 4096 + 1280 * 4096 + 4096);
  EXPECT_EQ(p.weight_bytes(), 531'912'898'740 - drafting - towers);
}

}  // namespace
}  // namespace nib
