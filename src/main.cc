// The binary nib: lists the commands, reads the environment, hands out exit codes.
#include <fmt/core.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

#include "cli/commands.h"

namespace {

std::string environment_value(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

nib::cli::Environment read_environment() {
  nib::cli::Environment env;
  env.start = std::chrono::steady_clock::now();
  env.hf_home = environment_value("HF_HOME");
  if (env.hf_home.empty()) env.hf_home = std::filesystem::path(environment_value("HOME")) / ".cache/huggingface";
  env.vllm_api_key = environment_value("VLLM_API_KEY");
  env.openai_api_key = environment_value("OPENAI_API_KEY");
  return env;
}

// The first argument names a command, or asks for help. Empty if it does.
std::string wrong_command(const CLI::App& app, int argc, char** argv) {
  const std::string given = argc > 1 ? argv[1] : "";
  std::string names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->get_name() == given) return {};
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  if (given.starts_with('-')) return {};
  return given.empty() ? "a command is needed: " + names : given + ": no such command; there are " + names;
}

}  // namespace

int main(int argc, char** argv) {
  // Standard output is for what was asked for.
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::stderr_sink_mt>()));
  const nib::cli::Environment env = read_environment();
  nib::cli::Exit exit;
  CLI::App app{"Nib serves the Inkling models", "nib"};
  app.require_subcommand(1);
  app.set_version_flag("-v,--version", "nib " NIB_VERSION);
  nib::cli::add_serve_command(app, env, exit);
  nib::cli::add_chat_command(app, env, exit);
  nib::cli::add_complete_command(app, env, exit);
  nib::cli::add_eval_command(app, exit);
  nib::cli::add_plan_command(app, env.hf_home, exit);
  nib::cli::add_check_command(app, env.hf_home, exit);
  nib::cli::add_inspect_command(app, env.hf_home, exit);
  CLI::App& bench = *app.add_subcommand("bench", "Measures a running server, whole steps or single operations");
  bench.require_subcommand(1);
  nib::cli::add_bench_serve_command(bench, env, exit);
  nib::cli::add_bench_step_command(bench, exit);
  nib::cli::add_bench_speculation_command(bench, exit);
  nib::cli::add_bench_ops_command(bench, exit);
  CLI::App& debug = *app.add_subcommand(
      "debug", "Shows what happens inside: tokens, prompts, parsed answers, logits, quantized blocks");
  debug.require_subcommand(1);
  nib::cli::add_debug_text_commands(debug, exit);
  nib::cli::add_debug_logits_command(debug, exit);
  nib::cli::add_debug_draft_command(debug, exit);
  nib::cli::add_debug_quantize_command(debug, exit);
  if (const std::string wrong = wrong_command(app, argc, argv); !wrong.empty()) {
    fmt::print(stderr, "nib: {}\n", wrong);
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  return exit.code;
}
