// nib bench step: times whole decode steps of the engine, and the host's share of them, on a model folder.
#include <fmt/core.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "cli/commands.h"
#include "engine/cache_plan.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "model/tensor_table.h"

namespace nib::cli {

namespace {

struct Options {
  std::string model, dtype = "bf16", isa;
  std::vector<int64_t> batches = {1, 8, 32, 256};
  int64_t context = 64, steps = 16;
  int64_t verify_rows = 8;
  int threads = 0;
};

constexpr int64_t kHostSteps = 200, kHostBatch = 256;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Bytes a second that all threads together read from memory: sums of a buffer far beyond the caches, best of three.
double read_bandwidth(ThreadPool& pool) {
  constexpr int64_t kBytes = int64_t{1} << 30, kChunk = 1 << 20;
  const Buffer buffer(kBytes);
  std::memset(buffer.data(), 1, kBytes);
  std::vector<uint64_t> sums(kBytes / kChunk);
  double best = 0;
  for (int pass = 0; pass < 3; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(kBytes / kChunk, [&](int64_t i, int) {
      const auto* words = reinterpret_cast<const uint64_t*>(buffer.data() + i * kChunk);
      sums[i] = std::accumulate(words, words + kChunk / 8, uint64_t{0});
    });
    best = std::max(best, static_cast<double>(kBytes) / seconds_since(start));
    NIB_CHECK_EQ(sums[pass], uint64_t{0x0101010101010101} * (kChunk / 8));
  }
  return best;
}

// Weight bytes that a step of `batch` tokens reads: every matrix once, of the experts those that some token is expected
// to choose, of the embedding one row a token.
double touched_weights(const ModelConfig& c, const Binding& binding, int64_t batch) {
  const double unchosen = c.num_experts == 0 ? 0 : 1 - static_cast<double>(c.top_k) / c.num_experts;
  const double chosen = 1 - std::pow(unchosen, static_cast<double>(batch));
  double bytes = 0;
  for (const auto& [key, tensor] : binding.tensors) {
    const auto all = static_cast<double>(tensor.bytes());
    if (tensor.spec.kind == TensorKind::kEmbed)
      bytes += all * static_cast<double>(batch) / c.vocab_size;
    else
      bytes += tensor.spec.kind == TensorKind::kExpert ? all * chosen : all;
  }
  return bytes;
}

// Cache bytes that a step of `batch` tokens reads with so many tokens in each sequence.
double touched_cache(std::span<const CacheSpec> specs, int64_t batch, int64_t context) {
  double bytes = 0;
  for (const CacheSpec& s : specs) {
    const double block = static_cast<double>(s.bytes_per_block), positions = static_cast<double>(context);
    if (s.kind == CacheSpec::Kind::kConv)
      bytes += block;
    else
      bytes += block / s.block_size * (s.window > 0 ? std::min(positions, static_cast<double>(s.window)) : positions);
  }
  return bytes * static_cast<double>(batch);
}

// Every feature that costs host time.
void use_all_parameters(SamplingParams& p) {
  p.top_k = 50, p.top_p = 0.95, p.min_p = 0.01;
  p.repetition_penalty = 1.1, p.presence_penalty = 0.1, p.frequency_penalty = 0.1;
  p.logit_bias = {{3, 1.0f}, {4, -1.0f}};
  p.bad_words = {{5}, {6, 7}, {8, 9, 10}};
  p.stop_token_ids = {1, 2};
  p.min_tokens = p.max_tokens;
}

// A scheduler and a runner that hold `batch` sequences in steady decoding.
class DecodeLoop {
 public:
  DecodeLoop(std::unique_ptr<Network> network, const EngineConfig& c, const CachePlan& caches)
      : scheduler_({c.max_num_seqs, c.max_num_batched_tokens, 1, c.max_model_len, 0, false},
                   BlockManager(network->cache_specs(), caches.num_blocks)),
        runner_({std::move(network)},
                {c.max_num_seqs, c.max_num_batched_tokens, c.max_num_seqs, c.max_model_len, c.num_threads, c.isa},
                caches.num_blocks) {}

