#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/stats_lines.h"

namespace nib {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

EngineStats with_drafts() {
  EngineStats s;
  s.num_drafts = 10;
  s.num_draft_tokens = 70;
  s.num_accepted_tokens = 25;
  s.accepted_per_position = {10, 8, 5, 2};
  s.num_draft_pauses = 3;
  return s;
}

TEST(Metrics, speculation_is_counted_under_the_names_of_vllm_when_it_is_on) {
  const Metrics on("m", 4096, /*max_drafts=*/3, with_drafts), off("m", 4096, 0, with_drafts);
  const std::string text = on.text();
  for (const char* line : {
           "vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"m\"} 10\n",
           "vllm:spec_decode_num_draft_tokens_total{engine=\"0\",model_name=\"m\"} 70\n",
           "vllm:spec_decode_num_accepted_tokens_total{engine=\"0\",model_name=\"m\"} 25\n",
           "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",model_name=\"m\",position=\"0\"} 10\n",
           "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",model_name=\"m\",position=\"2\"} 5\n",
           "nib:spec_decode_num_pauses_total{engine=\"0\",model_name=\"m\"} 3\n",
       })
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_THAT(text, Not(HasSubstr("position=\"3\"")));
  EXPECT_THAT(off.text(), Not(HasSubstr("spec_decode")));
}

TEST(StatsLines, say_what_happened_since_the_last_and_nothing_when_idle) {
  EngineStats before, now;
  EXPECT_THAT(stats_lines(before, now, 10), ElementsAre());
  before.num_prompt_tokens = 100;
  now.num_prompt_tokens = 350;
  now.num_generation_tokens = 1234;
  now.num_steps = 7;
  now.num_running = 3;
  now.num_waiting = 2;
  now.kv_cache_usage = 0.125;
  const std::string figures =
      "Engine 000: Avg prompt throughput: 25.0 tokens/s, Avg generation throughput: 123.4 tokens/s, Running: 3 reqs, "
      "Waiting: 2 reqs, GPU KV cache usage: 12.5%, Prefix cache hit rate: 0.0%";
  EXPECT_THAT(stats_lines(before, now, 10), ElementsAre(figures));
}

TEST(StatsLines, tell_of_speculation_in_a_line_of_its_own) {
  EngineStats before = with_drafts(), now = with_drafts();
  now.num_steps = 20;
  EXPECT_EQ(stats_lines(before, now, 10).size(), 1u);  // nothing was drafted since
  now.num_drafts += 20;
  now.num_draft_tokens += 60;
  now.num_accepted_tokens += 30;
  now.accepted_per_position = {26, 16, 11, 2};
  now.num_draft_pauses += 4;
  EXPECT_EQ(
      stats_lines(before, now, 10).at(1),
      "SpecDecoding metrics: Mean acceptance length: 2.50, Accepted throughput: 3.00 tokens/s, Drafted throughput: "
      "6.00 tokens/s, Accepted: 30 tokens, Drafted: 60 tokens, Per-position acceptance rate: 0.800, 0.400, 0.300, "
      "Avg Draft acceptance rate: 50.0%, Pauses: 4");
}

}  // namespace
}  // namespace nib
