// Loading: every storage of the same values gives the same weights, and every damage gives one sentence.
#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "model/safetensors.h"
#include "model/testing/make_checkpoint.h"

namespace nib {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kOracle = fs::path(NIB_SOURCE_DIR) / "tests/data/oracle";

float value(const Weight& w, int64_t row, int64_t column) {
  const int64_t i = row * w.in + column;
  switch (w.format) {
    case WeightFormat::kF32:
      return static_cast<const float*>(w.data)[i];
    case WeightFormat::kBF16:
      return float(static_cast<const bf16*>(w.data)[i]);
    case WeightFormat::kNvfp4: {
      const uint8_t byte = static_cast<const uint8_t*>(w.data)[i / 2];
      return kE2M1[i % 2 ? byte >> 4 : byte & 15] * e4m3_to_float(w.scales[i / 16]) * w.outer;
    }
    case WeightFormat::kMxfp8:
      return e4m3_to_float(static_cast<const uint8_t*>(w.data)[i]) * e8m0_to_float(w.scales[i / 32]);
  }
  return NAN;
}

void append(std::vector<float>& out, const Weight& w) {
  for (int64_t r = 0; r < w.out; ++r)
    for (int64_t c = 0; c < w.in; ++c) out.push_back(value(w, r, c));
}
void append(std::vector<float>& out, const std::vector<Weight>& ws) {
  for (const Weight& w : ws) append(out, w);
}
template <class T, int N>
void append(std::vector<float>& out, View<const T, N> x) {
  if (x.empty()) return;
  for (int64_t i = 0; i < x.size(); ++i) out.push_back(as_float(x.data()[i]));
}

// All values of a network in one order.
template <class T>
std::vector<float> all_values(const Inkling2Weights<T>& w) {
  std::vector<float> out;
  append(out, w.embed), append(out, w.unembed), append(out, w.embed_norm), append(out, w.norm);
  append(out, w.output_query);
  for (const auto& y : w.layers) {
    for (const auto& q : y.queries) append(out, q);
    for (const auto& g : y.norms) append(out, g);
    for (const Weight* m : {&y.q, &y.k, &y.v, &y.r, &y.gate, &y.sink, &y.o, &y.k_tap_proj, &y.v_tap_proj, &y.router})
      append(out, *m);
    for (const auto& t : {y.table, y.k_taps, y.v_taps, y.attn_taps, y.mlp_taps}) append(out, t);
    for (const auto& s : {y.q_scale, y.k_scale, y.r_scale, y.mlp_norm}) append(out, s);
    append(out, y.mlp_query), append(out, y.router_bias), out.push_back(y.router_global_scale);
    append(out, y.w13), append(out, y.w2);
  }
  return out;
}
template <class T>
std::vector<float> all_values(const InklingWeights<T>& w) {
  std::vector<float> out;
  append(out, w.embed), append(out, w.unembed), append(out, w.embed_norm), append(out, w.norm);
  for (const auto& y : w.layers) {
    for (const Weight* m : {&y.q, &y.k, &y.v, &y.r, &y.o, &y.dense_w13, &y.dense_w2, &y.router}) append(out, *m);
    for (const auto& t : {y.table, y.k_taps, y.v_taps, y.attn_taps, y.mlp_taps}) append(out, t);
    for (const auto& g : {y.attn_norm, y.mlp_norm, y.q_norm, y.k_norm}) append(out, g);
    append(out, y.router_bias);
    out.push_back(y.router_global_scale), out.push_back(y.dense_global_scale);
    append(out, y.w13), append(out, y.w2), append(out, y.shared_w13), append(out, y.shared_w2);
  }
  return out;
}

Result<std::vector<float>> load_values(const fs::path& folder) {
  NIB_ASSIGN(const ModelConfig config, ModelConfig::load(folder));
  NIB_ASSIGN(Checkpoint checkpoint, Checkpoint::open(folder));
  if (config.generation == Generation::kInkling) {
    NIB_ASSIGN(const InklingWeights<float> w, load_inkling<float>(config, std::move(checkpoint), true));
    return all_values(w);
  }
  NIB_ASSIGN(const Inkling2Weights<float> w, load_inkling2<float>(config, std::move(checkpoint), true));
  return all_values(w);
}

std::vector<float> values_of(const TinyOptions& options) {
  TempFolder temp;
  const Result<fs::path> folder = make_tiny_checkpoint(options, temp.path());
  EXPECT_TRUE(folder.ok()) << folder.status().message();
  const Result<std::vector<float>> values = load_values(temp.path());
  EXPECT_TRUE(values.ok()) << values.status().message();
  return values.ok() ? *values : std::vector<float>{};
}

std::string load_error(const fs::path& folder) {
  const Result<std::vector<float>> values = load_values(folder);
  return values.ok() ? "loads" : values.status().message();
}

constexpr TinyOptions::Experts kPlain = TinyOptions::Experts::kPlain;
using Companions = TinyOptions::Companions;

TEST(Weights, EveryOracleLoadsInBothActivationTypes) {
  for (const char* name : {"inkling-tiny-a", "inkling-tiny-nvfp4", "inkling2-tiny-a"}) {
    EXPECT_TRUE(load_values(kOracle / name).ok()) << load_error(kOracle / name);
  }
  const Result<ModelConfig> config = ModelConfig::load(kOracle / "inkling2-tiny-a");
  Result<Checkpoint> checkpoint = Checkpoint::open(kOracle / "inkling2-tiny-a");
  ASSERT_TRUE(checkpoint.ok());
  const Result<Inkling2Weights<bf16>> w = load_inkling2<bf16>(*config, *std::move(checkpoint), true);
  ASSERT_TRUE(w.ok()) << w.status().message();
  EXPECT_EQ(w->layers[0].queries.size(), 0u);
  EXPECT_EQ(w->layers[4].queries.size(), 1u);
  EXPECT_EQ(w->layers[5].queries.size(), 3u);
  EXPECT_EQ(w->unembed.out, 270);
  EXPECT_EQ(w->layers[9].w13[8].format, WeightFormat::kNvfp4);
  EXPECT_EQ(w->layers[10].w13[8].format, WeightFormat::kMxfp8);
}

// The hand-made bytes of one row: each storage form of the format table, decoded.
TEST(Weights, PackedExpertsDecodeAsTheFormatsSay) {
  const Result<ModelConfig> config = ModelConfig::load(kOracle / "inkling2-tiny-a");
  Result<Checkpoint> checkpoint = Checkpoint::open(kOracle / "inkling2-tiny-a");
  Result<Checkpoint> raw = Checkpoint::open(kOracle / "inkling2-tiny-a");
  ASSERT_TRUE(raw.ok() && raw->map().ok());
  const Result<Inkling2Weights<float>> w = load_inkling2<float>(*config, *std::move(checkpoint), true);
  ASSERT_TRUE(w.ok());
  const auto bytes = [&](const std::string& name) {
    const TensorInfo* t = raw->find("model.llm.layers.3.mlp.experts.w2_weight" + name);
    return reinterpret_cast<const uint8_t*>(raw->data(*t).data());
  };
  const int64_t e = 7, row = 5, N = 64, K = 32;
  const float amax = reinterpret_cast<const float*>(bytes("_amax"))[e];
  for (int64_t k = 0; k < K; ++k) {
    const uint8_t byte = bytes("")[((e * N + row) * K + k) / 2];
    const float code = kE2M1[k % 2 ? byte >> 4 : byte & 15];
    const float scale = e4m3_to_float(bytes("_scale")[((e * N + row) * K + k) / 16]);
    EXPECT_EQ(value(w->layers[3].w2[e], row, k), code * scale * (amax / 2688.0f)) << k;
  }
}

TEST(Weights, EveryStorageOfTheSameValuesLoadsTheSame) {
  struct Case {
    const char* what;
    TinyOptions a, b;
  };
  constexpr Generation kFirst = Generation::kInkling;
  const TinyOptions::Experts kNvfp4 = TinyOptions::Experts::kNvfp4;
  const Case cases[] = {
      {"BF16 and F32", {.experts = kPlain}, {.dtype = DType::kF32, .experts = kPlain}},
      {"BF16 and F16", {.experts = kPlain}, {.dtype = DType::kF16, .experts = kPlain}},
      {"BF16 and F16, first generation",
       {.generation = kFirst, .experts = kPlain},
       {.generation = kFirst, .dtype = DType::kF16, .experts = kPlain}},
      {"split and fused projections", {}, {.fused_qkvr = true}},
      {"split and fused, gate per head",
       {.gate = TinyOptions::Gate::kHead},
       {.fused_qkvr = true, .gate = TinyOptions::Gate::kHead}},
      {"split and fused, no gate",
       {.gate = TinyOptions::Gate::kNone},
       {.fused_qkvr = true, .gate = TinyOptions::Gate::kNone}},
      {"three norms and one stacked", {}, {.stacked_norms = true}},
      {"one file and five shards", {}, {.num_shards = 5}},
      {"E8M0 and U8 scales", {}, {.u8_scales = true}},
      {"denominators [] and [1]", {}, {.denominator_shape = TinyOptions::DenominatorShape::kOne}},
      {"denominators [] and [E]", {}, {.denominator_shape = TinyOptions::DenominatorShape::kPerExpert}},
      {"companions of ModelOpt", {.experts = kNvfp4}, {.experts = kNvfp4, .companions = Companions::kModelOpt}},
      {"original names and transformers, packed",
       {.generation = kFirst, .experts = kNvfp4},
       {.generation = kFirst, .experts = kNvfp4, .hf_names = true}},
      {"original names and transformers, BF16",
       {.generation = kFirst, .experts = kPlain},
       {.generation = kFirst, .experts = kPlain, .hf_names = true}},
  };
  for (const Case& c : cases) {
    const std::vector<float> a = values_of(c.a);
    EXPECT_GT(a.size(), 100000u) << c.what;
    EXPECT_TRUE(a == values_of(c.b)) << c.what;
  }
}

// compressed-tensors keeps the reciprocal of the outer scale, so that the last bit may differ.
TEST(Weights, ReciprocalOuterScalesDecodeWithinOneRounding) {
  const std::vector<float> a = values_of({.experts = TinyOptions::Experts::kNvfp4});
  const std::vector<float> b =
      values_of({.experts = TinyOptions::Experts::kNvfp4, .companions = Companions::kCompressedTensors});
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2.5e-7f * std::fabs(a[i])) << i;
}

