#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "engine/cache_plan.h"
#include "engine/noise.h"
#include "engine/runner.h"
#include "engine/scheduler.h"

namespace nib {

namespace {

constexpr int64_t kPromptLogitRows = 64;
constexpr int64_t kMostRows = int64_t{1} << 24;  // of a step; bytes counted from it stay far from overflow

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// What other threads ask of the engine thread. Submissions are bounded by Engine::submit; a cancel names one.
class Inbox {
 public:
  struct Cancel {
    uint64_t id;
    std::optional<int32_t> sequence;  // empty: all of them
  };
  struct Mail {
    std::vector<std::unique_ptr<RequestState>> submitted;
    std::vector<Cancel> cancelled;
    bool stop = false;
  };

  bool submit(std::unique_ptr<RequestState> request, int64_t max_waiting) {
    std::lock_guard lock(mutex_);
    if (num_waiting_ + static_cast<int64_t>(mail_.submitted.size()) >= max_waiting) return false;
    mail_.submitted.push_back(std::move(request));
    arrived_.notify_one();
    return true;
  }

  void cancel(Cancel cancel) {
    std::lock_guard lock(mutex_);
    mail_.cancelled.push_back(cancel);
    arrived_.notify_one();
  }

  void stop() {
    std::lock_guard lock(mutex_);
    mail_.stop = true;
    arrived_.notify_one();
  }

  // Engine thread: everything that has come; waits for something if `idle`.
  Mail collect(bool idle, int64_t num_waiting) {
    std::unique_lock lock(mutex_);
    const auto any = [&] { return mail_.stop || !mail_.submitted.empty() || !mail_.cancelled.empty(); };
    num_waiting_ = num_waiting;
    if (idle) arrived_.wait(lock, any);
    num_waiting_ += static_cast<int64_t>(mail_.submitted.size());
    return std::exchange(mail_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  Mail mail_;
  int64_t num_waiting_ = 0;  // in the scheduler
};

SchedulerConfig scheduler_config(const EngineConfig& c, const ModelConfig& model, const CostTable& costs) {
  SchedulerConfig s;
  s.max_num_seqs = c.max_num_seqs;
  s.max_num_batched_tokens = c.max_num_batched_tokens;
  s.max_prompt_logit_rows = kPromptLogitRows;
  s.max_model_len = c.max_model_len;
  s.vocab_size = model.unpadded_vocab_size;
  s.priority = c.priority_scheduling;
  s.speculation = c.speculation;
  s.costs = costs;
  return s;
}

RunnerLimits runner_limits(const EngineConfig& c) {
  const int64_t draws = std::min(c.max_num_seqs * (1 + c.speculation.max_drafts()), c.max_num_batched_tokens);
  return {c.max_num_seqs,
          c.max_num_batched_tokens,
          draws + kPromptLogitRows,
          c.max_model_len,
          c.num_threads,
          c.isa,
          c.speculation.num_speculative_tokens,
          c.speculation.probabilistic_drafts};
}

Status check_config(const EngineConfig& c, const ModelConfig& model) {
  if (c.enable_prefix_caching)
    return Status(Code::kUnimplemented, "--enable-prefix-caching: prefix caching is not there yet, leave it out.");
  if (c.max_model_len < 0 || c.max_model_len > model.max_position)
    return invalid("--max-model-len {}: the model allows 1 to {} tokens.", c.max_model_len, model.max_position);
  const auto positive = [](const char* flag, int64_t value) {
    if (value > kMostRows) return invalid("{} {}: at most {} are possible.", flag, value, kMostRows);
    return value > 0 ? Status() : invalid("{} {}: at least 1 is needed.", flag, value);
  };
  NIB_TRY(positive("--max-num-seqs", c.max_num_seqs));
  NIB_TRY(positive("--max-num-batched-tokens", c.max_num_batched_tokens));
  NIB_TRY(positive("--max-waiting-requests", c.max_waiting_requests));
  if (c.max_num_batched_tokens < c.max_num_seqs)
    return invalid("--max-num-batched-tokens {}: at least --max-num-seqs {} is needed, one row a sequence.",
                   c.max_num_batched_tokens, c.max_num_seqs);
  if (c.kv_cache_memory_bytes < 0)
    return invalid("--kv-cache-memory-bytes {}: at least 0 is needed.", c.kv_cache_memory_bytes);
  if (c.num_threads < 0) return invalid("--num-threads {}: at least 0 is needed.", c.num_threads);
  return {};
}

Status check_speculation(const SpeculativeConfig& c, const Drafter* drafter) {
  if (c.method != SpeculativeConfig::Method::kDspark) return {};
  if (!drafter) return invalid("--speculative-config: method dspark needs a drafter, and none was loaded.");
  if (c.num_speculative_tokens == 0) return {};
  return drafter->config().check_draft_length(c.num_speculative_tokens);
}

EngineConfig resolve(EngineConfig c, const ModelConfig& model, const Drafter* drafter) {
  SpeculativeConfig& s = c.speculation;
  if (drafter && s.num_speculative_tokens == 0) s.num_speculative_tokens = drafter->config().max_draft_tokens();
  if (c.max_model_len == 0) c.max_model_len = model.max_position;
  if (c.num_threads == 0) c.num_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return c;
}

}  // namespace

struct Engine::Impl {
  Impl(Models models, const EngineConfig& c, const CachePlan& caches, const CostTable& costs)
      : config(c),
        scheduler(scheduler_config(c, models.target->config(), costs),
                  BlockManager(models.cache_specs(), caches.num_blocks)),
        runner(std::move(models), runner_limits(c), caches.num_blocks) {
    publish();
    thread = std::thread([this] { loop(); });
  }

