#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "engine/cache_plan.h"
#include "engine/testing/bell.h"
#include "engine/testing/step_loop.h"

namespace nib {
namespace {

using ::testing::AllOf;
using testing::Answer;
using testing::FakeNetwork;
using testing::FakeShape;
using ::testing::HasSubstr;

// A client: waits on its channel and gathers the answers of one request.
class Client {
 public:
  explicit Client(size_t capacity = 1000)
      : channel(std::make_shared<EventChannel>(capacity, [bell = bell_] { bell->ring(); })) {}

  // Reads until each of n sequences has ended.
  std::map<int32_t, Answer> read(int64_t n) {
    std::map<int32_t, Answer> answers;
    for (int64_t finished = 0; finished < n; wait_for_more()) {
      for (const TokenEvent& e : channel->drain()) {
        append(answers[e.sequence], e);
        finished += e.finish != FinishReason::kNone;
        last = e;
      }
      if (finished >= n) break;
    }
    return answers;
  }

  void wait_for_more() { bell_->wait(); }

 private:
  std::shared_ptr<testing::Bell> bell_ = std::make_shared<testing::Bell>();  // before the channel that rings it

 public:
  std::shared_ptr<EventChannel> channel;
  TokenEvent last;
};

EngineConfig small_config() {
  EngineConfig c;
  c.max_model_len = 128;
  c.max_num_seqs = 4;
  c.max_num_batched_tokens = 16;
  c.num_threads = 1;
  c.kv_cache_memory_bytes = 1 << 20;
  return c;
}

std::unique_ptr<Engine> start(const EngineConfig& c = small_config(), const FakeShape& shape = {}) {
  Result<std::unique_ptr<Engine>> engine = Engine::start({std::make_unique<FakeNetwork>(shape)}, c);
  NIB_CHECK(engine.ok(), "{}", engine.status().message());
  return std::move(*engine);
}

Request request(int64_t prompt = 9, int64_t max_tokens = 12) {
  Request r;
  for (int64_t i = 0; i < prompt; ++i) r.prompt.push_back(static_cast<int32_t>(1 + i * 3 % 50));
  r.sampling.max_tokens = max_tokens;
  r.sampling.seed = 5;
  return r;
}

Answer solo(const Request& r, int32_t index, uint64_t seed = 5) {
  return solo_answer(FakeNetwork(), r, index, seed, small_config().max_model_len);
}

TEST(Engine, AnswersOneRequestAndSleeps) {
  auto engine = start();
  for (int round = 0; round < 3; ++round) {
    Client client;
    ASSERT_TRUE(engine->submit(request(), client.channel).ok());
    EXPECT_EQ(client.read(1)[0], solo(request(), 0));
  }
  EXPECT_EQ(engine->stats().num_steps, 36);
}

TEST(Engine, TheSameSeedGivesTheSameTokensWhateverTheBatch) {
  auto engine = start();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(std::make_unique<Client>());
    ASSERT_TRUE(engine->submit(request(i % 2 ? 9 : 1 + i), clients.back()->channel).ok());
  }
  for (int i = 0; i < 40; ++i) EXPECT_EQ(clients[i]->read(1)[0], solo(request(i % 2 ? 9 : 1 + i), 0)) << i;
}

TEST(Engine, NSequencesEqualNRequestsWithSeedPlusI) {
  auto engine = start();
  Request r = request();
  r.sampling.n = 4;
  Client client;
  ASSERT_TRUE(engine->submit(r, client.channel).ok());
  std::map<int32_t, Answer> together = client.read(4);
  for (int32_t i = 0; i < 4; ++i) {
    Request one = request();
    one.sampling.seed = 5 + i;
    Client alone;
    ASSERT_TRUE(engine->submit(one, alone.channel).ok());
    EXPECT_EQ(together[i], alone.read(1)[0]) << i;
    EXPECT_EQ(together[i], solo(r, i)) << i;
  }
}

TEST(Engine, UnseededRequestsDifferAndFollowTheEngineSeed) {
  const auto first_two = [](int64_t seed) {
    EngineConfig c = small_config();
    c.seed = seed;
    auto engine = start(c);
    Request r = request();
    r.sampling.seed.reset();
    std::vector<std::vector<int32_t>> out;
    for (int i = 0; i < 2; ++i) {
      Client client;
      NIB_CHECK(engine->submit(r, client.channel).ok());
      out.push_back(client.read(1)[0].tokens);
    }
    return out;
  };
  const auto a = first_two(1);
  EXPECT_NE(a[0], a[1]);
  EXPECT_EQ(a, first_two(1));
  EXPECT_NE(a, first_two(2));
}

TEST(Engine, ASlowReaderLosesItsRequestAndNobodyElse) {
  auto engine = start();
  Client slow(3), other;
  ASSERT_TRUE(engine->submit(request(9, 100), slow.channel).ok());
  ASSERT_TRUE(engine->submit(request(), other.channel).ok());
  EXPECT_EQ(other.read(1)[0], solo(request(), 0));
  while (engine->stats().num_finished_abort == 0) std::this_thread::yield();
  EXPECT_TRUE(slow.channel->overflowed());
  const std::vector<TokenEvent> events = slow.channel->drain();
  ASSERT_EQ(events.size(), 4u) << "three tokens, then the end";
  EXPECT_EQ(events.back().finish, FinishReason::kAbort);
  while (engine->stats().num_running != 0) std::this_thread::yield();
  EXPECT_EQ(engine->stats().kv_cache_usage, 0);
}

TEST(Engine, CancelEndsWithAbortInTheNextStep) {
  auto engine = start();
  Client client;
  const Result<uint64_t> id = engine->submit(request(9, 119), client.channel);
  ASSERT_TRUE(id.ok());
  client.wait_for_more();
  engine->cancel(*id);
  engine->cancel(*id + 77);  // unknown: nothing happens
  const Answer a = client.read(1)[0];
  EXPECT_TRUE(a.finish == FinishReason::kAbort || a.tokens.size() == 119);
  engine->cancel(*id);
  Client next;
  ASSERT_TRUE(engine->submit(request(), next.channel).ok());
  EXPECT_EQ(next.read(1)[0], solo(request(), 0));
}

TEST(Engine, ItsEndAbortsWhatRuns) {
  Client client;
  {
    auto engine = start();
    ASSERT_TRUE(engine->submit(request(9, 119), client.channel).ok());
  }
  const Answer a = client.read(1)[0];
  EXPECT_TRUE(a.finish == FinishReason::kAbort || a.tokens.size() == 119);
}

TEST(Engine, RefusesMoreThanMaxWaitingRequests) {
  EngineConfig c = small_config();
  c.max_num_seqs = 1;
  c.max_waiting_requests = 2;
  auto engine = start(c);
  std::vector<std::unique_ptr<Client>> clients;
  Status refused;
  // The engine drains the queue while we fill it, so push until it says no.
  for (int i = 0; i < 10000 && refused.ok(); ++i) {
    clients.push_back(std::make_unique<Client>());
    refused = engine->submit(request(9, 119), clients.back()->channel).status();
  }
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  clients.pop_back();
  for (auto& client : clients) client->read(1);
}

TEST(Engine, RefusesBadRequestsAtTheDoor) {
  auto engine = start();
  Client client;
  Request r = request();
  r.prompt[3] = 61;
  EXPECT_EQ(engine->submit(r, client.channel).status().param(), "prompt");
  r.prompt[3] = -1;
  EXPECT_EQ(engine->submit(r, client.channel).status().param(), "prompt");
  r = request(100, 29);
  EXPECT_EQ(engine->submit(r, client.channel).status().param(), "input_tokens");
  EXPECT_EQ(engine->stats().num_waiting, 0);
}

TEST(Engine, TheLastEventTellsWhenThingsHappened) {
  auto engine = start();
  Client client;
  ASSERT_TRUE(engine->submit(request(), client.channel).ok());
  client.read(1);
  const RequestTimes& t = client.last.times;
  EXPECT_GT(t.arrival_ns, 0);
  EXPECT_LE(t.arrival_ns, t.scheduled_ns);
  EXPECT_LT(t.scheduled_ns, t.first_token_ns);
  EXPECT_LT(t.first_token_ns, t.last_token_ns);
}

TEST(Engine, StatsCountWhatHappened) {
  auto engine = start();
  Client client;
  Request r = request(9, 12);
  r.sampling.n = 2;
  ASSERT_TRUE(engine->submit(r, client.channel).ok());
  client.read(2);
  while (engine->stats().num_running != 0) std::this_thread::yield();
  const EngineStats s = engine->stats();
  EXPECT_EQ(s.num_prompt_tokens, 9);
  EXPECT_EQ(s.num_generation_tokens, 24);
  EXPECT_EQ(s.num_finished_length, 2);
  EXPECT_EQ(s.num_steps, 12);
  EXPECT_EQ(s.num_step_rows, 9 + 2 * 11);
  EXPECT_EQ(s.steps_by_rows[1], 11);  // 2 to 8 rows
  EXPECT_EQ(s.steps_by_rows[2], 1);   // the prompt
  EXPECT_TRUE(s.alive);
}

TEST(EngineStart, RefusesWhatCannotWorkInOneSentence) {
  struct Case {
    std::string name;
    std::function<void(EngineConfig&)> set;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"prefix caching", [](auto& c) { c.enable_prefix_caching = true; }, "--enable-prefix-caching"},
      {"model length", [](auto& c) { c.max_model_len = 513; }, "the model allows 1 to 512"},
      {"no sequences", [](auto& c) { c.max_num_seqs = 0; }, "--max-num-seqs 0"},
      {"budget below sequences", [](auto& c) { c.max_num_batched_tokens = 3; }, "--max-num-batched-tokens 3"},
      {"no queue", [](auto& c) { c.max_waiting_requests = 0; }, "--max-waiting-requests 0"},
      {"rows beyond counting", [](auto& c) { c.max_num_batched_tokens = int64_t{1} << 40; }, "at most 16777216"},
      {"negative memory", [](auto& c) { c.kv_cache_memory_bytes = -1; }, "--kv-cache-memory-bytes -1"},
      {"no memory for one sequence", [](auto& c) { c.kv_cache_memory_bytes = 1000; },
       "the largest --max-model-len that fits is"},
      {"no memory for the slots", [](auto& c) { c.kv_cache_memory_bytes = 90; }, "lower it"},
  };
  for (const Case& c : cases) {
    EngineConfig config = small_config();
    c.set(config);
    const auto engine = Engine::start({std::make_unique<FakeNetwork>()}, config);
    ASSERT_FALSE(engine.ok()) << c.name;
    EXPECT_THAT(engine.status().message(), HasSubstr(c.message)) << c.name;
  }
}

