// Heads, layouts and refusals of drafters that no reference covers, on small drafters cut out of one that is.
#include "model/drafter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/testing/draft_cache.h"
#include "model/testing/make_checkpoint.h"

namespace nib {
namespace {

using testing::Draft;
using testing::DraftCache;

// The tensors of a reference drafter as floats, to be changed and written elsewhere.
struct Parts {
  Json config;
  std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>> tensors;

  explicit Parts(const char* folder) {
    const auto path = std::filesystem::path(NIB_SOURCE_DIR) / "tests/data/oracle" / folder;
    config = *read_json_file(path / "config.json");
    const Result<Checkpoint> file = Checkpoint::open_file(path / "model.safetensors");
    for (const auto& [name, t] : file->tensors()) {
      auto& [shape, values] = tensors[name];
      shape = t.shape;
      values.resize(t.bytes / 2);
      for (size_t i = 0; i < values.size(); ++i) {
        bf16 b;
        std::memcpy(&b, file->data(t).data() + 2 * i, 2);
        values[i] = float(b);
      }
    }
  }
  void set(const std::string& name, std::vector<int64_t> shape) {
    int64_t size = 1;
    for (int64_t d : shape) size *= d;
    std::vector<float> values(size);
    for (int64_t i = 0; i < size; ++i) values[i] = 0.3f * std::sin(static_cast<float>(7 * i + 1));
    tensors[name] = {std::move(shape), std::move(values)};
  }
  Result<std::unique_ptr<Drafter>> load() const {
    TempFolder folder;
    std::vector<OutTensor> out;
    for (const auto& [name, t] : tensors) {
      const auto bytes = std::as_bytes(std::span(t.second));
      out.push_back({name, DType::kF32, t.first, {bytes.begin(), bytes.end()}});
    }
    NIB_TRY(write_json_file(folder.path() / "config.json", config));
    NIB_TRY(write_safetensors(folder.path() / "model.safetensors", out));
    return load_drafter(folder.path(), {.f32 = true}, nullptr);
  }
  const std::vector<float>& at(const std::string& name) const { return tensors.at(name).second; }
};

Draft draft_of(const Drafter& drafter, int64_t num_tokens) {
  DraftCache cache(drafter, Isa::kRef, {});
  std::vector<float> taps(4 * drafter.tap_width());
  for (size_t i = 0; i < taps.size(); ++i) taps[i] = std::sin(static_cast<float>(3 * i));
  cache.commit({{.taps = {taps.data(), {4, drafter.tap_width()}}}});
  return cache.draft({{.block = {5, 4, 0, 4, num_tokens}}})[0];
}

TEST(Drafter, WithoutHeadsTheLogitsAreThoseOfTheOutputHead) {
  Parts parts("dspark-tiny-markov");
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
  Parts parts("dspark-tiny-markov");
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
  Parts parts("dspark-tiny-rnn");
  const auto first = parts.load();
  parts.config["sample_from_anchor"] = false;
  const auto second = parts.load();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE((*second)->config().check_draft_length(7).ok());
  const Draft a = draft_of(**first, 7), b = draft_of(**second, 6);
  EXPECT_EQ(b.hidden, std::vector<float>(a.hidden.begin() + 64, a.hidden.end()));
}

TEST(Drafter, ATensorTooManyOrTooFewIsNamed) {
  Parts parts("dspark-tiny-rnn");
  parts.set("extra.weight", {3});
  EXPECT_NE(parts.load().status().message().find("extra.weight"), std::string::npos);
  parts.tensors.erase("extra.weight");
  parts.tensors.erase("norm.weight");
  EXPECT_NE(parts.load().status().message().find("norm.weight is missing"), std::string::npos);
}

}  // namespace
}  // namespace nib
