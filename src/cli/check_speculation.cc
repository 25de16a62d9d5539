#include "cli/check_speculation.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>

#include "cli/generate.h"
#include "model/generation_config.h"

namespace nib::cli {

namespace {

constexpr int64_t kAnswerTokens = 96, kMaxPromptTokens = 48, kStreams = 16;
constexpr int64_t kModelLength = 2 * kAnswerTokens + kMaxPromptTokens;

// By the number of the prompt: every other one greedy, and in turn plain, with the best logprobs, with penalties, with
// truncation and bounds; one in five ends where the model ends it.
SamplingParams sampling(size_t index, const std::vector<int32_t>& eos_token_ids) {
  SamplingParams p;
  p.max_tokens = kAnswerTokens;
  p.temperature = index % 2 == 0 ? 0 : 1;
  if (index % 2 == 1) p.seed = static_cast<int64_t>(index);
  p.ignore_eos = index % 5 != 4;
  if (!p.ignore_eos) p.eos_token_ids = eos_token_ids;
  switch (index / 2 % 4) {
    case 0:
      break;
    case 1:
      p.num_logprobs = 5;
      break;
    case 2:
      p.num_logprobs = 0;
      p.repetition_penalty = 1.1, p.presence_penalty = 0.2, p.frequency_penalty = 0.1;
      break;
    default:
      p.num_logprobs = 0;
      p.logit_bias = {{1, 2.0f}, {2, -2.0f}};
      p.min_tokens = 8;
      if (index % 2 == 1) p.top_p = 0.9, p.min_p = 0.01;
  }
  return p;
}

std::vector<Request> random_requests(size_t count, int64_t vocab_size, const std::vector<int32_t>& eos_token_ids,
                                     uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<Request> requests(count);
  for (size_t i = 0; i < count; ++i) {
    requests[i].prompt.resize(1 + rng() % kMaxPromptTokens);
    for (int32_t& id : requests[i].prompt) id = static_cast<int32_t>(rng() % vocab_size);
    requests[i].sampling = sampling(i, eos_token_ids);
  }
  return requests;
}

// Prompts that the model wrote itself, for the most part: drafts are then accepted as often as they usually are.
std::vector<Request> continued(const std::vector<Request>& requests, const std::vector<Generated>& answers,
                               size_t count, const std::vector<int32_t>& eos_token_ids) {
  std::vector<Request> more(count);
  for (size_t i = 0; i < count; ++i) {
    more[i].prompt = requests[i].prompt;
    more[i].prompt.insert(more[i].prompt.end(), answers[i].tokens.begin(), answers[i].tokens.end());
    more[i].sampling = sampling(requests.size() + i, eos_token_ids);
  }
  return more;
}

Result<std::unique_ptr<Engine>> start(const std::filesystem::path& folder, const SpeculativeConfig& speculation) {
  NIB_ASSIGN(Models models, load_models(folder, {}, speculation));
  EngineConfig config;
  config.isa = best_isa();
  config.max_num_seqs = kStreams;
  config.max_num_batched_tokens = 128;  // cuts some prompts
  config.max_model_len = std::min(kModelLength, models.target->config().max_position);
  config.speculation = speculation;
  return Engine::start(std::move(models), config);
}

bool has_drafter(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(folder / "dspark_config.json", error) ||
         std::filesystem::exists(folder / "mtp.safetensors", error);
}

// What ends an answer of this model: of its config.json and its generation_config.json.
Result<std::vector<int32_t>> eos_of(const std::filesystem::path& folder, const ModelConfig& model) {
  NIB_ASSIGN(const GenerationDefaults defaults, GenerationDefaults::load(folder));
  std::vector<int32_t> ids = model.eos_token_ids;
  ids.insert(ids.end(), defaults.eos_token_ids.begin(), defaults.eos_token_ids.end());
  return ids;
}

Result<SpeculativeConfig> choose_speculation(const std::filesystem::path& folder, int64_t num_speculative_tokens) {
  if (!has_drafter(folder)) {
    if (num_speculative_tokens > 0)
      return invalid(
          "--num-speculative-tokens {}: {} has no drafter (mtp.safetensors, dspark_config.json); leave the flag out to "
          "check "
          "copying",
          num_speculative_tokens, folder.string());
    fmt::print("no drafter in the folder: drafts are copied from the sequence itself\n");
    return SpeculativeConfig::from_json({{"method", "ngram"}});
  }
  Json config = {{"method", "dspark"}, {"draft_sample_method", "probabilistic"}};
  if (num_speculative_tokens > 0) config["num_speculative_tokens"] = num_speculative_tokens;
  return SpeculativeConfig::from_json(config);
}

struct Run {
  std::vector<Request> requests;
  std::vector<Generated> answers;
};

// The answers without speculation; half of the prompts are made of them.
Result<Run> run_plain(const std::filesystem::path& folder, const SpeculationCheck& o) {
  NIB_ASSIGN(const std::unique_ptr<Engine> engine, start(folder, {}));
  const size_t half = (o.num_prompts + 1) / 2;
  NIB_ASSIGN(const std::vector<int32_t> eos, eos_of(folder, engine->model()));
  Run run{random_requests(half, engine->model().unpadded_vocab_size, eos, o.seed), {}};
  NIB_ASSIGN(run.answers, generate(*engine, run.requests, kStreams));
  std::vector<Request> more = continued(run.requests, run.answers, o.num_prompts - half, eos);
  NIB_ASSIGN(std::vector<Generated> answers, generate(*engine, more, kStreams));
  std::ranges::move(more, std::back_inserter(run.requests));
  std::ranges::move(answers, std::back_inserter(run.answers));
  return run;
}

}  // namespace

Status check_speculation(const std::filesystem::path& folder, const SpeculationCheck& o) {
  NIB_ASSIGN(const SpeculativeConfig speculation, choose_speculation(folder, o.num_speculative_tokens));
  NIB_ASSIGN(const Run plain, run_plain(folder, o));
  NIB_ASSIGN(const std::unique_ptr<Engine> engine, start(folder, speculation));
  NIB_ASSIGN(const std::vector<Generated> answers, generate(*engine, plain.requests, kStreams));
  if (const std::optional<Difference> d = first_difference(plain.answers, answers))
    return invalid("prompt {}, position {}: {} without speculation, {} with it", d->prompt, d->position, d->first,
                   d->second);
  size_t tokens = 0, logprobs = 0;
  for (const Generated& a : answers) tokens += a.tokens.size(), logprobs += a.logprobs.size();
  fmt::print("identical: {} prompts, {} tokens, logprobs of {} of them, with and without speculation\n", answers.size(),
             tokens, logprobs);
  const Acceptance a = acceptance({}, engine->stats());
  fmt::print("acceptance length {:.2f} in {} drafts; accepted by position: {}\n", a.length(), a.drafts,
             a.drafts == 0 ? "none" : a.positions());
  return {};
}

}  // namespace nib::cli
