// Heads, layouts and refusals of drafters that no reference covers, on small drafters cut out of one that is.
#include "model/drafter.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/testing/draft_cache.h"
#include "model/testing/drafter_parts.h"

namespace nib {
namespace {

using testing::Draft;
using testing::DraftCache;
using testing::DrafterParts;

Draft draft_of(const Drafter& drafter, int64_t num_tokens) {
  DraftCache cache(drafter, Isa::kRef, {});
  std::vector<float> taps(4 * drafter.tap_width());
  for (size_t i = 0; i < taps.size(); ++i) taps[i] = std::sin(static_cast<float>(3 * i));
  cache.commit({{.taps = {taps.data(), {4, drafter.tap_width()}}}});
  return cache.draft({{.block = {5, 4, 0, 4, num_tokens}}})[0];
}

TEST(Drafter, WithoutHeadsTheLogitsAreThoseOfTheOutputHead) {
  DrafterParts parts("dspark-tiny-markov");
  parts.config["markov_head_type"] = "none";
  parts.config["enable_confidence_head"] = false;
  for (const char* name : {"markov_head.markov_w1.weight", "markov_head.markov_w2.weight",
                           "confidence_head.proj.weight", "confidence_head.proj.bias"})
    parts.tensors.erase(name);
  const auto drafter = parts.load();
  ASSERT_TRUE(drafter.ok()) << drafter.status().message();
  const Draft d = draft_of(**drafter, 7);
  EXPECT_TRUE(d.confidence.empty());
  for (int64_t k = 0; k < 7; ++k)
    for (int64_t v = 0; v < 200; ++v) {
      double want = 0;
      for (int64_t i = 0; i < 64; ++i)
        want += static_cast<double>(d.hidden[k * 64 + i]) * parts.at("lm_head.weight")[v * 64 + i];
      ASSERT_NEAR(d.logits[k * 200 + v], want, 1e-5);
    }
}

TEST(Drafter, AGatedHeadScalesThePreviousTokensEmbedding) {
  DrafterParts parts("dspark-tiny-markov");
  parts.config["markov_head_type"] = "gated";
  parts.set("markov_head.gate_proj.weight", {8, 72});
  parts.set("markov_head.gate_proj.bias", {8});
  const auto drafter = parts.load();
  ASSERT_TRUE(drafter.ok()) << drafter.status().message();
  const Draft d = draft_of(**drafter, 7);
  for (int64_t k = 0; k < 7; ++k) {
    const float* h = &d.hidden[k * 64];
    const float* e = &parts.at("markov_head.markov_w1.weight")[(k == 0 ? 5 : d.tokens[k - 1]) * 8];
    for (int64_t v = 0; v < 200; ++v) {
      double want = 0;
      for (int64_t i = 0; i < 64; ++i) want += static_cast<double>(h[i]) * parts.at("lm_head.weight")[v * 64 + i];
      for (int64_t j = 0; j < 8; ++j) {
        double gate = parts.at("markov_head.gate_proj.bias")[j];
        for (int64_t i = 0; i < 72; ++i)
          gate +=
              static_cast<double>(parts.at("markov_head.gate_proj.weight")[j * 72 + i]) * (i < 64 ? h[i] : e[i - 64]);
        want += parts.at("markov_head.markov_w2.weight")[v * 8 + j] * e[j] / (1 + std::exp(-gate));
      }
      ASSERT_NEAR(d.logits[k * 200 + v], want, 1e-5);
    }
  }
}

TEST(Drafter, TheOnePlusKLayoutSkipsTheAnchorsSlot) {
  DrafterParts parts("dspark-tiny-rnn");
  const auto first = parts.load();
  parts.config["sample_from_anchor"] = false;
  const auto second = parts.load();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE((*second)->config().check_draft_length(7).ok());
  const Draft a = draft_of(**first, 7), b = draft_of(**second, 6);
  EXPECT_EQ(b.hidden, std::vector<float>(a.hidden.begin() + 64, a.hidden.end()));
}

TEST(Drafter, ASamplerThatFindsNoTokenEndsItsBlockOnly) {
  const auto drafter = DrafterParts("dspark-tiny-rnn").load();
  ASSERT_TRUE(drafter.ok());
  DraftCache cache(**drafter, Isa::kRef, {.sequences = 2});
  const DraftBlock block{.anchor = 5, .position = 0, .num_tokens = 7};
  const std::vector<Draft> whole = cache.draft({{0, block}, {1, block}});
  const std::vector<Draft> cut =
      cache.draft({{0, block}, {1, block}}, [](int64_t b, int64_t k, std::span<const float> logits) {
        return b == 1 && k == 2 ? -1 : greedy_draft(b, k, logits);
      });
  EXPECT_EQ(cut[0], whole[0]);
  EXPECT_EQ(cut[1].tokens, std::vector<int32_t>(whole[1].tokens.begin(), whole[1].tokens.begin() + 2));
}

TEST(Drafter, ANotANumberInOneContextEndsThatBlockOnly) {
  const auto drafter = DrafterParts("dspark-tiny-rnn").load();
  ASSERT_TRUE(drafter.ok());
  for (Isa isa : {Isa::kRef, best_isa()}) {
    DraftCache cache(**drafter, isa, {.sequences = 2});
    std::vector<float> taps(4 * (*drafter)->tap_width(), 0.5f);
    const View<const float, 2> rows(taps.data(), {4, (*drafter)->tap_width()});
    cache.commit({{.sequence = 0, .taps = rows}, {.sequence = 1, .taps = rows}});
    const DraftBlock block{5, 4, 0, 4, 7};
    const Draft good = cache.draft({{1, block}})[0];
    taps[7] = NAN;
    cache.commit({{.sequence = 0, .taps = rows}});
    const std::vector<Draft> both = cache.draft({{0, block}, {1, block}});
    EXPECT_TRUE(both[0].tokens.empty()) << name(isa);
    EXPECT_EQ(both[1], good) << name(isa);
  }
}

// The embedding and the head of the reference drafter as its target would lend them.
struct Target {
  explicit Target(const DrafterParts& parts)
      : embed(parts.at("embed_tokens.weight")), unembed(parts.at("lm_head.weight")), ones(64, 1.0f) {
    tables.embed = Weight::plain(embed.data(), 200, 64);
    tables.unembed = Weight::plain(unembed.data(), 190, 64);  // ten rows of padding
    tables.embed_norm = Weight::plain(ones.data(), 1, 64);
  }
  std::vector<float> embed, unembed, ones;
  SharedTables tables;
};

DrafterParts without_tables(const char* folder) {
  DrafterParts parts(folder);
  parts.tensors.erase("embed_tokens.weight");
  parts.tensors.erase("lm_head.weight");
  return parts;
}

TEST(Drafter, BorrowsTheTablesOfItsTargetAndDividesTheirLogitsOnce) {
  const DrafterParts own("dspark-tiny-markov");
  Target target(own);
  target.tables.mup = 3;
  const auto drafter = without_tables("dspark-tiny-markov").load({.f32 = true}, &target.tables);
  ASSERT_TRUE(drafter.ok()) << drafter.status().message();
  EXPECT_EQ((*drafter)->vocab_size(), 190);
  const Draft d = draft_of(**drafter, 7);
  EXPECT_EQ(d.hidden, draft_of(**own.load(), 7).hidden);
  for (int64_t k = 0; k < 7; ++k)
    for (int64_t v = 0; v < 190; ++v) {
      double base = 0, bias = 0;
      for (int64_t i = 0; i < 64; ++i) base += static_cast<double>(d.hidden[k * 64 + i]) * target.unembed[v * 64 + i];
      const float* e = &own.at("markov_head.markov_w1.weight")[(k == 0 ? 5 : d.tokens[k - 1]) * 8];
      for (int64_t i = 0; i < 8; ++i)
        bias += static_cast<double>(e[i]) * own.at("markov_head.markov_w2.weight")[v * 8 + i];
      ASSERT_NEAR(d.logits[k * 190 + v], base / 3 + bias, 1e-5) << k << ", " << v;
    }
}

TEST(Drafter, TakesNormedRowsOfTheEmbeddingWhereItsConfigSaysSo) {
  DrafterParts normed("dspark-tiny-rnn");
  std::vector<float>& rows = normed.tensors.at("embed_tokens.weight").second;
  for (size_t at = 0; at < rows.size(); at += 64) {
    double squares = 0;
    for (size_t i = at; i < at + 64; ++i) squares += static_cast<double>(rows[i]) * rows[i];
    for (size_t i = at; i < at + 64; ++i) rows[i] = static_cast<float>(rows[i] / std::sqrt(squares / 64 + 1e-6));
  }
  const DrafterParts raw("dspark-tiny-rnn");
  Target target(raw);
  DrafterParts asked = raw;
  asked.config["embed_norm"] = true;
  const auto drafter = asked.load({.f32 = true}, &target.tables);
  ASSERT_TRUE(drafter.ok()) << drafter.status().message();
  const std::vector<float> got = draft_of(**drafter, 7).hidden, want = draft_of(**normed.load(), 7).hidden;
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5);
  EXPECT_NE(got, draft_of(**raw.load(), 7).hidden);
  EXPECT_NE(asked.load().status().message().find("embed_norm is true, but there is no target"), std::string::npos);
}

}  // namespace
}  // namespace nib
