// nib check: reads every byte of a checkpoint and names what cannot be right.
#include <cstdio>
#include <memory>

#include "cli/commands.h"
#include "model/checkpoint.h"
#include "model/self_check.h"

namespace nib::cli {

namespace {

Status run(const std::string& model, const std::filesystem::path& hf_home) {
  NIB_ASSIGN(const std::filesystem::path folder, find_model(model, hf_home));
  NIB_ASSIGN(const SelfCheck c, self_check(folder));
  fmt::print("{} tensors, {} bytes; {} not used by the text network\n", c.tensors, c.bytes, c.unused);
  for (const std::string& w : c.warnings) fmt::print("warning: {}\n", w);
  for (const std::string& p : c.problems) fmt::print("problem: {}\n", p);
  if (!c.problems.empty()) return invalid("{}: {} problems; download the checkpoint again", model, c.problems.size());
  fmt::print("ok: every tensor is there, and no NaN, infinity or bad scale in them\n");
  return {};
}

}  // namespace

void add_check_command(CLI::App& app, const std::filesystem::path& hf_home, Exit& exit) {
  const auto model = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("check", "Checks every tensor of a checkpoint: names, shapes, scales, values");
  command->add_option("model", *model, "Checkpoint folder or hub id")->required();
  command->callback([model, hf_home, &exit] { exit.code = report("check", run(*model, hf_home)); });
}

}  // namespace nib::cli