TEST(EngineStart, TheModelLengthItNamesFits) {
  EngineConfig c = small_config();
  c.kv_cache_memory_bytes = 1000;
  const auto refused = Engine::start({std::make_unique<FakeNetwork>()}, c);
  const std::string& message = refused.status().message();
  c.max_model_len = std::stoll(message.substr(message.rfind(" is ") + 4));
  EXPECT_GT(c.max_model_len, 1);
  EXPECT_TRUE(Engine::start({std::make_unique<FakeNetwork>()}, c).ok());
  ++c.max_model_len;
  EXPECT_FALSE(Engine::start({std::make_unique<FakeNetwork>()}, c).ok());
}

TEST(EngineStart, ConfigIsResolved) {
  EngineConfig c = small_config();
  c.max_model_len = c.num_threads = 0;
  const auto engine = start(c);
  EXPECT_EQ(engine->config().max_model_len, 512);
  EXPECT_GE(engine->config().num_threads, 1);
}

TEST(CachePlan, SpendsTheMemoryAndNoMoreThanIsUseful) {
  const FakeNetwork network;
  const std::vector<CacheSpec>& specs = network.cache_specs();  // 32, 32 and 24 bytes a block
  struct Case {
    std::string name;
    int64_t bytes, available;
    std::vector<int64_t> num_blocks;
  };
  // 4 sequences of 128 positions: 32 full blocks each; window 6 and chunks of 16 hold 7 blocks, decoding 3.
  const std::vector<Case> cases = {
      {"just one sequence", 32 * 32 + 7 * 32 + 4 * 24, 1 << 20, {32, 7, 4}},
      {"a little more goes half to the windows", 32 * 32 + 7 * 32 + 4 * 24 + 320, 1 << 20, {37, 12, 4}},
      {"more than useful", int64_t{1} << 50, 1 << 20, {128, 16, 4}},
      {"default: a quarter of the memory", 0, 4 * (32 * 32 + 7 * 32 + 4 * 24 + 320), {37, 12, 4}},
      {"default: one sequence at least", 0, 32 * 32 + 7 * 32 + 4 * 24, {32, 7, 4}},
  };
  for (const Case& c : cases) {
    EngineConfig config = small_config();
    config.kv_cache_memory_bytes = c.bytes;
    const Result<CachePlan> plan = plan_caches(specs, config, c.available);
    ASSERT_TRUE(plan.ok()) << c.name << ": " << plan.status().message();
    EXPECT_EQ(plan->num_blocks, c.num_blocks) << c.name;
    if (c.bytes > 0) {
      EXPECT_LE(plan->bytes, c.bytes) << c.name;
    }
  }
}

