// Speculation over real networks against the same networks without: tokens and logprobs, bit for bit.
#include <gtest/gtest.h>

#include "engine/testing/step_loop.h"

namespace nib {
namespace {

using testing::Answer;
using testing::StepLoop;
using testing::StepLoopConfig;
using Method = SpeculativeConfig::Method;

struct Run {
  std::string folder;
  bool f32 = false;
  Isa isa = Isa::kRef;
  int64_t rows = 64;  // of a step
  SpeculativeConfig speculation = {};
};

SpeculativeConfig copies() {
  SpeculativeConfig s;
  s.method = Method::kNgram;
  s.copy_drafts = true;
  s.max_copy_tokens = 15;
  s.prompt_lookup_min = 1, s.prompt_lookup_max = 8;
  return s;
}

SpeculativeConfig drafts(int64_t depth, bool with_copies) {
  SpeculativeConfig s = with_copies ? copies() : SpeculativeConfig{};
  s.prompt_lookup_min = 3, s.prompt_lookup_max = 24;
  s.method = Method::kDspark;
  s.num_speculative_tokens = depth;
  s.probabilistic_drafts = true;
  return s;
}

struct Served {
  std::vector<Answer> answers;
  EngineStats stats;
};

// Room for all but one of the requests at a time.
Served serve(const Run& run, const std::vector<Request>& requests) {
  LoadOptions options;
  options.f32 = run.f32;
  Result<Models> models = load_models(std::string(NIB_SOURCE_DIR) + "/" + run.folder, options, run.speculation);
  NIB_CHECK(models.ok(), "{}", models.status().message());
  const auto seats = static_cast<int64_t>(requests.size()) - 1;
  StepLoopConfig c;
  c.max_model_len = 128;
  c.max_num_batched_tokens = run.rows;
  c.isa = run.isa;
  c.num_threads = 2;
  c.speculation = run.speculation;
  c.pools.clear();
  for (const CacheSpec& s : models->cache_specs())
    c.pools.push_back(seats * blocks_of_sequence(s, c.max_model_len, run.rows));
  StepLoop loop(c, std::move(*models));
  for (const Request& r : requests) loop.add(r);
  loop.run();
  Served out{{}, loop.stats()};
  for (size_t i = 0; i < requests.size(); ++i) out.answers.push_back(loop.answer(i + 1, 0));
  return out;
}

void expect_same(const Run& plain, const Run& speculative, const std::vector<Request>& requests, EngineStats& stats) {
  const Served want = serve(plain, requests), got = serve(speculative, requests);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(got.answers[i], want.answers[i]) << "request " << i;
  stats = got.stats;
}

std::vector<Isa> isas() {
  std::vector<Isa> out;
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAmx})
    if (isa_from_name(name(isa)).ok()) out.push_back(isa);
  return out;
}

// Every second one is greedy, the others have a seed.
std::vector<Request> requests_of(const std::vector<std::vector<int32_t>>& prompts, int64_t max_tokens) {
  std::vector<Request> out;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request r;
    r.prompt = prompts[i];
    r.sampling.max_tokens = max_tokens;
    r.sampling.temperature = i % 2 ? 0.6 : 0;
    r.sampling.seed = i;
    r.sampling.num_logprobs = 2;
    out.push_back(r);
  }
  return out;
}

TEST(RealNetworks, CopiesChangeNoBitOfATinyNetwork) {
  std::vector<std::vector<int32_t>> prompts;
  for (int32_t i = 0; i < 5; ++i) {
    prompts.emplace_back();
    for (int32_t t = 0; t < 40; ++t) prompts.back().push_back(5 + i * 3 + t % (3 + i));
  }
  for (const char* folder : {"inkling2-tiny-a", "inkling2-switches-a", "inkling2-switches-b"})
    for (const bool f32 : {false, true})
      for (const Isa isa : isas()) {
        SCOPED_TRACE(fmt::format("{} {} {}", folder, f32 ? "f32" : "bf16", name(isa)));
        const std::string path = std::string("tests/data/oracle/") + folder;
        EngineStats stats;
        expect_same({path, f32, isa, 24}, {path, f32, isa, 33, copies()}, requests_of(prompts, 40), stats);
        EXPECT_GT(stats.num_drafts, 20);
      }
}

// Questions of its own kind: a product, a sort, a copy, a word, a greeting, a difference.
const std::vector<std::vector<int32_t>> kQuestions = {
    {4827, 382, 220, 4146, 4238, 220, 23, 18, 30},
    {50, 390, 1879, 6391, 25, 275, 830, 11, 5840, 11, 1053, 282, 11, 3314, 7491},
    {34, 2074, 495, 25, 220, 23, 18, 74, 67, 24, 17, 3727, 262, 428, 1788, 220, 3336, 16, 16},
    {4827, 2226, 692, 617, 4774, 30},
    {39, 6053, 0, 486, 1555, 553, 481, 30},
    {4827, 382, 220, 24, 16, 1349, 385, 220, 2991, 30},
};

std::vector<Request> nano_requests() {
  std::vector<std::vector<int32_t>> prompts;
  for (const std::vector<int32_t>& question : kQuestions) {
    prompts.push_back({8195, 8197, 1139, 881, 289, 6942, 3211, 25, 220, 15, 13, 24, 8201, 8193, 8197});
    prompts.back().insert(prompts.back().end(), question.begin(), question.end());
    prompts.back().insert(prompts.back().end(), {8201, 8194});
  }
  return requests_of(prompts, 32);
}

TEST(RealNetworks, NanoAnswersTheSameWithItsDrafterAndFaster) {
  const std::vector<Request> requests = nano_requests();
  const Isa isa = best_isa();
  const Served want = serve({"models/nano", false, isa}, requests);
  for (const int64_t depth : {1, 4, 7})
    for (const bool with_copies : {false, true}) {
      if (with_copies && depth < 7) continue;
      const Served got = serve({"models/nano", false, isa, 64, drafts(depth, with_copies)}, requests);
      for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(got.answers[i], want.answers[i]) << "depth " << depth << ", request " << i;
      const double length = 1 + static_cast<double>(got.stats.num_accepted_tokens) / got.stats.num_drafts;
      EXPECT_GT(length, depth == 1 ? 1.5 : 2) << depth;
      EXPECT_LT(got.stats.num_steps, want.stats.num_steps * 3 / 4) << depth;
    }
}

}  // namespace
}  // namespace nib
