// nib plan: what a model needs before anything of it is loaded.
#include "model/plan.h"

#include <cstdio>
#include <memory>
#include <thread>

#include "cli/commands.h"
#include "cli/number_checks.h"
#include "cli/size_value.h"

namespace nib::cli {

namespace {

struct Options {
  std::string model;
  std::filesystem::path hf_home;
  PlanOptions plan;
  bool json = false;
  std::string dtype = "bf16";
};

Status run(const Options& o) {
  std::error_code error;
  std::filesystem::path path = o.model;
  if (!std::filesystem::is_regular_file(path, error)) {
    NIB_ASSIGN(path, find_model(o.model, o.hf_home));
  }
  NIB_ASSIGN(const ModelShape shape, ModelShape::load(path));
  NIB_ASSIGN(const MemoryPlan plan, plan_memory(shape, o.plan));
  if (o.json)
    fmt::print("{}\n", plan.json().dump(1));
  else
    fmt::print("{}", plan.text());
  return {};
}

}  // namespace

void add_plan_command(CLI::App& app, const std::filesystem::path& hf_home, Exit& exit) {
  const auto o = std::make_shared<Options>();
  o->hf_home = hf_home;
  o->plan.num_threads = std::max(1u, std::thread::hardware_concurrency());
  CLI::App* command =
      app.add_subcommand("plan", "Prints the memory a model needs and the bytes one token touches, without loading it");
  command->add_option("model", o->model, "Checkpoint folder, hub id, or a config.json alone")->required();
  command->add_option("--tensor-parallel-size", o->plan.tensor_parallel_size, "Ranks that share the model")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--max-model-len", o->plan.max_model_len,
                   "Tokens of a sequence, such as 4096, 64k (64,000) or 1M (1,048,576); auto, -1 or not given: the "
                   "model's limit")
      ->transform(CLI::Validator(
          [](std::string& text) {
            const Result<int64_t> tokens = model_len_value("--max-model-len", text);
            if (tokens.ok()) text = std::to_string(*tokens);
            return tokens.ok() ? std::string() : tokens.status().message();
          },
          ""));
  command->add_option("--max-num-seqs", o->plan.max_num_seqs, "Sequences at once, all of full length (1)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command->add_option("--max-num-batched-tokens", o->plan.max_num_batched_tokens, "Rows a step (2048)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  command
      ->add_option("--bandwidth", o->plan.bandwidth_gb_s,
                   "Memory bandwidth of one rank, GB/s: prints the time of a token too")
      ->check(positive_number());
  command->add_option("--dtype", o->dtype, "Type of activations and caches (bf16)")
      ->check(CLI::IsMember({"f32", "bf16"}));
  command->add_flag("--json", o->json, "Print JSON, every number in bytes");
  command->callback([o, &exit] {
    o->plan.load.f32 = o->dtype == "f32";
    exit.code = report("plan", run(*o));
  });
}

}  // namespace nib::cli