  void add(int64_t prompt, int64_t max_tokens, int64_t seed, bool all_parameters) {
    Request r;
    r.id = ++last_id_;
    const int64_t vocab = runner_.network().config().unpadded_vocab_size;
    for (int64_t i = 0; i < prompt; ++i) r.prompt.push_back(static_cast<int32_t>((seed * 31 + i * 7 + 11) % vocab));
    r.sampling.max_tokens = max_tokens;
    r.sampling.seed = seed;
    if (all_parameters) use_all_parameters(r.sampling);
    const auto channel = std::shared_ptr<EventChannel>();
    scheduler_.add(std::make_unique<RequestState>(std::move(r), channel, static_cast<uint64_t>(seed), 0));
  }

  // Runs what is waiting until each sequence has its first token. compute = false: draws nothing, takes token 3.
  void prefill(bool compute) {
    for (bool decoding = false; !decoding;) {
      const StepPlan& plan = scheduler_.plan(0);
      decoding = plan.sample_rows.size() == plan.tokens.size();
      finish(compute ? runner_.run(plan) : made_up(plan));
    }
  }

  struct Times {
    double host = 0, forward = 0, sample = 0;
  };

  Times step(bool compute) {
    Times t;
    const auto begin = std::chrono::steady_clock::now();
    const StepPlan& plan = scheduler_.plan(0);
    runner_.prepare(plan);
    t.host = seconds_since(begin);
    const StepOutput* output = &made_up_;
    if (compute) {
      const auto forward = std::chrono::steady_clock::now();
      runner_.forward(plan);
      t.forward = seconds_since(forward);
      const auto sample = std::chrono::steady_clock::now();
      output = &runner_.sample(plan);
      t.sample = seconds_since(sample);
    } else {
      output = &made_up(plan);
    }
    const auto commit = std::chrono::steady_clock::now();
    finish(*output);
    t.host += seconds_since(commit);
    return t;
  }

  void stop() {
    scheduler_.abort_all();
    scheduler_.take_events();
    first_tokens_.clear();
  }

  // All that the oldest sequence has drawn since the last stop.
  const std::vector<int32_t>& first_tokens() const { return first_tokens_; }
  Runner& runner() { return runner_; }

 private:
  void finish(const StepOutput& output) {
    if (!output.samples.empty()) first_tokens_.push_back(output.samples[0].token);
    scheduler_.commit(output, 0);
    scheduler_.take_events();
  }

  const StepOutput& made_up(const StepPlan& plan) {
    made_up_.samples.assign(plan.sample_rows.size(), Sample{3, std::nullopt, {}});
    return made_up_;
  }

  Scheduler scheduler_;
  Runner runner_;
  StepOutput made_up_;
  std::vector<int32_t> first_tokens_;
  uint64_t last_id_ = 0;
};

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<int64_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

void bench_host(DecodeLoop& loop, const Options& o, int64_t batch, int64_t max_tokens) {
  for (const bool all : {false, true}) {
    for (int64_t i = 0; i < batch; ++i) loop.add(o.context, max_tokens, i, all);
    loop.prefill(/*compute=*/false);
    std::vector<double> host;
    for (int64_t i = 0; i < kHostSteps; ++i) host.push_back(loop.step(/*compute=*/false).host);
    loop.stop();
    fmt::print("scheduler + sampling preparation, {} sequences, {}: {:.1f} us a step\n", batch,
               all ? "penalties, biases, bad words, min_tokens, truncation" : "temperature only", median(host) * 1e6);
  }
}

void bench_batches(DecodeLoop& loop, const Options& o, const Binding& binding, int64_t max_tokens) {
  const double bandwidth = read_bandwidth(loop.runner().context().pool);
  const Network& network = loop.runner().network();
  fmt::print("read bandwidth {:.1f} GB/s\n", bandwidth / 1e9);
  fmt::print("{:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>12} {:>10}\n", "batch", "ms/step", "tok/s", "host us",
             "sample us", "MB/step", "roofline ms", "of roof");
  std::vector<int32_t> expected;
  for (int64_t batch : o.batches) {
    for (int64_t i = 0; i < batch; ++i) loop.add(o.context, max_tokens, i, false);
    loop.prefill(/*compute=*/true);
    std::vector<double> total, host, sample;
    for (int64_t i = 0; i < o.steps; ++i) {
      const DecodeLoop::Times t = loop.step(/*compute=*/true);
      total.push_back(t.host + t.forward + t.sample), host.push_back(t.host), sample.push_back(t.sample);
    }
    const std::vector<int32_t> tokens = loop.first_tokens();
    if (expected.empty()) expected = tokens;
    const size_t common = std::min(tokens.size(), expected.size());
    NIB_CHECK(std::equal(tokens.begin(), tokens.begin() + static_cast<int64_t>(common), expected.begin()),
              "the tokens of the first sequence depend on the batch");
    loop.stop();
    const double bytes =
        touched_weights(network.config(), binding, batch) + touched_cache(network.cache_specs(), batch, o.context);
    const double roof = bytes / bandwidth, seconds = median(total);
    fmt::print("{:>6} {:>10.3f} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.2f} {:>12.3f} {:>9.1f}%\n", batch, seconds * 1e3,
               static_cast<double>(batch) / seconds, median(host) * 1e6, median(sample) * 1e6, bytes / 1e6, roof * 1e3,
               100 * roof / seconds);
  }
}

// Forward passes over `sequences` sequences that hold `context` tokens each, `rows` more of each at once: what
// speculation verifies. Caches and tables of its own, so that every pass is the same.
class VerifyStep {
 public:
  VerifyStep(Runner& runner, int64_t sequences, int64_t rows, int64_t context)
      : runner_(runner), context_(context), cache_(runner.network().cache_specs(), num_blocks(sequences, rows)) {
    const ModelConfig& config = runner.network().config();
    logits_.resize(sequences * rows * config.unpadded_vocab_size);
    for (int64_t s = 0; s < sequences; ++s) {
      for (int64_t i = 0; i < context; i += kChunk) forward({{0, std::min(kChunk, context - i), i}}, s, {});
      batch_.push_back({s * rows, rows, context});
    }
    logit_rows_.resize(sequences * rows);
    std::iota(logit_rows_.begin(), logit_rows_.end(), 0);
  }

