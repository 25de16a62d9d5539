// Drafters in BF16 against the same network in double precision that rounds where they round.
#include <gtest/gtest.h>

#include <algorithm>

#include "model/testing/draft_cache.h"
#include "model/testing/drafter_parts.h"

namespace nib {
namespace {

using testing::Draft;
using testing::DraftCache;
using testing::DrafterParts;

using Row = std::vector<double>;
using Rows = std::vector<Row>;

double rounded(double x) { return as_float(bf16::from(static_cast<float>(x))); }
Row rounded(Row x) {
  for (double& v : x) v = rounded(v);
  return x;
}

constexpr int64_t kHidden = 64, kHeads = 4, kKvHeads = 2, kHeadDim = 16, kSlots = 7, kContext = 20, kVocab = 200;
constexpr int64_t kRank = 8;
constexpr int32_t kAnchor = 5;

// Every function rounds its result once, as the operation of its name does.
class Emulation {
 public:
  explicit Emulation(const DrafterParts& parts) : parts_(parts) {}

  Row product(const std::string& name, const Row& x) const { return rounded(exact_product(name, x)); }
  Row exact_product(const std::string& name, const Row& x) const {
    const std::vector<float>& w = parts_.at(name);
    Row y(w.size() / x.size());
    for (size_t n = 0; n < y.size(); ++n)
      for (size_t k = 0; k < x.size(); ++k) y[n] += w[n * x.size() + k] * x[k];
    return y;
  }
  // Of every run of `width` elements.
  Row norm(const std::string& name, Row x, size_t width) const {
    for (size_t at = 0; at < x.size(); at += width) {
      double squares = 0;
      for (size_t i = at; i < at + width; ++i) squares += x[i] * x[i];
      for (size_t i = at; i < at + width; ++i) x[i] *= parts_.at(name)[i - at] / std::sqrt(squares / width + 1e-6);
    }
    return rounded(x);
  }
  static Row turned(const Row& x, int64_t position) {
    Row y = x;
    for (size_t head = 0; head < x.size(); head += kHeadDim)
      for (int64_t i = 0; i < kHeadDim / 2; ++i) {
        const float frequency = as_float(bf16::from(1.0f / std::pow(10000.0f, 2.0f * i / kHeadDim)));
        const double angle = static_cast<float>(position) * frequency, a = x[head + i], b = x[head + i + kHeadDim / 2];
        y[head + i] = a * std::cos(angle) - b * std::sin(angle);
        y[head + i + kHeadDim / 2] = b * std::cos(angle) + a * std::sin(angle);
      }
    return rounded(y);
  }
  static Row attention(const Row& q, const Rows& k, const Rows& v) {
    Row y(q.size());
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t column = h / (kHeads / kKvHeads) * kHeadDim;
      double total = 0;
      for (size_t s = 0; s < k.size(); ++s) {
        double dot = 0;
        for (int64_t i = 0; i < kHeadDim; ++i) dot += q[h * kHeadDim + i] * k[s][column + i];
        const double weight = std::exp(dot / 4);
        for (int64_t i = 0; i < kHeadDim; ++i) y[h * kHeadDim + i] += weight * v[s][column + i];
        total += weight;
      }
      for (int64_t i = 0; i < kHeadDim; ++i) y[h * kHeadDim + i] /= total;
    }
    return rounded(y);
  }
  static Row sum(Row a, const Row& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return rounded(a);
  }

  // The block behind `taps` after the final norm.
  Rows block(const std::vector<Row>& taps) const {
    Rows c, h;
    for (const Row& t : taps) c.push_back(norm("hidden_norm.weight", product("fc.weight", rounded(t)), kHidden));
    for (int64_t s = 0; s < kSlots; ++s) {
      const float* row = &parts_.at("embed_tokens.weight")[(s == 0 ? kAnchor : 199) * kHidden];
      h.emplace_back(row, row + kHidden);
    }
    for (int l = 0; l < 3; ++l) layer(fmt::format("layers.{}.", l), c, h);
    for (Row& x : h) x = norm("norm.weight", x, kHidden);
    return h;
  }

