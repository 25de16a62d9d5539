// nib eval: asks a served model generated questions and prints how many it gets exactly right.
#include <atomic>
#include <cmath>
#include <fstream>
#include <functional>
#include <iostream>
#include <mutex>
#include <set>
#include <thread>

#include "base/json.h"
#include "cli/child_server.h"
#include "cli/commands.h"
#include "cli/eval_tasks.h"
#include "server/http_client.h"

namespace nib::cli {

namespace {

struct EvalOptions {
  std::string model, url, api_key, data, out, speculative_config;
  std::vector<std::string> tasks;
  int count = 100;       // instances a row
  uint64_t seed = 1;     // of the instances
  int concurrency = 16;  // questions open at once
};

// A row of the table: a task at one thinking effort.
struct Row {
  std::string_view name;
  TaskKind kind;
  double effort;
  std::string_view title;
};
constexpr Row kRows[] = {
    {"arithmetic", TaskKind::kArithmetic, 0.9, "two-digit + - *, worked out in the thinking block"},
    {"arithmetic", TaskKind::kArithmetic, 0.0, "two-digit + -, answered at once"},
    {"copy", TaskKind::kCopy, 0.9, "copying words, random strings and numbers, with thinking"},
    {"copy", TaskKind::kCopy, 0.0, "copying, at once"},
    {"copy-sentence", TaskKind::kCopySentence, 0.9, "copying definitions with words it never learned, with thinking"},
    {"sort", TaskKind::kSort, 0.9, "sorting 3 to 6 words, with thinking"},
    {"sort", TaskKind::kSort, 0.0, "sorting, at once"},
    {"recall", TaskKind::kRecall, 0.9, "one value out of 3 to 170 lines, with thinking"},
    {"recall", TaskKind::kRecall, 0.0, "recall, at once"},
};
constexpr const char* kBits = "bits";        // bits per byte on unseen dictionary entries
constexpr const char* kAnswers = "answers";  // answers printed in full
constexpr int kMaxTokens = 400;              // longer answers count as wrong

struct Reply {
  std::string content, reasoning, finish_reason;
  int64_t completion_tokens = 0, accepted_drafts = 0;
};

// Asks one server; a client a thread, so that questions overlap.
class Asker {
 public:
  Asker(std::string url, const EvalOptions& options) : url_(std::move(url)), options_(options) {}

  // Calls ask(client, i) for i in [0, count) on some threads; the first failure is the result.
  Status for_each(int count, const std::function<Status(HttpClient&, int)>& ask) const {
    std::atomic<int> next{0};
    std::mutex mutex;
    Status first;
    auto work = [&] {
      HttpClientOptions http;
      http.api_key = options_.api_key;
      Result<HttpClient> client = HttpClient::open(url_, http);
      Status status = client.ok() ? Status() : client.status();
      for (int i; status.ok() && (i = next++) < count;) status = guarded(ask, *client, i);
      if (status.ok()) return;
      next = count;
      std::lock_guard lock(mutex);
      if (first.ok()) first = status;
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < std::min(count, options_.concurrency); ++t) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    return first;
  }

 private:
  // An answer without the fields of the API is the server's fault, not ours.
  static Status guarded(const std::function<Status(HttpClient&, int)>& ask, HttpClient& client, int i) {
    try {
      return ask(client, i);
    } catch (const Json::exception& e) {
      return invalid("the server's answer has not the shape of the OpenAI API: {}", e.what());
    }
  }