  double seconds() {
    const auto start = std::chrono::steady_clock::now();
    forward(batch_, 0, logit_rows_);
    return seconds_since(start);
  }
  // Of the first row.
  std::vector<float> logits() const {
    return {logits_.begin(), logits_.begin() + runner_.network().config().unpadded_vocab_size};
  }

 private:
  static constexpr int64_t kChunk = 64;

  std::vector<int64_t> num_blocks(int64_t sequences, int64_t rows) {
    std::vector<int64_t> blocks;
    for (const CacheSpec& spec : runner_.network().cache_specs()) {
      const bool slot = spec.kind == CacheSpec::Kind::kConv;
      widths_.push_back(slot ? 1 : (context_ + rows + spec.block_size - 1) / spec.block_size);
      tables_.emplace_back(sequences * widths_.back());
      std::iota(tables_.back().begin(), tables_.back().end(), 0);
      blocks.push_back(sequences * widths_.back());
    }
    return blocks;
  }

  // Rows of the sequences from `first` on.
  void forward(const std::vector<SequenceRows>& batch, int64_t first, std::span<const int32_t> logit_rows) {
    const ModelConfig& config = runner_.network().config();
    std::vector<View<const int32_t, 2>> tables;
    for (size_t g = 0; g < tables_.size(); ++g)
      tables.emplace_back(tables_[g].data() + first * widths_[g],
                          View<const int32_t, 2>::Shape{static_cast<int64_t>(batch.size()), widths_[g]});
    tokens_.clear();
    for (size_t s = 0; s < batch.size(); ++s)
      for (int64_t i = 0; i < batch[s].count; ++i)
        tokens_.push_back(
            static_cast<int32_t>(((first + s) * 31 + (batch[s].start + i) * 7 + 11) % config.unpadded_vocab_size));
    const int64_t rows = static_cast<int64_t>(tokens_.size()), wanted = static_cast<int64_t>(logit_rows.size());
    const ForwardInput in{View<const int32_t, 1>(tokens_.data(), {rows}), batch, tables, logit_rows};
    runner_.network().forward(runner_.context(), in, cache_,
                              View<float, 2>(logits_.data(), {wanted, config.unpadded_vocab_size}), nullptr);
  }