  void layer(const std::string& at, const Rows& c, Rows& h) const {
    Rows k, v, q;
    const auto key_value = [&](const Row& x) {
      const int64_t position = static_cast<int64_t>(k.size());
      const Row raw = product(at + "self_attn.k_proj.weight", x);
      k.push_back(turned(norm(at + "self_attn.k_norm.weight", raw, kHeadDim), position));
      v.push_back(product(at + "self_attn.v_proj.weight", x));
    };
    for (const Row& x : c) key_value(x);
    for (int64_t s = 0; s < kSlots; ++s) {
      const Row u = norm(at + "input_layernorm.weight", h[s], kHidden);
      key_value(u);
      const Row raw = product(at + "self_attn.q_proj.weight", u);
      q.push_back(turned(norm(at + "self_attn.q_norm.weight", raw, kHeadDim), kContext + s));
    }
    for (int64_t s = 0; s < kSlots; ++s) {
      h[s] = sum(h[s], product(at + "self_attn.o_proj.weight", attention(q[s], k, v)));
      const Row n = norm(at + "post_attention_layernorm.weight", h[s], kHidden);
      Row gate = product(at + "mlp.gate_proj.weight", n);
      const Row up = product(at + "mlp.up_proj.weight", n);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = rounded(gate[i] / (1 + std::exp(-gate[i])) * up[i]);
      h[s] = sum(h[s], product(at + "mlp.down_proj.weight", gate));
    }
  }

  // Logits of all slots, each behind the tokens that were drawn; the recurrent head.
  Rows logits(const Rows& h, const std::vector<int32_t>& tokens) const {
    Rows out;
    Row state(kRank, 0.0);
    for (int64_t k = 0; k < kSlots; ++k) {
      const float* e = &parts_.at("markov_head.markov_w1.weight")[(k == 0 ? kAnchor : tokens[k - 1]) * kRank];
      Row z = state;
      z.insert(z.end(), e, e + kRank);
      z.insert(z.end(), h[k].begin(), h[k].end());
      Row y = exact_product("markov_head.joint_proj.weight", z), m(kRank);
      for (size_t i = 0; i < y.size(); ++i) y[i] += parts_.at("markov_head.joint_proj.bias")[i];
      for (int64_t i = 0; i < kRank; ++i) {
        const double keep = 1 / (1 + std::exp(-y[i]));
        state[i] = rounded(keep * state[i] + (1 - keep) * std::tanh(y[kRank + i]));
        m[i] = rounded(std::tanh(y[2 * kRank + i]));
      }
      Row sums = exact_product("lm_head.weight", h[k]);
      const Row bias = exact_product("markov_head.markov_w2.weight", m);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += bias[i];
      out.push_back(sums);
    }
    return out;
  }

 private:
  const DrafterParts& parts_;
};

double relative_l2(const std::vector<float>& got, const Rows& want) {
  double error = 0, size = 0;
  for (size_t k = 0, at = 0; k < want.size(); ++k)
    for (size_t i = 0; i < want[k].size(); ++i, ++at)
      error += std::pow(got[at] - want[k][i], 2), size += std::pow(want[k][i], 2);
  return std::sqrt(error / size);
}

// Sums differ in order and width, so a value next to a tie may round the other way. One rounding left out of the
// emulation gives 1e-2.
constexpr double kRelativeL2 = 4e-3;

TEST(DrafterBf16, RoundsWhereItSaysAndNowhereElse) {
  const DrafterParts parts("dspark-tiny-rnn");
  const Emulation emulation(parts);
  const auto folder = std::filesystem::path(NIB_SOURCE_DIR) / "tests/data/oracle/dspark-tiny-rnn";
  const auto drafter = load_drafter(folder, {}, nullptr);
  ASSERT_TRUE(drafter.ok()) << drafter.status().message();
  const int64_t width = (*drafter)->tap_width();
  std::vector<float> taps(kContext * width);
  std::vector<Row> tap_rows;
  for (size_t i = 0; i < taps.size(); ++i) taps[i] = 2 * std::sin(static_cast<float>(i * i % 1013));
  for (int64_t t = 0; t < kContext; ++t) tap_rows.emplace_back(&taps[t * width], &taps[t * width] + width);
  const Rows hidden = emulation.block(tap_rows);
  for (int i = 0; i <= static_cast<int>(best_isa()); ++i) {
    DraftCache cache(**drafter, static_cast<Isa>(i), {});
    cache.commit({{.taps = {taps.data(), {kContext, width}}}});
    const Draft d = cache.draft({{.block = {kAnchor, kContext, 0, kContext, kSlots}}})[0];
    EXPECT_LT(relative_l2(d.hidden, hidden), kRelativeL2) << name(static_cast<Isa>(i));
    EXPECT_LT(relative_l2(d.logits, emulation.logits(hidden, d.tokens)), kRelativeL2) << name(static_cast<Isa>(i));
  }
}

}  // namespace
}  // namespace nib
