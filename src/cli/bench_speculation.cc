// nib bench speculation: real prompts through the engine with and without speculation, in turns, at several loads.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "cli/commands.h"
#include "cli/eval_tasks.h"
#include "cli/generate.h"
#include "cli/machine.h"
#include "text/chat.h"

namespace nib::cli {

namespace {

struct Options {
  std::string model, data, out;
  std::vector<int64_t> streams = {1, 8, 32};
  int64_t repeats = 3, prompts = 32, max_tokens = 256, seed = 1;
  int threads = 0;
};

// One way to decode; the first is what the others are compared with.
struct Mode {
  const char* name;
  const char* config;  // --speculative-config; empty: none
};
constexpr Mode kModes[] = {
    {"none", ""},
    {"dspark", R"({"method":"dspark","draft_sample_method":"probabilistic"})"},
    {"dspark adaptive",
     R"({"method":"dspark","draft_sample_method":"probabilistic","enable_adaptive_verification":true})"},
    {"ngram", R"({"method":"ngram"})"},
};

struct Sampling {
  const char* name;
  double temperature;
  bool seeded;
  bool exact() const { return temperature == 0 || seeded; }  // the same tokens with and without speculation
};
constexpr Sampling kSamplings[] = {{"greedy", 0, false}, {"T=1", 1, false}, {"T=1 seeded", 1, true}};

struct Workload {
  const char* name;
  std::vector<std::vector<int32_t>> prompts;
};

// Renders questions as the server does.
class PromptMaker {
 public:
  static Result<PromptMaker> load(const std::string& model) {
    PromptMaker maker;
    NIB_ASSIGN(maker.tokenizer_, Tokenizer::load(model));
    NIB_ASSIGN(maker.format_, ChatFormat::resolve(*maker.tokenizer_, /*vision=*/false));
    return maker;
  }
  Result<std::vector<int32_t>> render(const std::string& question, double effort) const {
    const Json request = {{"messages", Json::array({{{"role", "user"}, {"content", question}}})},
                          {"reasoning_effort", effort}};
    NIB_ASSIGN(const RenderedPrompt prompt, render_chat(*tokenizer_, format_, request, {}));
    return prompt.ids;
  }
  const std::vector<TokenId>& stop_ids() const { return format_.stop_ids; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  ChatFormat format_{};
};

// The kinds of `nib eval` in turn, with thinking.
Result<Workload> chat_workload(const PromptMaker& maker, const TaskMaker& tasks, int64_t count) {
  constexpr TaskKind kKinds[] = {TaskKind::kArithmetic, TaskKind::kCopy, TaskKind::kSort, TaskKind::kRecall,
                                 TaskKind::kCopySentence};
  Workload w{"chat", {}};
  for (int64_t i = 0; i < count; ++i) {
    const Task task = tasks.make(kKinds[i % std::size(kKinds)], static_cast<int>(i), /*think=*/true);
    NIB_ASSIGN(w.prompts.emplace_back(), maker.render(task.question, 0.9));
  }
  return w;
}

// Some definitions, to be repeated: what is written next stands in the prompt.
Result<Workload> rewrite_workload(const PromptMaker& maker, const TaskMaker& tasks, int64_t count) {
  constexpr size_t kWords = 24;  // more than nano repeats without a slip
  Workload w{"rewrite", {}};
  for (int64_t i = 0, index = 0; i < count; ++i) {
    std::string text;
    for (size_t words = 0; words < kWords; ++index) {
      const std::string part = tasks.make(TaskKind::kCopySentence, static_cast<int>(index), true).answer;
      words += 1 + std::ranges::count(part, ' ');
      text += (text.empty() ? "" : "\n") + part;
    }
    NIB_ASSIGN(w.prompts.emplace_back(), maker.render("Repeat exactly: " + text, 0.0));
  }
  return w;
}

std::vector<Request> requests_of(const Workload& w, const Sampling& s, const Options& o,
                                 const std::vector<TokenId>& stop_ids) {
  std::vector<Request> requests(w.prompts.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = w.prompts[i];
    SamplingParams& p = requests[i].sampling;
    p.temperature = s.temperature, p.max_tokens = o.max_tokens, p.eos_token_ids = stop_ids;
    if (s.seeded) p.seed = static_cast<int64_t>(i);
  }
  return requests;
}

double median(std::vector<double> x) {
  std::ranges::nth_element(x, x.begin() + static_cast<int64_t>(x.size() / 2));
  return x[x.size() / 2];
}

// All ways to decode, each with an engine that lives as long as this.
class Bench {
 public:
  static Result<Bench> start(const Options& o) {
    Bench bench(o);
    for (const Mode& mode : kModes) {
      EngineConfig config;
      config.isa = best_isa();
      config.num_threads = o.threads;
      config.max_num_seqs = *std::ranges::max_element(o.streams);
      config.max_model_len = 4096;
      config.kv_cache_memory_bytes = int64_t{512} << 20;
      if (*mode.config != '\0') {
        NIB_ASSIGN(const Json json, parse_json(mode.config));
        NIB_ASSIGN(config.speculation, SpeculativeConfig::from_json(json));
      }
      NIB_ASSIGN(Models models, load_models(o.model, {}, config.speculation));
      NIB_ASSIGN(std::unique_ptr<Engine> engine, Engine::start(std::move(models), config));
      bench.engines_.push_back(std::move(engine));
    }
    return bench;
  }

