#include "engine/spec_decode/rejection_sampler.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <limits>

#include "engine/sampler.h"
#include "engine/spec_decode/draft_sampler.h"
#include "engine/testing/distribution.h"
#include "engine/token_constraint.h"

namespace nib {
namespace {

using namespace testing;

constexpr int32_t kVocab = 12;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint64_t kSeed = 7;
constexpr int64_t kDraws = 15000, kChains = 300000;

// A target: how it draws, and its distribution by definition.
struct Target {
  std::string name;
  SamplingParams params;
  std::vector<int32_t> output = {};  // the last num_assumed of it are drafts
  int64_t num_assumed = 0;
  std::vector<uint32_t> allowed = {};
  std::function<void(std::vector<float>&)> edit = [](auto&) {};  // what the parameters do to the logits
};

std::vector<Target> all_targets() {
  std::vector<Target> targets;
  for (const Setting& s : kSettings) targets.push_back({s.name, params_of(s)});
  Target penalties{"penalties", {}, {2, 5, 2, 7, 5}, 2, {}, [](std::vector<float>& x) {
                     constexpr std::array<int, kVocab> kTimes = {0, 0, 2, 0, 0, 2, 0, 1};
                     for (int32_t id = 0; id < kVocab; ++id) {
                       if (kTimes[id] == 0) continue;
                       x[id] = (x[id] > 0 ? x[id] / 1.5f : x[id] * 1.5f) - 0.25f * kTimes[id] - 0.5f;
                     }
                   }};
  penalties.params.repetition_penalty = 1.5;
  penalties.params.frequency_penalty = 0.25;
  penalties.params.presence_penalty = 0.5;
  targets.push_back(penalties);
  Target mask{"mask", params_of({"", 1, 0.9, 0, 0}), {}, 0, {0b1011'0110'0101}, [](std::vector<float>& x) {
                for (int32_t id : {1, 3, 4, 7, 10}) x[id] = kMasked;
              }};
  targets.push_back(mask);
  return targets;
}

// What a drafter knows: the logits of the target after its edits, the probabilities it will draw from.
struct Drafter {
  std::string name;
  std::function<std::vector<float>(const std::vector<float>& edited, const std::vector<double>& p)> logits;
};

const std::vector<Drafter> kDrafters = {
    {"good",
     [](const auto& edited, const auto&) {
       std::vector<float> x = random_logits(kVocab, 40, 0.4);
       for (int32_t id = 0; id < kVocab; ++id) x[id] += edited[id];
       return x;
     }},
    {"bad", [](const auto&, const auto&) { return random_logits(kVocab, 41, 2); }},
    {"sharp",
     [](const auto& edited, const auto&) {
       std::vector<float> x = edited;
       for (float& f : x) f *= 3;
       return x;
     }},
    {"equal before truncation", [](const auto& edited, const auto&) { return edited; }},
    {"certain of the likeliest",
     [](const auto& edited, const auto&) {
       std::vector<float> x(kVocab, kMasked);
       x[argmax(edited)] = 0;
       return x;
     }},
    {"adversarial: only what the target never draws",
     [](const auto&, const auto& p) {
       std::vector<float> x(kVocab, kMasked);
       for (int32_t id = 0; id < kVocab; ++id)
         if (p[id] == 0) x[id] = static_cast<float>(id) / 4;
       return x;
     }},
};

struct Outcome {
  std::vector<int64_t> seen = std::vector<int64_t>(kVocab, 0);
  int64_t num_accepted = 0, num_drafts = 0;
};

// Judges one draft at each of `count` positions. draft(position) draws it.
Outcome judge(const std::vector<float>& logits, const Target& t, std::span<const float> draft_logits, int64_t count,
              const std::function<int32_t(int64_t)>& draft) {
  SamplingState state(t.params, kSeed, {});
  for (size_t i = 0; i + t.num_assumed < t.output.size(); ++i) state.append(t.output[i]);
  std::vector<SampleRow> rows;
  for (int64_t i = 0; i < count; ++i)
    rows.push_back({.position = i,
                    .state = &state,
                    .output = t.output,
                    .num_assumed = t.num_assumed,
                    .allowed = t.allowed,
                    .draft = draft(i),
                    .coupled = false,
                    .draft_logits = draft_logits});
  ThreadPool pool(1);
  Sampler sampler(kVocab, pool);
  std::vector<Sample> samples;
  sampler.prepare(rows);
  sampler.sample(View<const float, 2>(logits.data(), {1, kVocab}), samples);
  Outcome out;
  for (int64_t i = 0; i < count; ++i) {
    ++out.seen.at(samples[i].token);
    out.num_accepted += samples[i].token == rows[i].draft, ++out.num_drafts;
  }
  return out;
}

double overlap(const std::vector<double>& p, const std::vector<double>& q) {
  double sum = 0;
  for (int32_t id = 0; id < kVocab; ++id) sum += std::min(p[id], q[id]);
  return std::min(sum, 1.0);
}

void expect_outcome(const Outcome& o, const std::vector<double>& p, const std::vector<double>& q,
                    const std::string& where) {
  const ChiSquare fit = chi_square(p, o.seen);
  EXPECT_LT(fit.value, fit.limit) << where;
  const double rate = overlap(p, q), n = static_cast<double>(o.num_drafts);
  EXPECT_NEAR(static_cast<double>(o.num_accepted), rate * n, 4 * std::sqrt(n * rate * (1 - rate)) + 1e-6) << where;
}

TEST(RejectionSampler, TheTokenIsTheTargetsAndTheDraftIsAcceptedAsOftenAsTheyOverlap) {
  const std::vector<float> logits = random_logits(kVocab, 5, 1.5);
  for (const Target& t : all_targets()) {
    std::vector<float> edited = logits;
    t.edit(edited);
    const std::vector<double> p = distribution_of(edited, t.params);
    SamplingParams temperature_only;
    temperature_only.temperature = t.params.temperature;
    for (const Drafter& d : kDrafters) {
      const std::vector<float> draft_logits = d.logits(edited, p);
      if (argmax(draft_logits) < 0) continue;  // this target can draw everything
      const Outcome o = judge(logits, t, draft_logits, kDraws, [&](int64_t position) {
        return sample_draft(draft_logits, t.params.temperature, Noise::draft(kSeed, position - 1, position));
      });
      expect_outcome(o, p, distribution_of(draft_logits, temperature_only), t.name + ", " + d.name);
    }
  }
}

TEST(RejectionSampler, ADraftWithoutLogitsWasCertain) {
  const std::vector<float> logits = random_logits(kVocab, 5, 1.5);
  for (const Target& t : all_targets()) {
    std::vector<float> edited = logits;
    t.edit(edited);
    for (const int32_t draft : {argmax(edited), 0, 5, 10}) {
      std::vector<double> q(kVocab, 0);
      q[draft] = 1;
      const Outcome o = judge(logits, t, {}, kDraws, [&](int64_t) { return draft; });
      expect_outcome(o, distribution_of(edited, t.params), q, t.name + ", draft " + std::to_string(draft));
    }
  }
}

TEST(RejectionSampler, ADrafterEqualToTheTargetIsAlwaysAccepted) {
  const std::vector<float> logits = random_logits(kVocab, 6, 1.5);
  for (const double temperature : {0.1, 1.0, 2.0}) {
    Target t{"plain", {}};
    t.params.temperature = temperature;
    const Outcome o = judge(logits, t, logits, 50000, [&](int64_t position) {
      return sample_draft(logits, temperature, Noise::draft(kSeed, position - 1, position));
    });
    EXPECT_EQ(o.num_accepted, o.num_drafts) << temperature;
  }
}

// Three tokens of a chain, drafted in blocks of two that start again after each rejection.
class Chain {
 public:
  using DraftNoise = std::function<Noise(int64_t anchor_position, int64_t position)>;

