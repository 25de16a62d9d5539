// nib serve: flags -> config -> model -> engine -> server, until a signal.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/serve_flags.h"
#include "model/checkpoint.h"
#include "model/generation_config.h"
#include "model/network.h"
#include "server/open_files.h"

namespace nib::cli {

namespace {

Status refuse_placeholders(const ModelConfig& config, const std::string& model) {
  if (config.placeholders.empty()) return {};
  std::string names;
  for (const std::string& p : config.placeholders) names += (names.empty() ? "" : ", ") + p;
  return invalid("{}: config.json holds placeholders for constants that are not public ({}); it cannot be served",
                 model, names);
}

template <class T>
void set(T& to, const std::optional<T>& value) {
  if (value) to = *value;
}

void apply(const GenerationDefaults& d, GenerationFallback& fallback) {
  set(fallback.sampling.temperature, d.temperature);
  set(fallback.sampling.top_p, d.top_p);
  set(fallback.sampling.top_k, d.top_k);
  set(fallback.sampling.min_p, d.min_p);
  set(fallback.sampling.repetition_penalty, d.repetition_penalty);
  if (d.max_new_tokens) fallback.max_new_tokens = d.max_new_tokens;
  for (const int32_t id : d.eos_token_ids) fallback.sampling.eos_token_ids.push_back(id);
}

// Request > --override-generation-config > file > built in. What ends a turn ends it whatever the file says.
Result<GenerationFallback> read_fallback(const ServeOptions& o, const std::filesystem::path& folder,
                                         const ModelConfig& config, const ChatFormat& format) {
  GenerationFallback fallback;
  fallback.sampling.eos_token_ids = format.stop_ids;
  for (const int32_t id : config.eos_token_ids) fallback.sampling.eos_token_ids.push_back(id);
  if (o.generation_config != "vllm") {
    const bool own = o.generation_config == "auto";
    NIB_ASSIGN(const GenerationDefaults file,
               GenerationDefaults::load(own ? folder : std::filesystem::path(o.generation_config)));
    apply(file, fallback);
  }
  NIB_ASSIGN(const GenerationDefaults over, GenerationDefaults::from_json(o.override_generation_config));
  apply(over, fallback);
  return fallback;
}

struct FoundModel {
  std::filesystem::path folder;
  ModelConfig config;
};

// All that can be said without loading anything.
Result<FoundModel> find_checked(ServeOptions& o, const std::filesystem::path& hf_home) {
  NIB_ASSIGN(const std::filesystem::path folder, find_model(o.model, hf_home));
  NIB_ASSIGN(ModelConfig config, ModelConfig::load(folder));
  NIB_TRY(refuse_placeholders(config, o.model));
  o.engine.isa = best_isa();
  if (!o.cpu_isa.empty()) {
    NIB_ASSIGN(o.engine.isa, isa_from_name(o.cpu_isa));
  }
  NIB_TRY(HttpServer::try_address(o.server.http));
  return FoundModel{folder, std::move(config)};
}

Result<ServedModel> load(const ServeOptions& o, const FoundModel& found) {
  const auto& [folder, config] = found;
  ServedModel model;
  NIB_ASSIGN(model.tokenizer, Tokenizer::load(o.tokenizer.empty() ? folder : std::filesystem::path(o.tokenizer)));
  NIB_ASSIGN(model.format, ChatFormat::resolve(*model.tokenizer, /*vision=*/false));
  NIB_ASSIGN(model.fallback, read_fallback(o, folder, config, model.format));
  LoadOptions options;
  options.f32 = o.f32;
  options.kv_block_size = o.kv_block_size;
  NIB_ASSIGN(Models models, load_models(folder, options, o.engine.speculation));
  NIB_ASSIGN(model.engine, Engine::start(std::move(models), o.engine));
  return model;
}

// SIGINT and SIGTERM, counted by a thread of its own: every other thread blocks them. While the model is still being
// loaded there is nothing to save, so the process ends at once.
class SignalWatch {
 public:
  // REQUIRES: no other thread has been made yet.
  SignalWatch() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    std::thread([this] { watch(); }).detach();  // lives as long as the process
  }
  void start_serving() { serving_ = true; }
  void wait() const { count_.wait(0); }
  int count() const { return count_; }

 private:
  void watch() {
    for (int signal = 0;;) {
      if (sigwait(&signals_, &signal) != 0) continue;
      if (!serving_) std::_Exit(128 + signal);
      ++count_;
      count_.notify_all();
    }
  }

  sigset_t signals_;
  std::atomic<bool> serving_{false};
  std::atomic<int> count_{0};
};

Status serve(ServeOptions& o, const Environment& env, SignalWatch& signals) {
  for (const std::string& note : o.notes) log::info("{}", note);
  if (!env.vllm_api_key.empty()) o.server.api.api_keys.push_back(env.vllm_api_key);
  raise_open_files();
  NIB_ASSIGN(const FoundModel found, find_checked(o, env.hf_home));
  NIB_ASSIGN(ServedModel model, load(o, found));
  o.server.api.max_drafts = model.engine->config().speculation.max_drafts();
  NIB_ASSIGN(const std::unique_ptr<Server> server, Server::start(o.server, std::move(model)));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - env.start).count();
  const HttpServerConfig& http = o.server.http;
  const std::string where =
      http.unix_socket.empty() ? fmt::format("http://{}:{}", http.host, server->port()) : "unix:" + http.unix_socket;
  fmt::print("ready on {} ({:.2f} s after start)\n", where, seconds);
  std::fflush(stdout);
  signals.start_serving();
  signals.wait();
  log::info("stopping: requests that run may end; a second signal ends them");
  server->drain([&] { return signals.count() > 1; });
  return {};
}

}  // namespace

void add_serve_command(CLI::App& app, const Environment& env, Exit& exit) {
  CLI::App& command = *app.add_subcommand("serve", "Serves a model over the OpenAI API");
  command.prefix_command();  // the flags are vllm's own kind, read by serve_flags.cc
  command.set_help_flag();
  command.callback([&command, env, &exit] {
    const std::vector<std::string> args = command.remaining();
    if (std::ranges::count(args, "--help") + std::ranges::count(args, "-h") > 0) {
      fmt::print("{}", serve_help());
      return;
    }
    ServeOptions options;
    Status status = parse_serve_flags(args, options);
    exit.code = status.ok() ? 0 : 2;
    if (status.ok()) {
      auto& signals = *new SignalWatch;  // its thread never ends, nor does it
      status = serve(options, env, signals);
      exit.code = status.ok() ? 0 : 1;
    }
    if (!status.ok()) fmt::print(stderr, "{}\n", status.message());
  });
}

}  // namespace nib::cli
