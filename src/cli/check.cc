// nib check: reads every byte of a checkpoint and names what cannot be right; proves on demand that speculation changes
// no answer.
#include <cstdio>
#include <memory>

#include "cli/check_speculation.h"
#include "cli/commands.h"
#include "model/checkpoint.h"
#include "model/self_check.h"

namespace nib::cli {

namespace {

struct Options {
  std::string model;
  SpeculationCheck speculation;  // num_prompts 0: the files are checked instead
};

Status check_files(const std::string& model, const std::filesystem::path& folder) {
  NIB_ASSIGN(const SelfCheck c, self_check(folder));
  fmt::print("{} tensors, {} bytes; {} not used by the text network\n", c.tensors, c.bytes, c.unused);
  for (const std::string& w : c.warnings) fmt::print("warning: {}\n", w);
  for (const std::string& p : c.problems) fmt::print("problem: {}\n", p);
  if (!c.problems.empty()) return invalid("{}: {} problems; download the checkpoint again", model, c.problems.size());
  fmt::print("ok: every tensor is there, and no NaN, infinity or bad scale in them\n");
  return {};
}

Status run(const Options& o, const std::filesystem::path& hf_home) {
  NIB_ASSIGN(const std::filesystem::path folder, find_model(o.model, hf_home));
  return o.speculation.num_prompts > 0 ? check_speculation(folder, o.speculation) : check_files(o.model, folder);
}

}  // namespace

void add_check_command(CLI::App& app, const std::filesystem::path& hf_home, Exit& exit) {
  const auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "check", "Checks every tensor of a checkpoint (names, shapes, scales, values), or that speculation is exact");
  command->add_option("model", o->model, "Checkpoint folder or hub id")->required();
  auto* speculation =
      command
          ->add_option("--speculation", o->speculation.num_prompts,
                       "Instead: answers so many prompts with and without speculation and compares them")
          ->check(CLI::Range(1, 100'000));
  command
      ->add_option("--num-speculative-tokens", o->speculation.num_speculative_tokens,
                   "Drafts a step; the drafter's block if not given")
      ->check(CLI::Range(1, 15))
      ->needs(speculation);
  command->add_option("--seed", o->speculation.seed, "Of the prompts (1)")->needs(speculation);
  command->callback([o, hf_home, &exit] { exit.code = report("check", run(*o, hf_home)); });
}

}  // namespace nib::cli
