// nib debug logits: runs one prompt through a network and writes its logits and intermediates.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <semaphore>
#include <thread>

#include "base/file.h"
#include "base/json.h"
#include "cli/commands.h"
#include "engine/engine.h"
#include "model/checkpoint.h"
#include "model/network.h"

namespace nib::cli {

namespace {

struct Options {
  std::string model, ids, dtype = "bf16", isa, out;
  bool hidden = false;
  int64_t chunk = 0;   // rows a step; 0: the whole prompt at once
  int64_t greedy = 0;  // tokens to continue with
};

constexpr int64_t kBlockSize = 16;

Result<std::vector<int32_t>> read_ids(const std::string& path, int64_t vocab_size) {
  NIB_ASSIGN(const std::string text, read_file(path));
  NIB_ASSIGN(const Json json, parse_json(text));
  if (!json.is_array() || json.empty()) return invalid("{}: expected a JSON array with at least one token id", path);
  std::vector<int32_t> ids;
  for (const Json& item : json) {
    const bool fits = item.is_number_integer() && item >= 0 && item < vocab_size;
    if (!fits)
      return invalid("{}: element {} is {}, expected an id from 0 to {}", path, ids.size(), item.dump(),
                     vocab_size - 1);
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

// One sequence alone in its own cache: block i of each group holds the positions from i * kBlockSize on.
class Run {
 public:
  Run(const Network& network, Isa isa, int64_t positions, int64_t chunk)
      : network_(network),
        chunk_(chunk),
        pool_(std::max(1, static_cast<int>(std::thread::hardware_concurrency()))),
        workspace_(network.workspace_bytes(chunk, chunk, pool_.num_threads())),
        cx_{isa, pool_, workspace_},
        blocks_((positions + kBlockSize - 1) / kBlockSize),
        cache_(network.cache_specs(), pool_sizes(network, static_cast<int64_t>(blocks_.size()))) {
    for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i] = static_cast<int32_t>(i);
    for (const CacheSpec& spec : network.cache_specs())
      tables_.emplace_back(blocks_.data(),
                           std::array{int64_t{1}, num_blocks(spec, static_cast<int64_t>(blocks_.size()))});
  }

  void step(std::span<const int32_t> tokens, View<float, 2> logits, const Trace* trace) {
    const int64_t count = static_cast<int64_t>(tokens.size());
    const SequenceRows rows{0, count, position_};
    std::vector<int32_t> all(count);
    for (int64_t t = 0; t < count; ++t) all[t] = static_cast<int32_t>(t);
    const ForwardInput in{View<const int32_t, 1>(tokens.data(), {count}), {&rows, 1}, tables_, all};
    network_.forward(cx_, in, cache_, logits, trace);
    position_ += count;
  }

 private:
  static int64_t num_blocks(const CacheSpec& spec, int64_t blocks) {
    return spec.kind == CacheSpec::Kind::kConv ? 1 : blocks;
  }
  static std::vector<int64_t> pool_sizes(const Network& network, int64_t blocks) {
    std::vector<int64_t> sizes;
    for (const CacheSpec& spec : network.cache_specs()) sizes.push_back(num_blocks(spec, blocks));
    return sizes;
  }

  const Network& network_;
  int64_t chunk_, position_ = 0;
  ThreadPool pool_;
  Workspace workspace_;
  Context cx_;
  std::vector<int32_t> blocks_;
  KvCache cache_;
  std::vector<View<const int32_t, 2>> tables_;
};

template <class E>
OutTensor out_tensor(const std::string& name, DType dtype, const std::vector<int64_t>& shape,
                     const std::vector<E>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {name, dtype, shape, {bytes.begin(), bytes.end()}};
}

// Tensors of [rows, width] that grow by the rows of each chunk.
class Recorder {
 public:
  void append(std::string_view name, View<const float, 2> x) {
    Entry& entry = entries_[std::string(name)];
    entry.width = x.dim(1);
    for (int64_t t = 0; t < x.dim(0); ++t) entry.values.insert(entry.values.end(), x.row(t), x.row(t) + x.dim(1));
  }
  std::vector<OutTensor> tensors() const {
    std::vector<OutTensor> all;
    for (const auto& [name, entry] : entries_) all.push_back(to_tensor(name, entry));
    return all;
  }

 private:
  struct Entry {
    int64_t width = 0;
    std::vector<float> values;
  };
  static OutTensor to_tensor(const std::string& name, const Entry& entry) {
    const std::vector<int64_t> shape = {static_cast<int64_t>(entry.values.size()) / entry.width, entry.width};
    if (!name.starts_with("route_ids_")) return out_tensor(name, DType::kF32, shape, entry.values);
    return out_tensor(name, DType::kI64, shape, std::vector<int64_t>(entry.values.begin(), entry.values.end()));
  }

  std::map<std::string, Entry> entries_;
};

// The most likely continuation, made by decode steps of the engine.
Result<std::vector<int64_t>> continue_greedily(std::unique_ptr<Network> network, const EngineConfig& config,
                                               const std::vector<int32_t>& prompt, int64_t count) {
  std::counting_semaphore<> ready(0);
  const auto channel = std::make_shared<EventChannel>(count + 1, [&ready] { ready.release(); });
  NIB_ASSIGN(const std::unique_ptr<Engine> engine, Engine::start({std::move(network)}, config));
  Request request;
  request.prompt = prompt;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = count;
  request.sampling.ignore_eos = true;
  NIB_ASSIGN([[maybe_unused]] const uint64_t id, engine->submit(std::move(request), channel));
  std::vector<int64_t> tokens;
  for (;;) {
    ready.acquire();
    for (const TokenEvent& event : channel->drain()) {
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
      if (event.finish == FinishReason::kError) return Status(Code::kInternal, event.error);
      if (event.finish != FinishReason::kNone) return tokens;
    }
  }
}

// Logits of every token, and the intermediates if they are wanted.
Recorder run_prompt(const Network& network, Isa isa, const std::vector<int32_t>& ids, int64_t chunk, bool hidden) {
  const int64_t length = static_cast<int64_t>(ids.size()), vocab = network.config().unpadded_vocab_size;
  Run sequence(network, isa, length, chunk);
  Recorder recorder;
  const Trace trace = [&](std::string_view name, View<const float, 2> x) { recorder.append(name, x); };
  std::vector<float> logits(chunk * vocab);
  for (int64_t begin = 0; begin < length; begin += chunk) {
    const int64_t count = std::min(chunk, length - begin);
    const View<float, 2> out(logits.data(), {count, vocab});
    sequence.step(std::span(ids).subspan(begin, count), out, hidden ? &trace : nullptr);
    recorder.append("logits", out);
  }
  return recorder;
}

Status run(const Options& o, Isa isa) {
  NIB_ASSIGN(std::unique_ptr<Network> network, load_network(o.model, {o.dtype == "f32", kBlockSize, 0}));
  NIB_ASSIGN(const std::vector<int32_t> ids, read_ids(o.ids, network->config().vocab_size));
  const int64_t length = static_cast<int64_t>(ids.size());
  const int64_t chunk = o.chunk > 0 ? std::min(o.chunk, length) : length;
  std::vector<OutTensor> tensors = run_prompt(*network, isa, ids, chunk, o.hidden).tensors();
  if (o.greedy > 0) {
    EngineConfig config;
    config.max_model_len = length + o.greedy;
    config.max_num_seqs = 1;
    config.max_num_batched_tokens = chunk;
    config.isa = isa;
    NIB_ASSIGN(const std::vector<int64_t> greedy, continue_greedily(std::move(network), config, ids, o.greedy));
    tensors.push_back(out_tensor("greedy", DType::kI64, {o.greedy}, greedy));
  }
  return write_safetensors(o.out, tensors);
}

int report(const Status& status, int code) {
  if (status.ok()) return 0;
  fmt::print(stderr, "nib debug logits: {}\n", status.message());
  return code;
}

int main_of(const Options& o) {
  const Result<Isa> isa = o.isa.empty() ? Result<Isa>(best_isa()) : isa_from_name(o.isa);
  return isa.ok() ? report(run(o, *isa), 1) : report(isa.status(), 2);
}

}  // namespace

void add_debug_logits_command(CLI::App& debug, Exit& exit) {
  const auto o = std::make_shared<Options>();
  CLI::App* command = debug.add_subcommand("logits", "Runs a prompt through the network and writes its logits");
  command->add_option("--model", o->model, "Checkpoint folder")->required();
  command->add_option("--ids", o->ids, "JSON array of token ids")->required();
  command->add_option("--dtype", o->dtype, "Type of activations and caches")->check(CLI::IsMember({"f32", "bf16"}));
  command->add_option("--cpu-isa", o->isa, "ref, avx2, avx512 or amx; the best of this machine if not given");
  command->add_flag("--hidden", o->hidden, "Write the intermediates of every layer too");
  command->add_option("--chunk", o->chunk, "Rows a step; the whole prompt at once if not given")
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("--greedy", o->greedy, "Continue with so many tokens, made by decode steps of the engine")
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("--out", o->out, "safetensors file to write: logits [tokens, vocabulary] F32")->required();
  command->callback([o, &exit] { exit.code = main_of(*o); });
}

}  // namespace nib::cli
