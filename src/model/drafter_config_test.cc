#include "model/drafter_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/testing/make_checkpoint.h"

namespace nib {
namespace {

using ::testing::HasSubstr;

// A drafter of three layers for a target of 12, as it stands in a config.json of its own.
Json own_config() {
  return Json{{"hidden_size", 64},
              {"vocab_size", 288},
              {"rms_norm_eps", 1e-5},
              {"num_draft_layers", 3},
              {"intermediate_size", 96},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 2},
              {"head_dim", 16},
              {"block_size", 8},
              {"mask_token_id", 280},
              {"target_layer_ids", {5, 11, 12}},
              {"markov_rank", 8},
              {"markov_head_type", "rnn"}};
}

// Its target's config.json: other heads, other layers.
Json target_config() {
  Json config = tiny_config({});
  config["text_config"]["rms_norm_eps"] = 1e-5;
  return config;
}

Json without(Json object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) object.erase(key);
  return object;
}

TEST(DrafterConfig, IsFoundUnderAnyOfItsPlaces) {
  const Result<DrafterConfig> want = DrafterConfig::from_json(own_config());
  ASSERT_TRUE(want.ok()) << want.status().message();
  EXPECT_EQ(want->num_layers, 3);
  EXPECT_EQ(want->max_draft_tokens(), 8);
  const Json own = without(own_config(), {"hidden_size", "vocab_size", "rms_norm_eps"});

  std::vector<Json> places;
  for (const char* key : {"dspark_config", "mtp_config", "draft_config"})
    for (const bool in_text : {false, true}) {
      Json config = target_config();
      (in_text ? config["text_config"] : config)[key] = own;
      places.push_back(config);
    }
  Json split = target_config();  // half of it one level deeper, where it wins
  split["dspark_config"] = without(own, {"markov_rank"});
  split["dspark_config"]["block_size"] = 99;
  split["dspark_config"]["dflash_config"] = {{"markov_rank", 8}, {"block_size", 8}};
  places.push_back(split);
  Json prefixed = target_config();
  const Json same_names = without(own, {"mask_token_id", "num_draft_layers"});
  for (const auto& [key, value] : same_names.items()) prefixed["text_config"]["dspark_" + key] = value;
  prefixed["text_config"]["dspark_noise_token_id"] = 280;
  prefixed["text_config"]["num_nextn_predict_layers"] = 3;
  places.push_back(prefixed);

  for (const Json& config : places) {
    const Result<DrafterConfig> got = DrafterConfig::from_json(config);
    ASSERT_TRUE(got.ok()) << got.status().message() << "\n" << config.dump(1);
    EXPECT_TRUE(*got == *want) << config.dump(1);
  }
}

struct TapCase {
  Json kinds;
  std::vector<Tap> want;  // in a target of 12 layers
};

TEST(DrafterConfig, SaysWhatIsReadAtEachTap) {
  using Kind = Tap::Kind;
  const std::vector<Tap> usual = {{5, Kind::kBlockSum}, {11, Kind::kBlockSum}, {12, Kind::kOutputMixture}};
  const TapCase cases[] = {
      {nullptr, usual},
      {"block_sum", usual},
      {"mixture", {{5, Kind::kMixture}, {11, Kind::kMixture}, {12, Kind::kOutputMixture}}},
      {{"block_sum", "mixture", "output_normed"},
       {{5, Kind::kBlockSum}, {11, Kind::kMixture}, {12, Kind::kOutputNormed}}},
  };
  for (const TapCase& c : cases) {
    Json config = own_config();
    config["target_tap"] = c.kinds;
    const Result<DrafterConfig> drafter = DrafterConfig::from_json(config);
    ASSERT_TRUE(drafter.ok()) << drafter.status().message();
    const Result<std::vector<Tap>> taps = resolve_taps(drafter->taps, 12);
    ASSERT_TRUE(taps.ok()) << taps.status().message();
    EXPECT_EQ(*taps, c.want) << c.kinds.dump();
  }
}

struct Refusal {
  Json changes;  // of the drafter's config
  const char* message;
};

TEST(DrafterConfig, WhatCannotBeServedIsNamed) {
  const Refusal cases[] = {
      {{{"target_tap", {"mixture"}}, {"target_layer_ids", Json::array()}}, "target_layer_ids"},
      {{{"target_tap", {"mixture", "mixture"}}}, "target_tap has 2 kinds for 3 taps"},
      {{{"target_tap", "residual"}}, "target_tap must hold block_sum, mixture, output_mixture, output_normed"},
      {{{"block_size", 0}}, "block_size"},
      {{{"mask_token_id", 288}}, "mask_token_id 288 is outside the vocabulary of 288"},
      {{{"markov_rank", 0}}, "markov_rank must be at least 1"},
      {{{"is_causal", true}}, "causal within the block"},
      {{{"layer_types", {"sliding_attention"}}}, "a sliding-window layer"},
      {{{"embed_norm", "yes"}}, "embed_norm"},
      {{{"dflash_config", 3}}, "dflash_config must be an object"},
      {{{"dspark_config", 3}}, "dspark_config must be an object"},
  };
  for (const Refusal& c : cases) {
    Json config = own_config();
    if (!c.changes.is_null()) config.update(c.changes);
    EXPECT_THAT(DrafterConfig::from_json(config).status().message(), HasSubstr(c.message)) << c.changes.dump();
  }
}

TEST(DrafterConfig, OneForAnotherTargetIsRefused) {
  const Result<ModelConfig> target = ModelConfig::from_json(tiny_config({}));
  ASSERT_TRUE(target.ok()) << target.status().message();
  const Refusal cases[] = {
      {{}, ""},
      {{{"vocab_size", 270}, {"mask_token_id", 269}}, ""},  // without the padding
      {{{"hidden_size", 128}}, "made for a target of hidden size 128, this one's is 64"},
      {{{"vocab_size", 289}}, "made for a vocabulary of 289, the target's is 270 (padded to 288)"},
      {{{"vocab_size", 269}, {"mask_token_id", 1}}, "made for a vocabulary of 269"},
      {{{"target_layer_ids", {5, 13}}}, "taps layer 13, its target has 12"},
      {{{"num_target_layers", 6}}, "made for a target of 6 layers, this one has 12"},
      {{{"target_tap", {"output_normed", "block_sum", "block_sum"}}}, "asks for the output at layer 5"},
  };
  for (const Refusal& c : cases) {
    Json config = own_config();
    if (!c.changes.is_null()) config.update(c.changes);
    const Result<DrafterConfig> drafter = DrafterConfig::from_json(config);
    ASSERT_TRUE(drafter.ok()) << drafter.status().message();
    const Status status = check_target(*drafter, *target);
    EXPECT_EQ(status.ok(), *c.message == 0) << c.changes.dump();
    EXPECT_THAT(status.message(), HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace nib