  ~Impl() {
    inbox.stop();
    thread.join();
  }

  // The whole life of the engine thread.
  void loop() {
    bool idle = true;
    while (accept(inbox.collect(idle, snapshot.num_waiting))) {
      const StepPlan& plan = scheduler.plan(now_ns());
      idle = plan.empty();
      if (!idle) {
        const StepOutput& output = runner.run(plan);
        scheduler.commit(output, now_ns());
      }
      publish();
      send();
      propose();
    }
    scheduler.abort_all();
    publish();
    send();
    save_costs();
  }

  // For the next start; a file that is there was loaded and did not change.
  void save_costs() const {
    const std::string& file = config.speculation.cost_table_file;
    if (file.empty() || std::filesystem::exists(file)) return;
    if (const Status s = scheduler.costs().save(file); !s.ok()) log::warn("verification_cost_table: {}", s.message());
  }

  // After the events are out: drafts are for the next step, no client waits for them.
  void propose() {
    const DraftPlan& plan = scheduler.plan_drafts();
    if (plan.empty()) return;
    const int64_t start = now_ns();
    const Drafts& drafts = runner.draft(plan);
    scheduler.commit_drafts(drafts, now_ns() - start);
  }

  bool accept(Inbox::Mail mail) {
    for (auto& request : mail.submitted) scheduler.add(std::move(request));
    for (const Inbox::Cancel& c : mail.cancelled)
      c.sequence ? scheduler.cancel(c.id, *c.sequence) : scheduler.cancel(c.id);
    return !mail.stop;
  }

  // A client that does not read loses its request; nobody waits for it.
  void send() {
    for (Outgoing& out : scheduler.take_events())
      if (!out.channel->push(std::move(out.event))) scheduler.cancel(out.request_id);
    for (Outgoing& out : scheduler.take_events()) out.channel->push(std::move(out.event));
  }

  // Before the events go out: whoever has seen one finds it counted.
  void publish() {
    std::lock_guard lock(stats_mutex);
    scheduler.count(snapshot);
  }

  const EngineConfig config;
  std::atomic<uint64_t> last_id{0};
  Inbox inbox;
  Scheduler scheduler;
  Runner runner;
  mutable std::mutex stats_mutex;
  EngineStats snapshot;  // written by the engine thread under the mutex
  std::thread thread;
};

Result<std::unique_ptr<Engine>> Engine::start(Models models, const EngineConfig& config) {
  NIB_TRY(check_config(config, models.target->config()));
  NIB_TRY(check_speculation(config.speculation, models.drafter.get()));
  EngineConfig resolved = resolve(config, models.target->config(), models.drafter.get());
  CostTable costs;
  if (const std::string& file = resolved.speculation.cost_table_file; std::filesystem::exists(file)) {
    NIB_ASSIGN(costs, CostTable::load(file));
  }
  const int64_t step_bytes = Runner::step_bytes(models, runner_limits(resolved)), free = available_memory_bytes();
  if (step_bytes > free)
    return invalid(
        "A step of --max-num-batched-tokens {} and --max-num-seqs {} takes {} bytes, and {} are free: lower them.",
        resolved.max_num_batched_tokens, resolved.max_num_seqs, step_bytes, free);
  NIB_ASSIGN(const CachePlan caches, plan_caches(models.cache_specs(), resolved, free - step_bytes));
  resolved.kv_cache_memory_bytes = caches.bytes;
  return std::unique_ptr<Engine>(new Engine(std::make_unique<Impl>(std::move(models), resolved, caches, costs)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<uint64_t> Engine::submit(Request request, std::shared_ptr<EventChannel> channel) {
  const int64_t vocab_size = model().unpadded_vocab_size;
  NIB_TRY(check_sampling(request.sampling, static_cast<int64_t>(request.prompt.size()), vocab_size,
                         config().max_model_len, config().max_logprobs));
  for (int32_t id : request.prompt)
    if (id < 0 || id >= vocab_size)
      return invalid_param("prompt", "The prompt has token id {}, which is outside the vocabulary of {} tokens.", id,
                           vocab_size);
  const uint64_t id = request.id = ++impl_->last_id;
  const uint64_t seed = request.sampling.seed ? static_cast<uint64_t>(*request.sampling.seed)
                                              : mix64(mix64(static_cast<uint64_t>(config().seed)) ^ id);
  auto state = std::make_unique<RequestState>(std::move(request), std::move(channel), seed, now_ns());
  if (impl_->inbox.submit(std::move(state), config().max_waiting_requests)) return id;
  return Status(Code::kUnavailable, fmt::format("The server is overloaded: {} requests are waiting, try again later.",
                                                config().max_waiting_requests));
}

void Engine::cancel(uint64_t id) { impl_->inbox.cancel({id, std::nullopt}); }
void Engine::cancel(uint64_t id, int32_t sequence) { impl_->inbox.cancel({id, sequence}); }

EngineStats Engine::stats() const {
  std::lock_guard lock(impl_->stats_mutex);
  return impl_->snapshot;
}

const EngineConfig& Engine::config() const { return impl_->config; }
const ModelConfig& Engine::model() const { return impl_->runner.network().config(); }

}  // namespace nib
