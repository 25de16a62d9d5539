// Where a drafter's tensors are found, and what is refused by name.
#include "model/drafter_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/testing/draft_cache.h"
#include "model/testing/drafter_parts.h"

namespace nib {
namespace {

using testing::DraftCache;
using testing::DrafterParts;
using ::testing::HasSubstr;

struct Change {
  const char* name;
  std::vector<int64_t> shape;  // empty: the tensor is taken out
  const char* message;
};

TEST(DrafterWeights, WhatDoesNotFitIsNamed) {
  const Change cases[] = {
      {"norm.weight", {}, "norm.weight is missing, expected [64]"},
      {"fc.weight", {}, "fc.weight is missing"},
      {"layers.1.self_attn.k_proj.weight", {}, "layers.1.self_attn.k_proj.weight is missing, expected [32, 64]"},
      {"markov_head.joint_proj.weight", {}, "markov_head.joint_proj.weight is missing"},
      {"confidence_head.proj.weight", {}, "confidence_head.proj.weight is missing"},
      {"embed_tokens.weight", {}, "embed_tokens.weight is missing and there is no target"},
      {"extra.weight", {3}, "extra.weight [3] is not read by this drafter"},
      {"layers.3.mlp.up_proj.weight", {96, 64}, "layers.3.mlp.up_proj.weight [96, 64] is not read"},
      {"norm.weight", {8, 8}, "norm.weight is [8, 8], expected [64]"},
      {"fc.weight", {64, 200}, "200 columns, which 3 taps"},
      {"markov_head.markov_w1.weight", {200, 7}, "markov_w1.weight is [200, 7], expected [any, 8]"},
      {"markov_head.markov_w2.weight", {200, 9}, "markov_w2.weight is [200, 9], expected [any, 8]"},
      {"markov_head.markov_w2.weight", {199, 8}, "markov_w2 has 199 rows, the vocabulary 200"},
      {"markov_head.joint_proj.weight", {24, 79}, "joint_proj.weight is [24, 79], expected [3w, w + 72]"},
      {"confidence_head.proj.weight", {1, 65}, "confidence_head.proj.weight is [1, 65], expected [1, 72]"},
      {"layers.0.self_attn.k_conv.weight", {32, 4}, "in the style of Inkling"},
      {"layers.0.self_attn.sink.weight", {4}, "in the style of Inkling"},
      {"layers.2.attn.wr.weight", {4, 64}, "in the style of Inkling"},
  };
  for (const Change& c : cases) {
    DrafterParts parts("dspark-tiny-rnn");
    if (c.shape.empty())
      parts.tensors.erase(c.name);
    else
      parts.set(c.name, c.shape);
    const Status status = parts.load().status();
    EXPECT_THAT(status.message(), HasSubstr(c.message)) << c.name;
    EXPECT_EQ(status.code() == Code::kUnimplemented, std::string_view(c.message).ends_with("Inkling")) << c.name;
  }
}

TEST(DrafterWeights, TablesOfAnotherTargetAreRefused) {
  struct Case {
    int64_t vocab, valid, hidden;
    const char* message;
  };
  const Case cases[] = {{200, 200, 64, ""},
                        {200, 190, 64, ""},
                        {200, 200, 32, "reads 3 taps of 64 columns, the target's hidden size is 32"},
                        {300, 300, 64, "lm_head.weight has 200 rows, the vocabulary 300"}};
  const std::vector<float> memory(300 * 64);
  for (const Case& c : cases) {
    SharedTables tables;
    tables.embed = Weight::plain(memory.data(), c.vocab, c.hidden);
    tables.unembed = Weight::plain(memory.data(), c.valid, c.hidden);
    const auto drafter = DrafterParts("dspark-tiny-rnn").load({.f32 = true}, &tables);
    EXPECT_EQ(drafter.ok(), *c.message == 0);
    EXPECT_THAT(drafter.status().message(), HasSubstr(c.message));
    if (drafter.ok()) {
      EXPECT_EQ((*drafter)->vocab_size(), c.valid);
    }
  }
}

std::vector<float> logits_of(const Drafter& drafter) {
  return DraftCache(drafter, Isa::kRef, {}).draft({{.block = {.anchor = 5, .num_tokens = 7}}})[0].logits;
}

TEST(DrafterWeights, AreFoundInTheFolderOfTheTarget) {
  const DrafterParts parts("dspark-tiny-rnn");
  const auto own = parts.load();
  ASSERT_TRUE(own.ok()) << own.status().message();
  const std::vector<float> want = logits_of(**own);
  struct Case {
    std::vector<std::string> files;
    const char* prefix;
  };
  const Case cases[] = {{{"mtp.safetensors"}, ""},
                        {{"mtp.safetensors"}, "mtp."},
                        {{"mtp-00001-of-00002.safetensors", "mtp-00002-of-00002.safetensors"}, "model.mtp."},
                        {{"model.safetensors"}, "model.dspark."}};
  for (const Case& c : cases) {
    TempFolder folder;
    ASSERT_TRUE(parts.write(folder.path(), c.files, c.prefix).ok());
    if (c.files[0].starts_with("mtp")) {  // the target's own file is none of the drafter's business
      ASSERT_TRUE(write_safetensors(folder.path() / "model.safetensors", std::vector<OutTensor>{}).ok());
    }
    const auto drafter = load_drafter(folder.path(), {.f32 = true}, nullptr);
    ASSERT_TRUE(drafter.ok()) << drafter.status().message();
    EXPECT_EQ(logits_of(**drafter), want);
  }
}

TEST(DrafterWeights, AFileCutShortOrAShardThatIsMissingIsNamed) {
  const DrafterParts parts("dspark-tiny-rnn");
  TempFolder folder;
  ASSERT_TRUE(parts.write(folder.path(), {"mtp-00001-of-00002.safetensors", "mtp-00002-of-00002.safetensors"}).ok());
  std::filesystem::resize_file(folder.path() / "mtp-00002-of-00002.safetensors", 20000);
  EXPECT_THAT(load_drafter(folder.path(), {}, nullptr).status().message(), HasSubstr("mtp-00002-of-00002"));
  std::filesystem::remove(folder.path() / "mtp-00002-of-00002.safetensors");
  EXPECT_THAT(load_drafter(folder.path(), {}, nullptr).status().message(),
              HasSubstr("mtp-00002-of-00002.safetensors: is missing beside the other shards"));
}

}  // namespace
}  // namespace nib
