#include "server/stats_lines.h"

#include <fmt/format.h>

namespace nib {

namespace {

std::string speculation_line(const EngineStats& before, const EngineStats& now, double seconds) {
  const int64_t accepted = now.num_accepted_tokens - before.num_accepted_tokens;
  const int64_t drafted = now.num_draft_tokens - before.num_draft_tokens;
  const auto drafts = static_cast<double>(now.num_drafts - before.num_drafts);
  std::string by_position;
  for (size_t i = 0; i < now.accepted_per_position.size(); ++i) {
    const int64_t here = now.accepted_per_position[i] - before.accepted_per_position[i];
    if (here == 0) break;  // none follows one that was rejected
    by_position += fmt::format("{:.3f}, ", static_cast<double>(here) / drafts);
  }
  if (by_position.empty()) by_position = "0.000, ";
  return fmt::format(
      "SpecDecoding metrics: Mean acceptance length: {:.2f}, Accepted throughput: {:.2f} tokens/s, Drafted throughput: "
      "{:.2f} tokens/s, Accepted: {} tokens, Drafted: {} tokens, Per-position acceptance rate: {}Avg Draft acceptance "
      "rate: {:.1f}%, Pauses: {}",
      1 + static_cast<double>(accepted) / drafts, static_cast<double>(accepted) / seconds,
      static_cast<double>(drafted) / seconds, accepted, drafted, by_position,
      100 * static_cast<double>(accepted) / static_cast<double>(drafted),
      now.num_draft_pauses - before.num_draft_pauses);
}

}  // namespace

std::vector<std::string> stats_lines(const EngineStats& before, const EngineStats& now, double seconds) {
  if (now.num_running == 0 && now.num_waiting == 0 && now.num_steps == before.num_steps) return {};
  const auto rate = [&](int64_t from, int64_t to) { return static_cast<double>(to - from) / seconds; };
  std::vector<std::string> lines = {
      fmt::format("Engine 000: Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} tokens/s, "
                  "Running: {} reqs, "
                  "Waiting: {} reqs, GPU KV cache usage: {:.1f}%, Prefix cache hit rate: 0.0%",
                  rate(before.num_prompt_tokens, now.num_prompt_tokens),
                  rate(before.num_generation_tokens, now.num_generation_tokens), now.num_running, now.num_waiting,
                  100 * now.kv_cache_usage)};
  if (now.num_drafts > before.num_drafts) lines.push_back(speculation_line(before, now, seconds));
  return lines;
}

}  // namespace nib