  ChiSquare fit_of_pairs(const DraftNoise& noise, int64_t count) {
    std::vector<int64_t> seen(kVocab * kVocab, 0);
    for (int64_t i = 0; i < count; ++i) {
      const std::vector<int32_t> tokens = walk(noise, 10 * i);
      ++seen[tokens[2] * kVocab + tokens[3]];
    }
    return chi_square(expected_pairs(), seen);
  }

 private:
  static std::vector<float> target(int32_t last) { return random_logits(kVocab, 100 + last, 1.2); }
  static std::vector<float> drafter(int32_t last) {
    std::vector<float> x = random_logits(kVocab, 200 + last, 1);
    for (int32_t id = 0; id < kVocab; ++id) x[id] += targets()[last][id];
    return x;
  }
  template <class Make>
  static std::vector<std::vector<float>> table(const Make& make) {
    std::vector<std::vector<float>> rows;
    for (int32_t last = 0; last < kVocab; ++last) rows.push_back(make(last));
    return rows;
  }
  static const std::vector<std::vector<float>>& targets() {
    static const auto rows = table(target);
    return rows;
  }
  static const std::vector<std::vector<float>>& drafters() {
    static const auto rows = table(drafter);
    return rows;
  }

  // Token 0, then at least three drawn at the positions begin + 1 and on.
  std::vector<int32_t> walk(const DraftNoise& noise, int64_t begin) {
    std::vector<int32_t> tokens = {0};
    while (tokens.size() < 4) {
      const int64_t anchor_position = begin + static_cast<int64_t>(tokens.size()) - 1;
      std::vector<int32_t> block = {tokens.back()};
      std::vector<float> logits;
      std::vector<SampleRow> rows;
      for (int32_t k = 0; k < 3; ++k) {
        const std::vector<float>& x = targets()[block[k]];
        logits.insert(logits.end(), x.begin(), x.end());
        SampleRow row{.logit_row = k, .position = anchor_position + k + 1, .state = &state_, .coupled = false};
        if (k < 2) {
          row.draft_logits = drafters()[block[k]];
          row.draft = sample_draft(row.draft_logits, 1, noise(anchor_position, row.position));
          block.push_back(row.draft);
        }
        rows.push_back(row);
      }
      sampler_.prepare(rows);
      sampler_.sample(View<const float, 2>(logits.data(), {3, kVocab}), samples_);
      for (int32_t k = 0; k < 3; ++k) {
        tokens.push_back(samples_[k].token);
        if (tokens.back() != rows[k].draft) break;
      }
    }
    return tokens;
  }