  std::string url_;
  const EvalOptions& options_;
};

Result<Reply> chat(HttpClient& client, const std::string& question, double effort) {
  const Json body = {{"messages", Json::array({{{"role", "user"}, {"content", question}}})},
                     {"temperature", 0},
                     {"max_tokens", kMaxTokens},
                     {"reasoning_effort", effort}};
  NIB_ASSIGN(const Json answer, client.post("/v1/chat/completions", body));
  const Json& choice = answer.at("choices").at(0);
  auto text = [&](const char* key) {
    const Json& message = choice.at("message");
    return message.contains(key) && message[key].is_string() ? message[key].get<std::string>() : std::string();
  };
  const Json& usage = answer.at("usage");
  const Json details = usage.value("completion_tokens_details", Json::object());
  return Reply{text("content"), text("reasoning"), choice.at("finish_reason").get<std::string>(),
               usage.at("completion_tokens").get<int64_t>(), details.value("accepted_prediction_tokens", int64_t{0})};
}

Result<Json> run_row(const Asker& asker, const TaskMaker& maker, const Row& row, int count) {
  std::vector<Json> replies(count);  // in the order of the instances: the same on every run
  std::atomic<int> right{0};
  std::atomic<int64_t> tokens{0}, accepted{0};
  NIB_TRY(asker.for_each(count, [&](HttpClient& client, int i) -> Status {
    const Task task = maker.make(row.kind, i, row.effort > 0);
    NIB_ASSIGN(const Reply reply, chat(client, task.question, row.effort));
    const bool is_right = reply.content == task.answer && reply.finish_reason == "stop";
    right += is_right;
    tokens += reply.completion_tokens;
    accepted += reply.accepted_drafts;
    replies[i] = {{"question", task.question},
                  {"want", task.answer},
                  {"got", reply.content},
                  {"reasoning", reply.reasoning},
                  {"right", is_right}};
    return {};
  }));
  return Json{{"task", row.name},
              {"effort", row.effort},
              {"right", right.load()},
              {"count", count},
              {"percent", 100.0 * right / count},
              {"tokens_per_step", static_cast<double>(tokens) / static_cast<double>(tokens - accepted)},
              {"replies", replies}};
}

// Each entry as a document of its own behind <|endoftext|>; its own tokens count.
Result<Json> bits_per_byte(const Asker& asker, const std::vector<std::string>& entries) {
  std::vector<double> nats(entries.size());
  NIB_TRY(asker.for_each(static_cast<int>(entries.size()), [&](HttpClient& client, int i) -> Status {
    const Json body = {{"prompt", "<|endoftext|>" + entries[i]},
                       {"max_tokens", 1},
                       {"temperature", 0},
                       {"echo", true},
                       {"logprobs", 0}};
    NIB_ASSIGN(const Json answer, client.post("/v1/completions", body));
    const Json& values = answer.at("choices").at(0).at("logprobs").at("token_logprobs");
    const size_t prompt_tokens = answer.at("usage").at("prompt_tokens").get<size_t>();
    for (size_t t = 1; t < prompt_tokens; ++t) nats[i] -= values.at(t).get<double>();
    return {};
  }));
  double sum = 0, bytes = 0;  // in the order of the entries: the same figure on every run
  for (size_t i = 0; i < entries.size(); ++i) {
    sum += nats[i];
    bytes += static_cast<double>(entries[i].size());
  }
  return Json{{"entries", entries.size()}, {"bytes", bytes}, {"bits_per_byte", sum / std::log(2.0) / bytes}};
}

Result<Json> read_answers(const Asker& asker) {
  const std::vector<std::string>& questions = questions_to_read();
  std::vector<Json> answers(questions.size());
  NIB_TRY(asker.for_each(static_cast<int>(questions.size()), [&](HttpClient& client, int i) -> Status {
    NIB_ASSIGN(const Reply reply, chat(client, questions[i], 0.9));
    answers[i] = {{"question", questions[i]},
                  {"reasoning", reply.reasoning},
                  {"answer", reply.content},
                  {"finish_reason", reply.finish_reason}};
    return {};
  }));
  return Json(answers);
}

void print_answers(const Json& answers) {
  fmt::print("\nAnswers in full (effort 0.9, temperature 0):\n");
  for (const Json& a : answers) {
    fmt::print("\n> {}\n", a["question"].get<std::string>());
    if (!a["reasoning"].empty()) fmt::print("  [{}]\n", a["reasoning"].get<std::string>());
    fmt::print("  {}\n", a["answer"].get<std::string>());
    if (a["finish_reason"] != "stop") fmt::print("  (ended by {})\n", a["finish_reason"].get<std::string>());
  }
}

// The chosen names, each known; nothing chosen: all.
Result<std::set<std::string>> choose(const std::vector<std::string>& tasks) {
  std::set<std::string> known = {kBits, kAnswers};
  for (const Row& row : kRows) known.insert(std::string(row.name));
  for (const std::string& task : tasks)
    if (!known.contains(task))
      return invalid("--tasks: there is no {}; there are arithmetic, copy, copy-sentence, sort, recall, bits, answers",
                     task);
  return tasks.empty() ? known : std::set<std::string>(tasks.begin(), tasks.end());
}

Result<Json> evaluate(const EvalOptions& options, const std::string& url, const std::set<std::string>& tasks) {
  NIB_ASSIGN(const TaskMaker maker, TaskMaker::load(options.data, options.seed));
  const Asker asker(url, options);
  Json report = {{"count", options.count}, {"seed", options.seed}, {"tasks", Json::array()}};
  for (const Row& row : kRows) {
    if (!tasks.contains(std::string(row.name))) continue;
    if (report["tasks"].empty()) fmt::print("| task | effort | instances | exact | what |\n|---|---|---|---|---|\n");
    NIB_ASSIGN(Json result, run_row(asker, maker, row, options.count));
    const double per_step = result["tokens_per_step"].get<double>();  // of a sequence; 1 without speculation
    fmt::print("| {} | {} | {} | {:.1f}% | {}{} |\n", row.name, row.effort, options.count,
               result["percent"].get<double>(), row.title,
               per_step > 1 ? fmt::format("; {:.2f} tokens a step", per_step) : "");
    std::fflush(stdout);
    report["tasks"].push_back(std::move(result));
  }
  if (tasks.contains(kBits)) {
    NIB_ASSIGN(report["bits"], bits_per_byte(asker, maker.heldout()));
    fmt::print("\n{} unseen dictionary entries, {} bytes: {:.3f} bits per byte\n",
               report["bits"]["entries"].get<size_t>(), report["bits"]["bytes"].get<double>(),
               report["bits"]["bits_per_byte"].get<double>());
  }
  if (tasks.contains(kAnswers)) {
    NIB_ASSIGN(report["answers"], read_answers(asker));
    print_answers(report["answers"]);
  }
  return report;
}

Status write_report(const std::string& path, const Json& report) {
  std::ofstream file(path);
  file << report.dump(1) << "\n";
  if (!file.flush()) return invalid("--out {}: cannot be written", path);
  return {};
}

Status run_eval(EvalOptions options) {
  NIB_ASSIGN(const std::set<std::string> tasks, choose(options.tasks));
  if (options.data.empty()) options.data = (options.url.empty() ? options.model : "models/nano") + "/eval";
  std::optional<ChildServer> child;
  if (options.url.empty()) {
    std::vector<std::string> flags;
    if (!options.speculative_config.empty()) flags = {"--speculative-config", options.speculative_config};
    NIB_ASSIGN(ChildServer started, ChildServer::start(options.model, flags));
    child.emplace(std::move(started));
  }
  NIB_ASSIGN(const Json report, evaluate(options, child ? child->url() : options.url, tasks));
  return options.out.empty() ? Status() : write_report(options.out, report);
}

}  // namespace

void add_eval_command(CLI::App& app, Exit& exit) {
  CLI::App& eval =
      *app.add_subcommand("eval", "Asks a model generated questions and prints how many answers are exact");
  auto options = std::make_shared<EvalOptions>();
  auto* model = eval.add_option("model", options->model, "Model folder; it is served on a free port meanwhile");
  auto* url = eval.add_option("--url", options->url, "A server that runs already, for example http://localhost:8000")
                  ->excludes(model);
  eval.add_option("--api-key", options->api_key, "Key of that server")->needs(url);
  eval.add_option("--speculative-config", options->speculative_config, "Of the server that is started; see nib serve")
      ->excludes(url);
  eval.add_option("--tasks", options->tasks,
                  "arithmetic, copy, copy-sentence, sort, recall, bits, answers; all if not given")
      ->delimiter(',');
  eval.add_option("--count", options->count, "Instances of each task")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  eval.add_option("--seed", options->seed, "Of the instances")->capture_default_str();
  eval.add_option("--concurrency", options->concurrency, "Questions open at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  eval.add_option("--data", options->data,
                  "Folder of words.txt, heldout.txt and heldout_pairs.txt; default MODEL/eval");
  eval.add_option("--out", options->out, "JSON file for the figures and all answers");
  eval.callback([options, &exit] {
    if (options->model.empty() && options->url.empty()) {
      fmt::print(stderr, "nib eval: give a model folder or --url\n");
      exit.code = 2;
      return;
    }
    if (const Status status = run_eval(*options); !status.ok()) {
      fmt::print(stderr, "nib eval: {}\n", status.message());
      exit.code = 1;
    }
  });
}

}  // namespace nib::cli