  // One row of the table for each way to decode.
  Status run(const Workload& w, const Sampling& s, int64_t streams, const std::vector<TokenId>& stop_ids) {
    const std::vector<Request> requests = requests_of(w, s, options_, stop_ids);
    std::vector<Measured> measured(std::size(kModes));
    std::vector<Generated> expected;
    for (int64_t repeat = 0; repeat < options_.repeats; ++repeat) {
      for (size_t m = 0; m < std::size(kModes); ++m) {
        NIB_ASSIGN(std::vector<Generated> answers, time(*engines_[m], requests, streams, measured[m]));
        if (repeat == 0 && m == 0)
          expected = std::move(answers);
        else if (const auto d = s.exact() ? first_difference(expected, answers) : std::nullopt)
          return invalid("{}, {}, {} streams, {}: prompt {}, position {}: {} at first, {} now", w.name, s.name, streams,
                         kModes[m].name, d->prompt, d->position, d->first, d->second);
      }
    }
    for (size_t m = 0; m < std::size(kModes); ++m) print(w, s, streams, kModes[m], measured[m], measured[0]);
    return {};
  }

  Status write() const {
    if (options_.out.empty()) return {};
    const Json all = {{"command", fmt::format("nib bench speculation {}", options_.model)},
                      {"date", utc_date()},
                      {"cpu", cpu_name()},
                      {"threads", engines_[0]->config().num_threads},
                      {"isa", name(engines_[0]->config().isa)},
                      {"repeats", options_.repeats},
                      {"prompts", options_.prompts},
                      {"max_tokens", options_.max_tokens},
                      {"results", results_}};
    std::ofstream file(options_.out);
    file << all.dump(1) << "\n";
    if (!file.flush()) return invalid("--out {}: cannot be written", options_.out);
    return {};
  }

  void print_head() const {
    fmt::print("{}; {}; {}, {} threads, {}; median of {} in turns\n\n", options_.model, utc_date(), cpu_name(),
               engines_[0]->config().num_threads, name(engines_[0]->config().isa), options_.repeats);
    fmt::print(
        "| prompts | sampling | streams | speculation | decode tok/s | ratio | acceptance length | steps | by position "
        "|\n");
    fmt::print("|---|---|--:|---|--:|--:|--:|--:|---|\n");
  }

 private:
  struct Measured {
    std::vector<double> rates;  // tokens a second while decoding, by repeat
    Acceptance acceptance;      // of the last repeat, like what follows
    int64_t steps = 0, tokens = 0;
  };

  explicit Bench(const Options& o) : options_(o) {}

  static Result<std::vector<Generated>> time(Engine& engine, const std::vector<Request>& requests, int64_t streams,
                                             Measured& measured) {
    const EngineStats before = engine.stats();
    NIB_ASSIGN(std::vector<Generated> answers, generate(engine, requests, streams));
    const EngineStats after = engine.stats();
    measured.tokens = after.num_generation_tokens - before.num_generation_tokens;
    measured.steps = after.num_steps - before.num_steps;
    measured.acceptance = acceptance(before, after);
    measured.rates.push_back(decode_rate(answers, streams));
    return answers;
  }

