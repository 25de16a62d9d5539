// Random requests with cancels, tiny pools and preemption: every pool must be full again and every answer equal to its
// solo run. Parts over a network that hashes its history (stepped by hand, half of the loops with speculation; through
// the engine's thread and slow readers, without and with speculation), and one over a real model folder if given, half
// of its loops with copy drafting.
//   soak --requests 2000 [--seed 1] [--model DIR] [--report FILE]
#include <CLI/CLI.hpp>
#include <ctime>
#include <fstream>
#include <iostream>
#include <mutex>
#include <thread>

#include "engine/testing/bell.h"
#include "engine/testing/random_requests.h"

namespace nib::testing {
namespace {

struct Tally {
  int64_t requests = 0, sequences = 0, cancelled = 0, slow_readers = 0, poisoned = 0, preemptions = 0, steps = 0,
          tokens = 0, accepted_drafts = 0;

  void add(const Request& r) {
    ++requests;
    sequences += r.sampling.n;
    poisoned += r.prompt.back() == FakeNetwork::kPoison;
  }
  void add(const Tally& t) {
    requests += t.requests, sequences += t.sequences, cancelled += t.cancelled, slow_readers += t.slow_readers;
    poisoned += t.poisoned, preemptions += t.preemptions, steps += t.steps, tokens += t.tokens;
    accepted_drafts += t.accepted_drafts;
  }
};

[[noreturn]] void fail(const std::string& what) {
  std::cerr << "soak failed: " << what << "\n";
  std::exit(1);
}

// A cancelled sequence has a beginning of its answer, any other has all of it.
void check(const Answer& got, const Answer& expected, bool cancelled, const std::string& where) {
  if (got == expected) return;
  const bool begins = got.tokens.size() <= expected.tokens.size() &&
                      std::equal(got.tokens.begin(), got.tokens.end(), expected.tokens.begin());
  if (cancelled && got.finish == FinishReason::kAbort && begins) return;
  std::ostringstream message;
  message << where << (cancelled ? " (cancelled)" : "") << "\n  got      " << got << "\n  expected " << expected;
  fail(message.str());
}

void add_stats(const EngineStats& s, Tally& tally) {
  tally.preemptions += s.num_preemptions;
  tally.steps += s.num_steps;
  tally.accepted_drafts += s.num_accepted_tokens;
}

using Solo = std::function<Answer(const Request&, int32_t)>;

// Requests arrive at random steps of one loop; some are cancelled at random steps, whole or one sequence of them.
void run_stepped(StepLoop& loop, Random& random, const RequestLimits& limits, int64_t count, const Solo& solo,
                 Tally& tally, const std::string& where) {
  std::vector<Request> requests;
  std::vector<bool> cancelled;
  bool working = true;
  while (static_cast<int64_t>(requests.size()) < count || working) {
    while (static_cast<int64_t>(requests.size()) < count && random.one_in(3)) {
      requests.push_back(random_request(random, limits));
      tally.add(requests.back());
      cancelled.push_back(false);
      loop.add(requests.back());
    }
    if (!requests.empty() && random.one_in(12)) {
      const int64_t i = random.between(0, static_cast<int64_t>(requests.size()) - 1);
      tally.cancelled += !cancelled[i] && loop.answer(i + 1, 0).finish == FinishReason::kNone;
      cancelled[i] = true;
      if (random.one_in(2))
        loop.cancel(i + 1, static_cast<int32_t>(random.between(0, requests[i].sampling.n - 1)));
      else
        loop.cancel(i + 1);
    }
    working = loop.step();
  }
  for (size_t i = 0; i < requests.size(); ++i)
    for (int32_t k = 0; k < requests[i].sampling.n; ++k) {
      const Answer& got = loop.answer(i + 1, k);
      tally.tokens += static_cast<int64_t>(got.tokens.size());
      check(got, solo(requests[i], k), cancelled[i], fmt::format("{}, request {}, sequence {}", where, i + 1, k));
    }
  if (!loop.pools_full()) fail(where + ": a pool is not full again");
  add_stats(loop.stats(), tally);
}

// What a drafter of the stepped part can be like.
FakeDraftShape random_drafter(Random& random) {
  FakeDraftShape shape;
  shape.right = random.between(0, 6), shape.wrong = random.between(1, 3);
  shape.nan_every = random.one_in(4) ? random.between(3, 60) : 0;
  shape.confidence = random.one_in(2);
  return shape;
}

void soak_stepped(Random& random, int64_t count, Tally& tally) {
  for (int64_t done = 0; done < count; done += 50) {
    StepLoopConfig config = random_config(random);
    if (random.one_in(2)) add_speculation(random, config);
    FakeLoop loop(config, random_drafter(random));
    run_stepped(
        loop, random, {40, 24, FakeNetwork::kVocab, true}, std::min<int64_t>(50, count - done),
        [&](const Request& r, int32_t k) { return loop.solo(r, k); }, tally, fmt::format("stepped {}", done));
  }
}

// One request through the engine's thread. The slow one sleeps while its small channel fills.
class Client {
 public:
  enum class Mood { kReads, kCancels, kIsSlow };