  // Of the second and the third token drawn.
  static std::vector<double> expected_pairs() {
    const SamplingParams p;
    const std::vector<double> first = distribution_of(targets()[0], p);
    std::vector<double> pairs(kVocab * kVocab, 0);
    for (int32_t a = 0; a < kVocab; ++a) {
      const std::vector<double> second = distribution_of(targets()[a], p);
      for (int32_t b = 0; b < kVocab; ++b) {
        const std::vector<double> third = distribution_of(targets()[b], p);
        for (int32_t c = 0; c < kVocab; ++c) pairs[b * kVocab + c] += first[a] * second[b] * third[c];
      }
    }
    return pairs;
  }

  ThreadPool pool_{1};
  Sampler sampler_{kVocab, pool_};
  SamplingParams params_;
  SamplingState state_{params_, kSeed, {}};
  std::vector<Sample> samples_;
};

TEST(RejectionSampler, BlocksThatStartAgainKeepTheLawOfConsecutiveTokens) {
  const ChiSquare fit = Chain().fit_of_pairs(
      [](int64_t anchor, int64_t position) { return Noise::draft(kSeed, anchor, position); }, kChains);
  EXPECT_LT(fit.value, fit.limit);
}

// The test above is sharp enough to see a draft that shares its noise with the judgement.
TEST(RejectionSampler, SharedNoiseWouldBeSeen) {
  for (const NoiseStream shared : {NoiseStream::kAccept, NoiseStream::kResample}) {
    const ChiSquare fit =
        Chain().fit_of_pairs([&](int64_t, int64_t position) { return Noise(kSeed, position, shared); }, kChains / 2);
    EXPECT_GT(fit.value, 1.5 * fit.limit) << static_cast<int>(shared);
  }
}

TEST(RejectionSampler, ADraftThatCannotHaveBeenProposedIsAsIfThereWereNone) {
  struct Case {
    std::string name;
    int32_t draft;
    std::vector<float> draft_logits;
  };
  std::vector<float> with_nan(kVocab, 0), with_inf(kVocab, 0), without_3(kVocab, 0);
  with_nan[9] = kNan, with_inf[9] = kInf, without_3[3] = kMasked;
  const std::vector<Case> cases = {
      {"none", -1, {}},
      {"below the vocabulary", -5, {}},
      {"just beyond the vocabulary", kVocab, {}},
      {"far beyond it, with logits", std::numeric_limits<int32_t>::max(), std::vector<float>(kVocab, 0)},
      {"NaN in its logits", 3, with_nan},
      {"infinity in its logits", 3, with_inf},
      {"all masked", 3, std::vector<float>(kVocab, kMasked)},
      {"excluded by its own logits", 3, without_3},
  };
  const std::vector<float> logits = random_logits(kVocab, 5, 1.5);
  const SamplingParams p;
  const SamplingState state(p, kSeed, {});
  ThreadPool pool(1);
  Sampler sampler(kVocab, pool);
  for (const Case& c : cases) {
    for (int64_t position = 0; position < 200; ++position) {
      const std::array<SampleRow, 2> rows = {SampleRow{.position = position, .state = &state},
                                             SampleRow{.position = position,
                                                       .state = &state,
                                                       .draft = c.draft,
                                                       .coupled = false,
                                                       .draft_logits = c.draft_logits}};
      std::vector<Sample> samples;
      sampler.prepare(rows);
      sampler.sample(View<const float, 2>(logits.data(), {1, kVocab}), samples);
      EXPECT_EQ(samples[1].token, samples[0].token) << c.name;
    }
  }
}

// Id 1 has probability 8.4e-10 or 1.25e-9; its drafter thinks less of it, so only the rule can reject it.
TEST(RejectionSampler, ADraftRarerThanOneInABillionIsRejected) {
  struct Case {
    float rare_logit;
    int32_t token;
  };
  const std::vector<float> draft_logits = {0, -23};
  for (const Case& c : {Case{-20.9f, 0}, Case{-20.5f, 1}}) {
    const std::vector<float> logits = {0, c.rare_logit};
    const auto p = softmax_of(logits, 0, 1);
    const std::optional<Proposal> q = proposal_of(1, draft_logits, 2, 1);
    for (int64_t position = 0; position < 100; ++position)
      EXPECT_EQ(rejection_sample(p, *q, kSeed, position), c.token) << c.rare_logit;
  }
}

// Only rounding can do it: here the proposal claims more than p everywhere.
TEST(RejectionSampler, IfNothingIsLeftOfTheResidualTheTargetIsDrawnFrom) {
  const std::vector<float> logits = {kMasked, 1, 1, kMasked}, draft_logits = {0, 1, 1, kMasked};
  const auto p = softmax_of(logits, 1, 1);
  std::optional<Proposal> q = proposal_of(0, draft_logits, 4, 1);
  q->log_sum -= 1;
  std::vector<int64_t> seen(4, 0);
  for (int64_t position = 0; position < 1000; ++position) ++seen.at(rejection_sample(p, *q, kSeed, position));
  const ChiSquare fit = chi_square({0, 0.5, 0.5, 0}, seen);
  EXPECT_LT(fit.value, fit.limit);
}

TEST(RejectionSampler, LogprobsAreTheTargetsWhateverBecomesOfTheDraft) {
  const std::vector<float> logits = random_logits(kVocab, 5, 1.5), draft_logits = random_logits(kVocab, 8, 1.5);
  for (const Setting& s : kSettings) {
    for (const bool processed : {false, true}) {
      SamplingParams p = params_of(s);
      p.num_logprobs = 0, p.processed_logprobs = processed;
      const std::vector<double> expected = distribution_of(logits, processed ? p : SamplingParams{});
      const SamplingState state(p, kSeed, {});
      ThreadPool pool(1);
      Sampler sampler(kVocab, pool);
      std::array<int, 2> times = {0, 0};
      for (int64_t position = 0; position < 60; ++position) {
        const SampleRow row{.position = position,
                            .state = &state,
                            .draft = sample_draft(draft_logits, s.temperature, Noise::draft(kSeed, 0, position)),
                            .coupled = false,
                            .draft_logits = draft_logits};
        std::vector<Sample> samples;
        sampler.prepare({&row, 1});
        sampler.sample(View<const float, 2>(logits.data(), {1, kVocab}), samples);
        const TokenLogprob& chosen = samples[0].logprobs->chosen;
        EXPECT_EQ(chosen.id, samples[0].token);
        EXPECT_NEAR(std::exp(static_cast<double>(chosen.logprob)), expected[chosen.id], 1e-6) << s.name;
        ++times[chosen.id == row.draft];
      }
      EXPECT_GT(times[0], 0) << s.name;
    }
  }
}

}  // namespace
}  // namespace nib