TEST(Weights, OptionalTensorsAreReadWhereTheyAre) {
  TempFolder temp;
  ASSERT_TRUE(make_tiny_checkpoint({.denominator = 1536,
                                    .clip_scales = true,
                                    .global_scale = true,
                                    .plain_tap_names = true,
                                    .text_config = {{"sink_source", "rel_table"}, {"rel_extent", nullptr}}},
                                   temp.path())
                  .ok());
  const Result<ModelConfig> config = ModelConfig::load(temp.path());
  ASSERT_TRUE(config.ok()) << config.status().message();
  Result<Checkpoint> checkpoint = Checkpoint::open(temp.path());
  const Result<Inkling2Weights<bf16>> w = load_inkling2<bf16>(*config, *std::move(checkpoint), true);
  ASSERT_TRUE(w.ok()) << w.status().message();
  EXPECT_EQ(w->layers[0].q_scale.dim(0), 16);
  EXPECT_EQ(w->layers[0].r_scale.dim(0), 4);
  EXPECT_NE(w->layers[0].router_global_scale, 1.0f);
  EXPECT_TRUE(w->layers[0].sink.empty());
  EXPECT_EQ(w->layers[0].table.dim(1), 8 + 1);     // window and the sink's column
  EXPECT_EQ(w->layers[5].table.dim(1), 1024 + 1);  // no rel_extent: the checkpoint's width
  EXPECT_EQ(w->layers[5].k_tap_proj.out, 2 * 4);
  EXPECT_TRUE(w->layers[5].k_taps.empty());
}

