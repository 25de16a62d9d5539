// nib inspect: the tensors, bytes and constants of a checkpoint.
#include <array>
#include <cstdio>
#include <map>
#include <memory>

#include "cli/commands.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/quant_config.h"
#include "model/tensor_table.h"

namespace nib::cli {

namespace {

namespace fs = std::filesystem;

struct Options {
  std::string model;
  fs::path hf_home;
  bool json = false;
};

// What each tensor of the checkpoint is used for: a kind of the tensor table, or "not used by the text network".
std::map<const TensorInfo*, std::string> uses(const Binding& binding) {
  std::map<const TensorInfo*, std::string> out;
  for (const auto& [key, b] : binding.tensors) {
    for (const TensorInfo* t : {b.info, b.scales, b.multiplier, b.reciprocal, b.amax, b.denominator})
      if (t) out[t] = name(b.spec.kind);
    for (const TensorInfo* t : b.unread) out[t] = "activation scales (not read)";
  }
  for (const TensorInfo* t : binding.unused) out[t] = "not used by the text network";
  return out;
}

struct Sums {
  std::map<std::string, int64_t> by_use, by_dtype;
  int64_t bytes = 0;
};

Sums sum_up(const Checkpoint& checkpoint, const std::map<const TensorInfo*, std::string>& uses) {
  Sums s;
  for (const auto& [name, t] : checkpoint.tensors()) {
    s.by_use[uses.at(&t)] += t.bytes;
    s.by_dtype[std::string(nib::name(t.dtype))] += t.bytes;
    s.bytes += t.bytes;
  }
  return s;
}

Json as_json(const Checkpoint& checkpoint, const std::map<const TensorInfo*, std::string>& uses,
             const std::vector<std::string>& warnings, const Json& config) {
  Json tensors = Json::array();
  for (const auto& [name, t] : checkpoint.tensors())
    tensors.push_back({{"name", name},
                       {"dtype", nib::name(t.dtype)},
                       {"shape", t.shape},
                       {"bytes", t.bytes},
                       {"file", checkpoint.shard_name(t)},
                       {"use", uses.at(&t)}});
  const Sums sums = sum_up(checkpoint, uses);
  return {{"tensors", tensors},          {"bytes", sums.bytes},
          {"bytes_by_use", sums.by_use}, {"bytes_by_dtype", sums.by_dtype},
          {"warnings", warnings},        {"config", config}};
}

void print_text(const Checkpoint& checkpoint, const std::map<const TensorInfo*, std::string>& uses,
                const std::vector<std::string>& warnings, const Json& config) {
  for (const auto& [name, t] : checkpoint.tensors())
    fmt::print("{:<72} {:<8} {:<20} {:>16} {}\n", name, nib::name(t.dtype), shape_text(t.shape), t.bytes,
               checkpoint.shard_name(t));
  const Sums sums = sum_up(checkpoint, uses);
  fmt::print("\n{} tensors, {} bytes in {} file{}\n", checkpoint.tensors().size(), sums.bytes,
             checkpoint.shards().size(), checkpoint.shards().size() == 1 ? "" : "s");
  for (const auto& [use, bytes] : sums.by_use) fmt::print("  {:<32} {:>18}\n", use, bytes);
  for (const auto& [dtype, bytes] : sums.by_dtype) fmt::print("  {:<32} {:>18}\n", dtype, bytes);
  for (const std::string& w : warnings) fmt::print("warning: {}\n", w);
  fmt::print("\n{}\n", config.dump(2));
}

Status run(const Options& o) {
  NIB_ASSIGN(const fs::path folder, find_model(o.model, o.hf_home));
  NIB_ASSIGN(const Json json, read_json_file(folder / "config.json"));
  NIB_ASSIGN(const ModelConfig config, ModelConfig::from_json(json));
  NIB_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(folder));
  NIB_ASSIGN(const Binding binding, bind_tensors(config, checkpoint));
  NIB_ASSIGN(const DeclaredPrecision declared, DeclaredPrecision::load(folder));
  const std::vector<std::string> warnings = cross_check(declared, binding);
  if (o.json)
    fmt::print("{}\n", as_json(checkpoint, uses(binding), warnings, json).dump(1));
  else
    print_text(checkpoint, uses(binding), warnings, json);
  return {};
}

}  // namespace

void add_inspect_command(CLI::App& app, const fs::path& hf_home, Exit& exit) {
  const auto o = std::make_shared<Options>();
  o->hf_home = hf_home;
  CLI::App* command = app.add_subcommand("inspect", "Lists the tensors, bytes and config of a checkpoint");
  command->add_option("model", o->model, "Checkpoint folder or hub id")->required();
  command->add_flag("--json", o->json, "Print JSON");
  command->callback([o, &exit] { exit.code = report("inspect", run(*o)); });
}

}  // namespace nib::cli