  Client(Engine& engine, Request r, Mood mood)
      : request(std::move(r)),
        mood_(mood),
        channel_(std::make_shared<EventChannel>(capacity(), [bell = bell_] { bell->ring(); })) {
    const Result<uint64_t> id = engine.submit(request, channel_);
    if (!id.ok()) fail(id.status().message());
    id_ = *id;
  }

  void read(Engine& engine) {
    for (int64_t finished = 0; finished < request.sampling.n;) {
      wait();
      if (mood_ == Mood::kCancels) engine.cancel(id_);
      for (const TokenEvent& e : channel_->drain()) {
        append(answers[e.sequence], e);
        finished += e.finish != FinishReason::kNone;
      }
    }
  }

  bool cancels() const { return mood_ == Mood::kCancels; }
  bool overflowed() const { return channel_->overflowed(); }

  const Request request;
  std::map<int32_t, Answer> answers;

 private:
  size_t capacity() const { return mood_ == Mood::kIsSlow ? 2 : 4096; }

  void wait() {
    if (mood_ == Mood::kIsSlow)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    else
      bell_->wait();
  }

  const Mood mood_;
  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  std::shared_ptr<EventChannel> channel_;
  uint64_t id_ = 0;
};

std::unique_ptr<Engine> start_tiny_engine(bool speculates) {
  EngineConfig c;
  c.max_model_len = 64;
  c.max_num_seqs = 6;
  c.max_num_batched_tokens = 16;
  c.num_threads = 2;
  c.kv_cache_memory_bytes = 1800;  // one sequence of any length, and little more
  FakeShape shape;
  std::unique_ptr<Drafter> drafter;
  if (speculates) {
    c.speculation.method = SpeculativeConfig::Method::kDspark;
    c.speculation.num_speculative_tokens = 7;
    c.speculation.probabilistic_drafts = c.speculation.adaptive_verification = c.speculation.copy_drafts = true;
    c.speculation.max_copy_tokens = SpeculativeConfig::kMaxCopyTokens;
    c.speculation.prompt_lookup_min = 1;
    c.kv_cache_memory_bytes = 3600;  // also of the drafter and of longer rings
    shape.max_rejected_rows = c.speculation.max_drafts();
    drafter = std::make_unique<FakeDrafter>(FakeDraftShape{.nan_every = 50, .confidence = true}, shape);
  }
  Result<std::unique_ptr<Engine>> engine = Engine::start({std::make_unique<FakeNetwork>(shape), std::move(drafter)}, c);
  if (!engine.ok()) fail(engine.status().message());
  return std::move(*engine);
}

Client::Mood random_mood(Random& random) {
  return random.one_in(10) ? Client::Mood::kCancels : random.one_in(20) ? Client::Mood::kIsSlow : Client::Mood::kReads;
}

// Four client threads, each with up to 20 requests open at a time.
void soak_threaded(bool speculates, Random& random, int64_t count, Tally& tally) {
  const std::unique_ptr<Engine> engine = start_tiny_engine(speculates);
  std::mutex mutex;  // of tally
  const auto client_thread = [&](uint64_t seed, int64_t share) {
    Random own(seed);
    for (int64_t done = 0; done < share; done += 20) {
      Tally mine;
      std::vector<std::unique_ptr<Client>> clients;
      for (int64_t i = done; i < std::min(share, done + 20); ++i) {
        Request r = random_request(own, {40, 24, FakeNetwork::kVocab, true});
        mine.add(r);
        clients.push_back(std::make_unique<Client>(*engine, std::move(r), random_mood(own)));
      }
      for (auto& c : clients) {
        c->read(*engine);
        mine.cancelled += c->cancels();
        mine.slow_readers += c->overflowed();
        for (auto& [k, got] : c->answers) {
          const Answer expected = solo_answer(FakeNetwork(), c->request, k, *c->request.sampling.seed, 64);
          check(got, expected, c->cancels() || c->overflowed(), "threaded");
          mine.tokens += static_cast<int64_t>(got.tokens.size());
        }
      }
      std::lock_guard lock(mutex);
      tally.add(mine);
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back(client_thread, random.between(0, 1 << 30), count * (t + 1) / 4 - count * t / 4);
  for (std::thread& t : threads) t.join();
  const EngineStats s = engine->stats();
  if (s.num_running + s.num_waiting != 0 || s.kv_cache_usage != 0) fail("threaded: the engine still holds something");
  add_stats(s, tally);
}

// A real model in tiny pools against the same model serving one sequence at a time from large ones.
void soak_model(const std::string& folder, bool f32, Random& random, int64_t count, Tally& tally) {
  const auto load = [&](int64_t max_rejected_rows = 0) {
    LoadOptions options;
    options.f32 = f32;
    options.max_rejected_rows = max_rejected_rows;
    Result<std::unique_ptr<Network>> network = load_network(folder, options);
    if (!network.ok()) fail(network.status().message());
    return std::move(*network);
  };
  const std::vector<CacheSpec> specs = load()->cache_specs();
  const int64_t vocab = load()->config().unpadded_vocab_size;
  StepLoopConfig roomy, tiny;
  roomy.max_model_len = tiny.max_model_len = std::min<int64_t>(96, load()->config().max_position);
  roomy.isa = tiny.isa = best_isa();
  roomy.max_num_batched_tokens = 64;
  roomy.pools.clear();
  for (const CacheSpec& s : specs) roomy.pools.push_back(blocks_of_sequence(s, roomy.max_model_len, 64));
  StepLoop alone(roomy, {load()});
  uint64_t last = 0;
  const Solo solo = [&](const Request& r, int32_t k) {
    if (k == 0) last = alone.add(r), alone.run();
    return alone.answer(last, k);
  };
  for (int64_t done = 0; done < count; done += 50) {
    tiny.max_num_batched_tokens = random.between(6, 40);
    tiny.priority = random.one_in(2);
    tiny.num_threads = static_cast<int>(random.between(1, 2));
    tiny.pools.clear();
    for (const CacheSpec& s : specs)
      tiny.pools.push_back(blocks_of_sequence(s, tiny.max_model_len, tiny.max_num_batched_tokens) +
                           random.between(0, 4));
    tiny.pools.back() = random.between(1, 6);
    tiny.speculation = {};
    if (random.one_in(2)) {
      tiny.speculation.method = SpeculativeConfig::Method::kNgram;
      tiny.speculation.copy_drafts = true;
      tiny.speculation.adaptive_verification = random.one_in(2);
      tiny.speculation.max_copy_tokens = random.between(1, SpeculativeConfig::kMaxCopyTokens);
      tiny.speculation.prompt_lookup_min = tiny.speculation.prompt_lookup_max = random.between(1, 3);
    }
    StepLoop loop(tiny, {load(tiny.speculation.max_drafts())});
    // Mostly short requests, so that there can be many; some that fill the context.
    const RequestLimits limits =
        random.one_in(10) ? RequestLimits{70, 26, vocab, false} : RequestLimits{24, 12, vocab, false};
    run_stepped(loop, random, limits, std::min<int64_t>(50, count - done), solo, tally, fmt::format("model {}", done));
  }
}

struct Part {
  std::string name;
  Tally tally;
  double seconds = 0;
};

void print_report(std::ostream& out, const std::vector<Part>& parts, uint64_t seed) {
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  out << "# Soak report\n\n"
      << "`make soak` on " << date << ", seed " << seed << ": passed. Every answer equals its solo run, and every pool "
      << "of blocks and slots was full again at the end.\n\n"
      << "| part | requests | sequences | cancelled | slow readers | NaN rows | preemptions | steps | tokens | "
         "accepted "
         "drafts | seconds |\n"
      << "|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const Part& p : parts) {
    const Tally& t = p.tally;
    out << fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.1f} |\n", p.name, t.requests,
                       t.sequences, t.cancelled, t.slow_readers, t.poisoned, t.preemptions, t.steps, t.tokens,
                       t.accepted_drafts, p.seconds);
  }
}

int run(int argc, char** argv) {
  CLI::App app("Random requests with cancels, tiny pools and preemption, each compared with its solo run");
  int64_t requests = 2000, model_requests = 0;
  uint64_t seed = 1;
  std::string model, report;
  app.add_option("--requests", requests, "over the hashing network, half of them through the engine's thread");
  app.add_option("--seed", seed);
  app.add_option("--model", model, "folder of a small real model");
  app.add_option("--model-requests", model_requests, "over the real model, half of them in FP32");
  app.add_option("--report", report, "Markdown file to write");
  CLI11_PARSE(app, argc, argv);

  std::vector<Part> parts;
  const auto part = [&](const std::string& name, const std::function<void(Random&, Tally&)>& body) {
    std::cerr << name << ", seed " << seed << " ..." << std::endl;
    Random random(seed + parts.size());
    parts.push_back({name, {}, 0});
    const auto start = std::chrono::steady_clock::now();
    body(random, parts.back().tally);
    parts.back().seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  part("stepped, half with speculation",
       [&](Random& random, Tally& tally) { soak_stepped(random, requests - requests / 2, tally); });
  for (const bool speculates : {false, true})
    part(speculates ? "threaded, with speculation" : "threaded",
         [&](Random& random, Tally& tally) { soak_threaded(speculates, random, requests / 4, tally); });
  if (!model.empty()) {
    for (const bool f32 : {false, true})
      part(f32 ? "model, f32, half with copy drafting" : "model, bf16, half with copy drafting",
           [&](Random& random, Tally& tally) { soak_model(model, f32, random, model_requests / 2, tally); });
  }
  print_report(std::cout, parts, seed);
  if (std::ofstream file(report); !report.empty()) print_report(file, parts, seed);
  return 0;
}

}  // namespace
}  // namespace nib::testing

int main(int argc, char** argv) { return nib::testing::run(argc, argv); }