  // Tokens a second of all streams between the first and the last token of each answer: reading prompts does not count,
  // but what it delays does.
  static double decode_rate(const std::vector<Generated>& answers, int64_t streams) {
    double tokens = 0, seconds = 0;
    for (const Generated& a : answers) {
      tokens += static_cast<double>(a.tokens.size()) - 1;
      seconds += static_cast<double>(a.times.last_token_ns - a.times.first_token_ns) * 1e-9;
    }
    return static_cast<double>(std::min<int64_t>(streams, answers.size())) * tokens / seconds;
  }

  void print(const Workload& w, const Sampling& s, int64_t streams, const Mode& mode, const Measured& m,
             const Measured& plain) {
    std::vector<double> ratios;  // of neighbours in time
    for (size_t i = 0; i < m.rates.size(); ++i) ratios.push_back(m.rates[i] / plain.rates[i]);
    const Acceptance& a = m.acceptance;
    fmt::print("| {} | {} | {} | {} | {:.0f} | {:.2f} | {:.2f} | {} | {} |\n", w.name, s.name, streams, mode.name,
               median(m.rates), median(ratios), a.length(), m.steps, a.positions());
    std::fflush(stdout);
    results_.push_back({{"prompts", w.name},
                        {"sampling", s.name},
                        {"streams", streams},
                        {"speculation", mode.name},
                        {"tokens_per_second", median(m.rates)},
                        {"ratio", median(ratios)},
                        {"tokens", m.tokens},
                        {"steps", m.steps},
                        {"drafts", a.drafts},
                        {"draft_tokens", a.draft_tokens},
                        {"accepted_by_position", a.by_position},
                        {"acceptance_length", a.length()}});
  }

  const Options& options_;
  std::vector<std::unique_ptr<Engine>> engines_;
  Json results_ = Json::array();
};

Status run(const Options& o) {
  if (o.streams.empty() || *std::ranges::min_element(o.streams) < 1)
    return invalid("--streams: numbers from 1 on are expected");
  NIB_ASSIGN(const PromptMaker maker, PromptMaker::load(o.model));
  NIB_ASSIGN(const TaskMaker tasks, TaskMaker::load(o.data.empty() ? o.model + "/eval" : o.data, o.seed));
  NIB_ASSIGN(const Workload chat, chat_workload(maker, tasks, o.prompts));
  NIB_ASSIGN(const Workload rewrite, rewrite_workload(maker, tasks, std::max<int64_t>(1, o.prompts / 8)));
  NIB_ASSIGN(Bench bench, Bench::start(o));
  bench.print_head();
  for (const Sampling& s : kSamplings)
    for (const int64_t streams : o.streams) NIB_TRY(bench.run(chat, s, streams, maker.stop_ids()));
  NIB_TRY(bench.run(rewrite, kSamplings[0], 1, maker.stop_ids()));
  fmt::print("\nGreedy and seeded answers were the same in every row, bit for bit.\n");
  return bench.write();
}

}  // namespace

void add_bench_speculation_command(CLI::App& bench, Exit& exit) {
  const auto o = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "speculation", "Tokens a second with and without speculation, and whether the answers are the same");
  command->add_option("model", o->model, "Model folder with a DSpark drafter")->required();
  command->add_option("--streams", o->streams, "Answers written at once (1,8,32)")->delimiter(',');
  command->add_option("--prompts", o->prompts, "Prompts a row (32)")->check(CLI::Range(1, 100'000));
  command->add_option("--max-tokens", o->max_tokens, "Of an answer (256)")->check(CLI::Range(1, 4096));
  command->add_option("--repeats", o->repeats, "Runs of each row; the median counts (3)")->check(CLI::Range(1, 1000));
  command->add_option("--seed", o->seed, "Of the prompts (1)");
  command->add_option("--threads", o->threads, "0: one per core")->check(CLI::Range(0, 1024));
  command->add_option("--data", o->data, "Folder of words.txt, heldout.txt and heldout_pairs.txt; default MODEL/eval");
  command->add_option("--out", o->out, "Also write the results to this JSON file");
  command->callback([o, &exit] { exit.code = report("bench speculation", run(*o)); });
}

}  // namespace nib::cli