  Runner& runner_;
  int64_t context_;
  std::vector<int64_t> widths_;               // of the tables, by group
  std::vector<std::vector<int32_t>> tables_;  // by group
  KvCache cache_;
  std::vector<SequenceRows> batch_;
  std::vector<int32_t> logit_rows_, tokens_;
  std::vector<float> logits_;
};

// The two are timed in turns, so that both see the same machine.
void bench_verify(Runner& runner, const Options& o) {
  fmt::print("{:>9} {:>5} {:>10} {:>14} {:>10}\n", "sequences", "rows", "ms/forward", "ms of one row", "ratio");
  for (int64_t batch : o.batches) {
    if (batch * o.verify_rows > kHostBatch) continue;
    VerifyStep one(runner, batch, 1, o.context), many(runner, batch, o.verify_rows, o.context);
    std::vector<double> single, verify;
    for (int64_t i = 0; i < o.steps; ++i) single.push_back(one.seconds()), verify.push_back(many.seconds());
    NIB_CHECK(one.logits() == many.logits(), "the first row depends on the rows beside it");
    fmt::print("{:>9} {:>5} {:>10.3f} {:>14.3f} {:>10.2f}\n", batch, o.verify_rows, median(verify) * 1e3,
               median(single) * 1e3, median(verify) / median(single));
  }
}

Status run(const Options& o) {
  EngineConfig c;
  c.isa = best_isa();
  if (!o.isa.empty()) {
    NIB_ASSIGN(c.isa, isa_from_name(o.isa));
  }
  for (int64_t batch : o.batches)
    if (batch < 1) return invalid("--batch {}: at least 1 is needed", batch);
  if (o.context < 1 || o.steps < 1 || o.verify_rows < 1)
    return invalid("--context, --steps and --verify-rows must be at least 1");
  LoadOptions load;
  load.f32 = o.dtype == "f32", load.max_rejected_rows = o.verify_rows;
  NIB_ASSIGN(std::unique_ptr<Network> network, load_network(o.model, load));
  NIB_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(o.model));
  NIB_ASSIGN(const Binding binding, bind_tensors(network->config(), checkpoint));
  c.max_num_seqs = std::max(kHostBatch, *std::max_element(o.batches.begin(), o.batches.end()));
  c.max_num_batched_tokens = std::max<int64_t>(1024, c.max_num_seqs);
  // The first sequences decode while the last are still in their prompts.
  const int64_t prefill_steps = c.max_num_seqs * o.context / c.max_num_batched_tokens + 2;
  const int64_t max_tokens = std::max(o.steps, kHostSteps) + prefill_steps + 2;
  c.max_model_len = o.context + max_tokens;
  if (c.max_model_len > network->config().max_position)
    return invalid("--context {}: the model allows {} tokens, the benchmark adds {}", o.context,
                   network->config().max_position, c.max_model_len - o.context);
  c.num_threads = o.threads > 0 ? o.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  c.kv_cache_memory_bytes = available_memory_bytes() / 2;
  NIB_ASSIGN(const CachePlan caches, plan_caches(network->cache_specs(), c, available_memory_bytes()));
  DecodeLoop loop(std::move(network), c, caches);
  fmt::print("{}: {}, {}, {} threads, context {}\n", o.model, o.dtype, name(c.isa), c.num_threads, o.context);
  bench_host(loop, o, kHostBatch, max_tokens);
  bench_batches(loop, o, binding, max_tokens);
  bench_verify(loop.runner(), o);
  return {};
}

}  // namespace

void add_bench_step_command(CLI::App& bench, Exit& exit) {
  const auto o = std::make_shared<Options>();
  CLI::App* command =
      bench.add_subcommand("step", "Times whole decode steps by batch, and the host's share, against the roofline");
  command->add_option("model", o->model, "model folder")->required();
  command->add_option("--batch", o->batches, "sequences decoding together (1,8,32,256)")->delimiter(',');
  command->add_option("--context", o->context, "prompt tokens of each sequence (64)");
  command->add_option("--steps", o->steps, "decode steps timed; the median counts (16)");
  command->add_option("--verify-rows", o->verify_rows, "rows a sequence that a step of speculation verifies (8)");
  command->add_option("--dtype", o->dtype, "f32 or bf16")->check(CLI::IsMember({"f32", "bf16"}));
  command->add_option("--cpu-isa", o->isa, "ref, avx2, avx512 or amx; the best of this machine by default");
  command->add_option("--threads", o->threads, "0: one per core");
  command->callback([o, &exit] { exit.code = report("bench step", run(*o)); });
}

}  // namespace nib::cli
