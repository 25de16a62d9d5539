// Many requests through an engine in this process, a number of them at once; their answers in the order of the
// requests.
//   NIB_ASSIGN(const std::vector<Generated> answers, generate(*engine, requests, /*streams=*/8));
//   if (const std::optional<Difference> d = first_difference(answers, others))
//     print(d->prompt, d->position);
//   print(acceptance(before, engine->stats()));
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace nib::cli {

struct Generated {
  std::vector<int32_t> tokens;
  std::vector<Logprobs> logprobs;  // one per token, if asked
  FinishReason finish = FinishReason::kNone;
  RequestTimes times = {};
};

// `streams` requests are open until the last have begun. The first one that the engine refuses or ends with an error is
// the result.
Result<std::vector<Generated>> generate(Engine& engine, const std::vector<Request>& requests, int64_t streams);

struct Difference {
  size_t prompt, position;
  std::string first, second;  // what stands there in either answer
};

// Tokens, ends, and the bits of logprobs.
std::optional<Difference> first_difference(const std::vector<Generated>& a, const std::vector<Generated>& b);

// What speculation did between two looks at an engine.
struct Acceptance {
  int64_t drafts = 0, draft_tokens = 0, accepted = 0;
  std::vector<int64_t> by_position;  // accepted, as far as any were

  // Tokens that a drafted step gives.
  double length() const { return drafts == 0 ? 1 : 1 + static_cast<double>(accepted) / static_cast<double>(drafts); }
  std::string positions() const;  // "81% 64% 50%", of the drafts
};
Acceptance acceptance(const EngineStats& before, const EngineStats& after);

}  // namespace nib::cli
