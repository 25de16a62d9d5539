#include "cli/generate.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <memory>
#include <semaphore>

namespace nib::cli {

namespace {

constexpr size_t kEvents = 1 << 16;  // that a channel holds: more than the tokens of any answer here

struct Open {
  size_t index;
  std::shared_ptr<EventChannel> channel;
};

// Takes what has arrived; true at the end of the answer.
Result<bool> read(EventChannel& channel, Generated& answer) {
  for (TokenEvent& e : channel.drain()) {
    answer.tokens.insert(answer.tokens.end(), e.tokens.begin(), e.tokens.end());
    std::ranges::move(e.logprobs, std::back_inserter(answer.logprobs));
    answer.finish = e.finish;
    answer.times = e.times;
    if (e.finish == FinishReason::kError) return Status(Code::kInternal, e.error);
    if (e.finish == FinishReason::kAbort)
      return Status(Code::kInternal, "the engine ended a request before its answer was complete");
    if (e.finish != FinishReason::kNone) return true;
  }
  return false;
}

bool same(const TokenLogprob& a, const TokenLogprob& b) {
  return a.id == b.id && a.rank == b.rank && std::bit_cast<uint32_t>(a.logprob) == std::bit_cast<uint32_t>(b.logprob);
}

bool same(const Logprobs& a, const Logprobs& b) {
  return same(a.chosen, b.chosen) &&
         std::ranges::equal(a.top, b.top, [](const auto& x, const auto& y) { return same(x, y); });
}

std::string describe(const Generated& a, size_t i) {
  if (i < a.tokens.size()) {
    std::string text = fmt::format("token {}", a.tokens[i]);
    return i < a.logprobs.size() ? text + fmt::format(" (logprob {:.9g})", a.logprobs[i].chosen.logprob) : text;
  }
  return a.finish == FinishReason::kStop ? "the end by a stop token" : "the end by length";
}

// Index of the first token that is not the same in both, or that one lacks.
std::optional<size_t> first_difference(const Generated& a, const Generated& b) {
  const size_t common = std::min(a.tokens.size(), b.tokens.size());
  for (size_t i = 0; i < common; ++i) {
    const bool told_a = i < a.logprobs.size(), told_b = i < b.logprobs.size();
    if (a.tokens[i] != b.tokens[i] || told_a != told_b) return i;
    if (told_a && !same(a.logprobs[i], b.logprobs[i])) return i;
  }
  if (a.tokens.size() == b.tokens.size() && a.finish == b.finish) return std::nullopt;
  return common;
}

}  // namespace

Result<std::vector<Generated>> generate(Engine& engine, const std::vector<Request>& requests, int64_t streams) {
  // One release an event. Shared, since the engine thread may release once more when we have the last answer.
  const auto events = std::make_shared<std::counting_semaphore<>>(0);
  std::vector<Generated> answers(requests.size());
  std::vector<Open> open;
  for (size_t next = 0; next < requests.size() || !open.empty();) {
    for (; next < requests.size() && static_cast<int64_t>(open.size()) < streams; ++next) {
      auto channel = std::make_shared<EventChannel>(kEvents, [events] { events->release(); });
      const Result<uint64_t> id = engine.submit(requests[next], channel);
      if (!id.ok()) return id.status();
      open.push_back({next, std::move(channel)});
    }
    events->acquire();
    for (size_t i = 0; i < open.size();) {
      NIB_ASSIGN(const bool ended, read(*open[i].channel, answers[open[i].index]));
      if (ended)
        open.erase(open.begin() + static_cast<int64_t>(i));
      else
        ++i;
    }
  }
  return answers;
}

std::optional<Difference> first_difference(const std::vector<Generated>& a, const std::vector<Generated>& b) {
  for (size_t p = 0; p < a.size(); ++p)
    if (const std::optional<size_t> at = first_difference(a[p], b[p]))
      return Difference{p, *at, describe(a[p], *at), describe(b[p], *at)};
  return std::nullopt;
}

std::string Acceptance::positions() const {
  std::string text;
  for (const int64_t n : by_position)
    text +=
        fmt::format("{}{:.0f}%", text.empty() ? "" : " ", 100.0 * static_cast<double>(n) / static_cast<double>(drafts));
  return text;
}

Acceptance acceptance(const EngineStats& before, const EngineStats& after) {
  Acceptance a{after.num_drafts - before.num_drafts,
               after.num_draft_tokens - before.num_draft_tokens,
               after.num_accepted_tokens - before.num_accepted_tokens,
               {}};
  for (size_t i = 0; i < after.accepted_per_position.size(); ++i)
    a.by_position.push_back(after.accepted_per_position[i] - before.accepted_per_position[i]);
  while (!a.by_position.empty() && a.by_position.back() == 0) a.by_position.pop_back();
  return a;
}

}  // namespace nib::cli
