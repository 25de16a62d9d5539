// The subcommands of nib, one function each in its own file; main.cc lists them.
//   CLI::App app;  add_debug_text_commands(*app.add_subcommand("debug"));
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/status.h"

namespace nib::cli {

// What main read of the environment, once.
struct Environment {
  std::chrono::steady_clock::time_point start;  // of the process
  std::filesystem::path hf_home;                // $HF_HOME or ~/.cache/huggingface
  std::string vllm_api_key, openai_api_key;
};

// Each registers its subcommands; a command's callback sets the exit code: 0 fine, 1 failed, 2 bad usage.
struct Exit {
  int code = 0;
};

// Prints "nib COMMAND: message" to standard error if the status is not ok; the exit code: 0 or 1.
int report(std::string_view command, const Status& status);

void add_serve_command(CLI::App& app, const Environment& env, Exit& exit);
void add_chat_command(CLI::App& app, const Environment& env, Exit& exit);
void add_complete_command(CLI::App& app, const Environment& env, Exit& exit);
void add_bench_serve_command(CLI::App& bench, const Environment& env, Exit& exit);
void add_eval_command(CLI::App& app, Exit& exit);           // eval
void add_debug_text_commands(CLI::App& debug, Exit& exit);  // tokenize, detokenize, render, parse
void add_bench_step_command(CLI::App& bench, Exit& exit);
void add_bench_speculation_command(CLI::App& bench, Exit& exit);
void add_debug_logits_command(CLI::App& debug, Exit& exit);
void add_debug_draft_command(CLI::App& debug, Exit& exit);
void add_debug_quantize_command(CLI::App& debug, Exit& exit);
void add_bench_ops_command(CLI::App& bench, Exit& exit);

// hf_home: the Hugging Face folder in which a hub id is looked up ($HF_HOME or ~/.cache/huggingface).
void add_inspect_command(CLI::App& app, const std::filesystem::path& hf_home, Exit& exit);
void add_plan_command(CLI::App& app, const std::filesystem::path& hf_home, Exit& exit);
void add_check_command(CLI::App& app, const std::filesystem::path& hf_home, Exit& exit);

}  // namespace nib::cli
