// config.json of both generations: spellings, switches, and what is refused.
#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "model/generation_config.h"
#include "model/testing/make_checkpoint.h"

namespace nib {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kSource = NIB_SOURCE_DIR;

Json text_of(Generation generation) { return tiny_config({.generation = generation}); }

std::string error_of(const Json& config) {
  const Result<ModelConfig> c = ModelConfig::from_json(config);
  return c.ok() ? "reads" : c.status().message();
}

TEST(Config, ReadsTheOracleOfEachGeneration) {
  const Result<ModelConfig> second = ModelConfig::load(kSource / "tests/data/oracle/inkling2-tiny-a");
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(second->generation, Generation::kInkling2);
  EXPECT_EQ(second->num_layers(), 12);
  EXPECT_EQ(second->layers_per_block, 6);
  EXPECT_FALSE(second->layers[4].full);
  EXPECT_EQ(second->layers[4].window, 8);
  EXPECT_TRUE(second->layers[5].full);
  EXPECT_EQ(second->layers[5].window, 0);
  EXPECT_EQ(second->layers[5].extent, 16);
  EXPECT_EQ(second->q_clip, 3.5);
  EXPECT_EQ(second->soft_cap, 2.5);
  EXPECT_EQ(second->mup, 1.5);
  EXPECT_EQ(second->tau_floor, 8);
  EXPECT_EQ(second->unpadded_vocab_size, 270);
  EXPECT_TRUE(second->eos_token_ids.empty());

  const Result<ModelConfig> first = ModelConfig::load(kSource / "tests/data/oracle/inkling-tiny-a");
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(first->generation, Generation::kInkling);
  EXPECT_EQ(first->dense_width, 96);  // the spelling of transformers: intermediate_size is the dense width
  EXPECT_EQ(first->expert_width, 32);
  EXPECT_TRUE(first->layers[0].dense);
  EXPECT_FALSE(first->layers[1].dense);
  EXPECT_EQ(first->layers[0].num_kv_heads, 4);  // sliding layers have their own heads
  EXPECT_EQ(first->layers[3].num_kv_heads, 2);
  EXPECT_EQ(first->max_position, 4096);
}

TEST(Config, TheTwoSpellingsOfTheFirstGenerationAgree) {
  const Result<ModelConfig> og = ModelConfig::from_json(tiny_config({.generation = Generation::kInkling}));
  const Result<ModelConfig> hf =
      ModelConfig::from_json(tiny_config({.generation = Generation::kInkling, .hf_names = true}));
  ASSERT_TRUE(og.ok() && hf.ok());
  EXPECT_EQ(og->dense_width, hf->dense_width);
  EXPECT_EQ(og->expert_width, hf->expert_width);
  for (int64_t i = 0; i < og->num_layers(); ++i) {
    EXPECT_EQ(og->layers[i].full, hf->layers[i].full) << i;
    EXPECT_EQ(og->layers[i].dense, hf->layers[i].dense) << i;
  }
}

TEST(Config, TextFieldsMayStandAtTopLevel) {
  Json flat = text_of(Generation::kInkling2)["text_config"];
  flat["architectures"] = {"Inkling2ForCausalLM"};
  EXPECT_EQ(error_of(flat), "reads");
}

TEST(Config, EosIdsMayBeOneSeveralOrNone) {
  struct Case {
    Json given;
    std::vector<int32_t> want;
  };
  const Case cases[] = {{nullptr, {}}, {7, {7}}, {{7, 9}, {7, 9}}};
  for (const Case& c : cases) {
    Json config = text_of(Generation::kInkling2);
    config["eos_token_id"] = c.given;
    const Result<ModelConfig> read = ModelConfig::from_json(config);
    ASSERT_TRUE(read.ok());
    EXPECT_EQ(read->eos_token_ids, c.want);
  }
}

TEST(Config, EverySwitchOfInkling2IsRead) {
  struct Case {
    const char* key;
    Json value;
    std::function<bool(const ModelConfig&)> holds;
  };
  using C = ModelConfig;
  const Case cases[] = {
      {"sink_source", "rel_table", [](const C& c) { return c.sink_source == C::Sink::kRelTable; }},
      {"sink_source", "none", [](const C& c) { return c.sink_source == C::Sink::kNone; }},
      {"sink_input", "v", [](const C& c) { return c.sink_input == C::Source::kV; }},
      {"sink_tau", true, [](const C& c) { return c.sink_tau; }},
      {"attn_gate_act", "silu", [](const C& c) { return c.attn_gate_act == C::GateAct::kSilu; }},
      {"attn_gate_input", "k", [](const C& c) { return c.attn_gate_input == C::Source::kK; }},
      {"rel_input", "k", [](const C& c) { return c.rel_input == C::Source::kK; }},
      {"rel_beyond_extent", "clamp", [](const C& c) { return c.rel_clamp; }},
      {"rel_extent", nullptr, [](const C& c) { return c.layers[5].extent == 0; }},
      {"gate_activation", "softmax", [](const C& c) { return c.gate_softmax; }},
      {"norm_after_topk", false, [](const C& c) { return !c.norm_after_topk; }},
      {"dyn_tap_input", "raw", [](const C& c) { return c.tap_input == C::TapInput::kRaw; }},
      {"dyn_tap_act", "tanh", [](const C& c) { return c.tap_act == C::GateAct::kTanh; }},
      {"dyn_tap_static", true, [](const C& c) { return c.tap_static; }},
      {"dyn_skip", false, [](const C& c) { return !c.tap_skip; }},
      {"conv_first", false, [](const C& c) { return !c.conv_first; }},
      {"use_value_norm_no_gamma", false, [](const C& c) { return !c.value_norm; }},
      {"tau_targets", {"q"}, [](const C& c) { return c.tau_on_q && !c.tau_on_profile; }},
      {"depth_logit_scale", 0.5, [](const C& c) { return c.depth_logit_scale == 0.5; }},
      {"attn_res_eps", 1e-5, [](const C& c) { return c.attn_res_eps == 1e-5; }},
      {"qkvr_order", {"sink", "gate", "q", "k", "v", "r"}, [](const C& c) { return c.qkvr_order[0] == "sink"; }},
      {"situ_beta", nullptr, [](const C& c) { return c.activation.beta == 0; }},
      {"q_l2_clip", 0, [](const C& c) { return c.q_clip == 0; }},
      {"log_scaling_n_floor", nullptr, [](const C& c) { return c.tau_floor == 0; }},
      {"final_logit_softcapping", nullptr, [](const C& c) { return c.soft_cap == 0; }},
  };
  for (const Case& c : cases) {
    Json config = text_of(Generation::kInkling2);
    config["text_config"][c.key] = c.value;
    const Result<ModelConfig> read = ModelConfig::from_json(config);
    ASSERT_TRUE(read.ok()) << c.key << ": " << read.status().message();
    EXPECT_TRUE(c.holds(*read)) << c.key;
  }
}

TEST(Config, BadValuesAreNamedWithWhatWasExpected) {
  struct Case {
    Generation generation;
    const char* key;
    Json value;  // discarded: the key is taken away
    const char* want;
  };
  const Json absent(Json::value_t::discarded);
  constexpr Generation kFirst = Generation::kInkling, kSecond = Generation::kInkling2;
  const Case cases[] = {
      {kSecond, "q_l2_clip", absent, "config.json: q_l2_clip is missing; give the limit"},
      {kSecond, "situ_beta", absent, "config.json: situ_beta is missing"},
      {kSecond, "hidden_size", absent, "config.json: hidden_size is missing"},
      {kSecond, "hidden_size", -4, "config.json: hidden_size must be an integer from 1 to 16777216, got -4"},
      {kSecond, "hidden_size", 64.5, "got 64.5"},
      {kSecond, "hidden_size", 1e300, "got 1e+300"},
      {kSecond, "num_hidden_layers", 100000000, "num_hidden_layers must be an integer from 1 to 4096"},
      {kSecond, "hidden_size", "64", "got \"64\""},
      {kSecond, "q_l2_clip", -1, "q_l2_clip must be a number from 0 to 1e+30, got -1"},
      {kSecond, "local_layer_ids", absent, "local_layer_ids is missing"},
      {kSecond, "local_layer_ids", {0, 99}, "local_layer_ids must be a list of integers from 0 to 11"},
      {kSecond, "local_layer_ids", {1, 2, 3}, "layer 0 must be a sliding layer"},
      {kSecond, "sink_source", "magic", "sink_source must be one of linear, rel_table, none, got \"magic\""},
      {kSecond, "qkvr_order", {"q", "k"}, "qkvr_order must hold each of q, k, v, r, gate, sink once"},
      {kSecond, "tau_targets", {"z"}, "tau_targets must hold q and profile, got z"},
      {kSecond, "num_key_value_heads", 4, "num_attention_heads 6 is no multiple of num_key_value_heads 4"},
      {kSecond, "num_experts_per_tok", 10, "num_experts_per_tok 10 exceeds n_routed_experts 9"},
      {kSecond, "n_shared_experts", 2, "n_shared_experts must be an integer from 0 to 0"},
      {kFirst, "gate_activation", "softmax", "gate_activation must be one of sigmoid, got \"softmax\""},
      {kFirst, "q_bias", true, "q_bias must be false here"},
      {kFirst, "route_scale", absent, "route_scale is missing"},
      {kFirst, "dense_intermediate_size", absent, "moe_intermediate_size is missing"},
      {kFirst, "rel_extent", absent, "rel_extent is missing"},
  };
  for (const Case& c : cases) {
    Json config = text_of(c.generation);
    if (c.value.is_discarded())
      config["text_config"].erase(c.key);
    else
      config["text_config"][c.key] = c.value;
    if (std::string(c.key) == "dense_intermediate_size") config["text_config"].erase("intermediate_size");
    EXPECT_THAT(error_of(config), HasSubstr(c.want)) << c.key;
  }
}

TEST(Config, UnknownArchitecturesAreRefused) {
  EXPECT_THAT(error_of({{"architectures", {"LlamaForCausalLM"}}}),
              HasSubstr("the architecture \"LlamaForCausalLM\" is unknown"));
  EXPECT_THAT(error_of(Json::object()), HasSubstr("the architecture \"\" is unknown"));
  EXPECT_THAT(error_of({{"model_type", "inkling2_loop"}}), HasSubstr("looped depth"));
  EXPECT_THAT(error_of(Json::array()), HasSubstr("not a JSON object"));
}

TEST(Config, PlaceholdersAreReadAndRemembered) {
  Json config = text_of(Generation::kInkling2);
  config["text_config"]["q_l2_clip"] = {{"value", 10.0}, {"placeholder", true}};
  const Result<ModelConfig> c = ModelConfig::from_json(config);
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->q_clip, 10.0);
  EXPECT_EQ(c->placeholders, std::vector<std::string>{"q_l2_clip"});
  EXPECT_TRUE(ModelConfig::from_json(text_of(Generation::kInkling2))->placeholders.empty());
}

TEST(GenerationConfig, ReadsWhatIsThereAndRefusesNonsense) {
  const Result<GenerationDefaults> d = GenerationDefaults::from_json(
      {{"temperature", 0.7}, {"top_k", 20}, {"eos_token_id", {3, 4}}, {"top_p", nullptr}});
  ASSERT_TRUE(d.ok());
  EXPECT_EQ(d->temperature, 0.7);
  EXPECT_EQ(d->top_k, 20);
  EXPECT_FALSE(d->top_p.has_value());
  EXPECT_EQ(d->eos_token_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_THAT(GenerationDefaults::from_json({{"top_p", 1.5}}).status().message(),
              HasSubstr("generation_config.json: top_p must be a number"));
  EXPECT_TRUE(GenerationDefaults::load("/nowhere").ok());  // no file, no defaults
}

}  // namespace
}  // namespace nib