// ------------------------------------------------------------------------------------------------ damage

std::vector<OutTensor> read_all(const fs::path& file) {
  const Result<Checkpoint> c = Checkpoint::open_file(file);
  EXPECT_TRUE(c.ok());
  std::vector<OutTensor> out;
  for (const auto& [name, t] : c->tensors()) {
    const auto bytes = c->data(t);
    out.push_back({name, t.dtype, t.shape, {bytes.begin(), bytes.end()}});
  }
  return out;
}

// The error after one tensor of a good checkpoint was changed.
std::string error_after(const TinyOptions& options, const std::string& name,
                        const std::function<void(std::vector<OutTensor>&, OutTensor&)>& change) {
  TempFolder temp;
  EXPECT_TRUE(make_tiny_checkpoint(options, temp.path()).ok());
  const fs::path file = temp.path() / "model.safetensors";
  std::vector<OutTensor> tensors = read_all(file);
  const auto it = std::find_if(tensors.begin(), tensors.end(), [&](const OutTensor& t) { return t.name == name; });
  EXPECT_NE(it, tensors.end()) << name;
  change(tensors, *it);
  EXPECT_TRUE(write_safetensors(file, tensors).ok());
  return load_error(temp.path());
}

TEST(Weights, DamageIsNamedWithWhatWasExpected) {
  using All = std::vector<OutTensor>&;
  struct Case {
    const char* tensor;
    std::function<void(std::vector<OutTensor>&, OutTensor&)> change;
    const char* want;
  };
  const std::string e3 = "model.llm.layers.3.mlp.experts.w13_weight", e11 = "model.llm.layers.11.mlp.experts.w2_weight";
  const std::string e3_scale = e3 + "_scale", e3_amax = e3 + "_amax", e11_scale = e11 + "_scale";
  const auto drop = [](All all, OutTensor& t) { all.erase(all.begin() + (&t - all.data())); };
  const Case cases[] = {
      {"model.llm.layers.3.attn.wq_du.weight",
       [](All, OutTensor& t) {
         t.shape = {96, 32};
         t.bytes.resize(96 * 32 * 2);
       },
       "model.safetensors: model.llm.layers.3.attn.wq_du.weight is [96, 32], expected [96, 64]"},
      {"model.llm.layers.3.attn.wq_du.weight", drop,
       "model.llm.layers.3.attn.wq_du.weight is missing, expected BF16 [96, 64]"},
      {"model.llm.layers.5.attn_res_query", drop,
       "model.llm.layers.5.attn_res_query or model.llm.layers.5.attn_query is missing, expected F32 [3, 64]"},
      {"model.llm.norm.weight",
       [](All, OutTensor& t) {
         t.dtype = DType::kU8;
         t.bytes.resize(64);
       },
       "model.safetensors: model.llm.norm.weight is U8, expected BF16, F32 or F16 [64]"},
      {"model.llm.norm.weight", [](All all, OutTensor& t) { all.push_back(t), all.back().name = "model.llm.extra"; },
       "model.llm.extra (BF16 [64]) is not read by the Inkling 2 network"},
      {e3_scale.c_str(), drop, "w13_weight is packed but model.llm.layers.3.mlp.experts.w13_weight_scale is missing"},
      {e3_amax.c_str(), drop, "needs one outer scale"},
      {e3_scale.c_str(), [](All, OutTensor& t) { t.bytes[70] = std::byte{0x7f}; },
       "w13_weight_scale holds 0x7f at element 70, which is NaN"},
      {e3_scale.c_str(), [](All, OutTensor& t) { t.bytes[71] = std::byte{0x88}; },
       "w13_weight_scale holds 0x88 at element 71, which is negative"},
      {e11_scale.c_str(), [](All, OutTensor& t) { t.bytes[2] = std::byte{0xff}; },
       "w2_weight_scale holds 0xff at element 2, which is NaN"},
      {e11_scale.c_str(),
       [](All, OutTensor& t) {
         t.shape = {9, 1, 64};
       },
       "w2_weight_scale is F8_E8M0 [9, 1, 64], expected F8_E8M0 [9, 64, 1]"},
      {e3_amax.c_str(), [](All, OutTensor& t) { t.bytes[3] = std::byte{0xff}, t.bytes[2] = std::byte{0xc0}; },
       "the outer scale of model.llm.layers.3.mlp.experts.w13_weight for expert 0 is"},
      {e3.c_str(), [](All, OutTensor& t) { t.dtype = DType::kE4M3; }, "is F8_E4M3 (MXFP8) but has an outer scale"},
      {e3.c_str(),
       [](All, OutTensor& t) {
         t.dtype = DType::kI64, t.shape = {9, 64, 4};
       },
       "expected BF16, F32, F16, U8 (NVFP4) or F8_E4M3 (MXFP8)"},
  };
  for (const Case& c : cases) EXPECT_THAT(error_after({}, c.tensor, c.change), HasSubstr(c.want));
}

TEST(Weights, TensorsOfOtherModalitiesAreCountedAndLeftAlone) {
  const std::string loads = error_after({}, "model.llm.norm.weight", [](std::vector<OutTensor>& all, OutTensor& t) {
    const OutTensor copy = t;
    for (const char* name : {"model.visual.norm.weight", "model.audio.norm.weight", "model.mtp.norm.weight"}) {
      all.push_back(copy);
      all.back().name = name;
    }
  });
  EXPECT_EQ(loads, "loads");
}

TEST(Weights, TheSameSeedGivesTheSameCheckpoint) {
  EXPECT_TRUE(values_of({.seed = 3}) == values_of({.seed = 3}));
  EXPECT_FALSE(values_of({.seed = 3}) == values_of({.seed = 4}));
}

}  // namespace
}  // namespace nib