// Memory that is not there is a sentence at start, never the end of the process.
TEST(CachePlan, RefusesACacheLargerThanTheFreeMemory) {
  const FakeNetwork network;
  EngineConfig config = small_config();
  config.kv_cache_memory_bytes = int64_t{1} << 50;
  const Result<CachePlan> plan = plan_caches(network.cache_specs(), config, 128 * 32 + 16 * 32 + 4 * 24 - 1);
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(plan.status().message(),
              HasSubstr("--kv-cache-memory-bytes 1125899906842624: the cache would take 4704"));
}

TEST(EngineStart, RefusesStepsLargerThanTheFreeMemory) {
  auto network = std::make_unique<FakeNetwork>();
  network->workspace = int64_t{1} << 60;
  const auto engine = Engine::start({std::move(network)}, small_config());
  ASSERT_FALSE(engine.ok());
  EXPECT_THAT(engine.status().message(), HasSubstr("A step of --max-num-batched-tokens 16 and --max-num-seqs 4 takes"));
}

TEST(EventChannel, TakesTheLastEventEvenWhenFull) {
  int wakes = 0;
  EventChannel channel(2, [&] { ++wakes; });
  TokenEvent token, end;
  end.finish = FinishReason::kStop;
  EXPECT_TRUE(channel.push(token));
  EXPECT_TRUE(channel.push(token));
  EXPECT_FALSE(channel.overflowed());
  EXPECT_FALSE(channel.push(token));
  EXPECT_TRUE(channel.overflowed());
  EXPECT_TRUE(channel.push(end));
  EXPECT_EQ(channel.drain().size(), 3u);
  EXPECT_FALSE(channel.push(token)) << "what was lost stays lost";
  EXPECT_EQ(wakes, 5);
}

}  // namespace
}  // namespace nib
