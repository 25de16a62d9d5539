// nib check --speculation: whether a model's answers are the same with and without speculation.
//   NIB_TRY(check_speculation(folder, {.num_prompts = 20}));     // prints what it compared; a difference is the status
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/status.h"

namespace nib::cli {

struct SpeculationCheck {
  int64_t num_prompts = 0;
  int64_t num_speculative_tokens = 0;  // of the drafter; 0: its block
  uint64_t seed = 1;                   // of the prompts
};

// With the DSpark drafter of the folder, or without one by copying. Greedy and seeded requests, penalties, biases and
// logprobs, prompts of random tokens and of the model's own text, up to 16 at once.
Status check_speculation(const std::filesystem::path& folder, const SpeculationCheck& options);

}  // namespace nib::cli
