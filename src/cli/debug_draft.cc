// nib debug draft: runs a drafter alone over recorded hidden states of its target and writes what it proposes.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/json.h"
#include "cli/commands.h"
#include "model/checkpoint.h"
#include "model/drafter.h"
#include "model/json_fields.h"

namespace nib::cli {

namespace {

struct Options {
  std::string model, steps, inputs, dtype = "f32", isa, out;
  std::string rope_frequencies = "bf16";
  int64_t num_tokens = 0;  // 0: as many as the trained block gives
};

constexpr int64_t kMaxPosition = int64_t{1} << 24;

// One draft: the target has run all positions before start, where the anchor stands.
struct DraftStep {
  int64_t start;
  int32_t anchor;
  View<const float, 2> taps;  // hidden states of the positions up to start that are new since the last step
};

Result<View<const float, 2>> read_taps(const Checkpoint& inputs, size_t step, int64_t width,
                                       std::vector<std::vector<float>>& memory) {
  const std::string name = fmt::format("step{}.target_hidden", step);
  const TensorInfo* t = inputs.find(name);
  if (!t) return invalid("{}: {} is missing, steps.json asks for it", inputs.shards()[0].string(), name);
  if (t->dtype != DType::kF32 || t->shape.size() != 2 || t->shape[1] != width)
    return invalid("{}: {} is {} {}, expected F32 [rows, {}]", inputs.shard_name(*t), name, nib::name(t->dtype),
                   shape_text(t->shape), width);
  std::vector<float>& values = memory.emplace_back(t->bytes / sizeof(float));
  std::memcpy(values.data(), inputs.data(*t).data(), t->bytes);
  return View<const float, 2>(values.data(), {t->shape[0], width});
}

// The rows of the taps end where the anchor stands, and go on where those of the step before ended.
Status check_positions(const DraftStep& s, size_t index, int64_t committed) {
  if (s.start - s.taps.dim(0) == committed) return {};
  return invalid("steps.json: step {} starts at {}, but {} rows of hidden states after position {} end at {}", index,
                 s.start, s.taps.dim(0), committed, committed + s.taps.dim(0));
}

Result<std::vector<DraftStep>> read_steps(const Options& o, const Drafter& drafter, const Checkpoint& inputs,
                                          std::vector<std::vector<float>>& memory) {
  NIB_ASSIGN(const Json json, read_json_file(o.steps));
  if (!json.is_array() || json.empty()) return invalid("{}: expected a JSON array with at least one step", o.steps);
  std::vector<DraftStep> steps;
  int64_t committed = 0;
  for (const Json& item : json) {
    if (!item.is_object()) return invalid("{}: step {} is not an object", o.steps, steps.size());
    Fields f(item, fmt::format("steps.json: step {}", steps.size()));
    DraftStep s;
    s.start = f.integer("start", 0, kMaxPosition);
    s.anchor = static_cast<int32_t>(f.integer("anchor", 0, drafter.config().vocab_size - 1));
    NIB_TRY(f.status());
    NIB_ASSIGN(s.taps, read_taps(inputs, steps.size(), drafter.tap_width(), memory));
    NIB_TRY(check_positions(s, steps.size(), committed));
    committed = s.start;
    steps.push_back(s);
  }
  return steps;
}

template <class E>
void append(std::vector<OutTensor>& out, std::string name, DType dtype, std::vector<int64_t> shape,
            const std::vector<E>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  out.push_back({std::move(name), dtype, std::move(shape), {bytes.begin(), bytes.end()}});
}

// Memory for the drafts of one step.
struct Draft {
  Draft(const Drafter& drafter, int64_t num_tokens)
      : tokens(num_tokens),
        logits(num_tokens * drafter.vocab_size()),
        confidence(num_tokens),
        hidden(num_tokens * drafter.config().hidden_size) {}
  int64_t count() const { return static_cast<int64_t>(tokens.size()); }
  DraftOutput views(const Drafter& drafter) {
    DraftOutput out{{tokens.data(), {1, count()}}, {logits.data(), {1, count(), drafter.vocab_size()}}, {}, {}};
    if (drafter.has_confidence()) out.confidence = {confidence.data(), {1, count()}};
    out.hidden = {hidden.data(), {1, count(), drafter.config().hidden_size}};
    return out;
  }
  std::vector<int32_t> tokens;
  std::vector<float> logits, confidence, hidden;
};

void append_draft(std::vector<OutTensor>& out, size_t step, const Drafter& drafter, const Draft& draft) {
  const std::string at = fmt::format("step{}.", step);
  const std::vector<int64_t> ids(draft.tokens.begin(), draft.tokens.end());
  append(out, at + "draft_tokens", DType::kI64, {draft.count()}, ids);
  append(out, at + "draft_logits", DType::kF32, {draft.count(), drafter.vocab_size()}, draft.logits);
  append(out, at + "block_hidden", DType::kF32, {draft.count(), drafter.config().hidden_size}, draft.hidden);
  if (drafter.has_confidence()) append(out, at + "confidence_logits", DType::kF32, {draft.count()}, draft.confidence);
}

Status run(const Options& o, Isa isa) {
  NIB_ASSIGN(
      const std::unique_ptr<Drafter> drafter,
      load_drafter(o.model, {.f32 = o.dtype == "f32", .bf16_rope_frequencies = o.rope_frequencies == "bf16"}, nullptr));
  const int64_t num_tokens = o.num_tokens > 0 ? o.num_tokens : drafter->config().max_draft_tokens();
  NIB_TRY(drafter->config().check_draft_length(num_tokens));
  NIB_ASSIGN(const Checkpoint inputs, Checkpoint::open_file(o.inputs));
  std::vector<std::vector<float>> memory;
  NIB_ASSIGN(const std::vector<DraftStep> steps, read_steps(o, *drafter, inputs, memory));

  int64_t most_rows = 1;
  for (const DraftStep& s : steps) most_rows = std::max(most_rows, s.taps.dim(0));
  ThreadPool pool(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  Workspace workspace(drafter->workspace_bytes(most_rows, 1, pool.num_threads()));
  Context cx{isa, pool, workspace};
  const CacheSpec& cache = drafter->cache_spec();
  std::vector<int32_t> block_table(steps.back().start / cache.block_size + 1);
  std::iota(block_table.begin(), block_table.end(), 0);
  const View<const int32_t, 2> block_tables(block_table.data(), {1, static_cast<int64_t>(block_table.size())});
  const Buffer memory_of_cache(cache.bytes_per_block * block_tables.dim(1));
  const DraftStorage storage{memory_of_cache.data(), block_tables.dim(1)};
  std::vector<OutTensor> tensors;
  for (size_t i = 0; i < steps.size(); ++i) {
    const DraftStep& s = steps[i];
    const SequenceRows rows{0, s.taps.dim(0), s.start - s.taps.dim(0)};
    if (rows.count > 0) drafter->commit(cx, s.taps, {&rows, 1}, storage, block_tables);
    const DraftBlock block{s.anchor, s.start, 0, s.start, num_tokens};
    Draft draft(*drafter, num_tokens);
    drafter->draft(cx, {&block, 1}, storage, block_tables, draft.views(*drafter), greedy_draft);
    append_draft(tensors, i, *drafter, draft);
  }
  return write_safetensors(o.out, tensors);
}

int main_of(const Options& o) {
  const Result<Isa> isa = o.isa.empty() ? Result<Isa>(best_isa()) : isa_from_name(o.isa);
  if (isa.ok()) return report("debug draft", run(o, *isa));
  return report("debug draft", isa.status()), 2;
}

}  // namespace

void add_debug_draft_command(CLI::App& debug, Exit& exit) {
  const auto o = std::make_shared<Options>();
  CLI::App* command = debug.add_subcommand("draft", "Run a drafter over recorded hidden states and write its drafts");
  command->add_option("--model", o->model, "Folder of a drafter with its own embedding and output head")->required();
  command->add_option("--steps", o->steps, "JSON array of steps: start and anchor of each")->required();
  command->add_option("--inputs", o->inputs, "safetensors file with stepN.target_hidden [rows, taps x width] F32")
      ->required();
  command->add_option("--num-speculative-tokens", o->num_tokens, "Drafts a step; the whole block if not given")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--dtype", o->dtype, "Type of activations and draft K/V")->check(CLI::IsMember({"f32", "bf16"}));
  command
      ->add_option("--rope-frequencies", o->rope_frequencies,
                   "bf16: rounded once, as the drafters' own code does; f32: the plain formula")
      ->check(CLI::IsMember({"bf16", "f32"}));
  command->add_option("--cpu-isa", o->isa, "ref, avx2, avx512 or amx; the best of this machine if not given");
  command
      ->add_option("--out", o->out,
                   "safetensors file to write: stepN.draft_tokens, .draft_logits, .block_hidden, .confidence_logits")
      ->required();
  command->callback([o, &exit] { exit.code = main_of(*o); });
}

}  // namespace nib::cli
