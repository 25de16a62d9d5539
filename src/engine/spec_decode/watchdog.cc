#include "engine/spec_decode/watchdog.h"

#include <algorithm>

#include "base/check.h"

namespace nib {

void DraftWatchdog::drafted(const DraftedStep& step) {
  NIB_CHECK(may_draft(), "{} steps of the pause are left", pause_left_);
  NIB_CHECK(step.plain_tokens >= 1 && step.tokens >= step.plain_tokens, "{} tokens, {} without drafts", step.tokens,
            step.plain_tokens);
  if (step.table_ns <= 0) return;
  ns_ += step.ns;
  plain_ns_ += step.ns * step.plain_table_ns / step.table_ns;
  tokens_ += step.tokens;
  plain_tokens_ += step.plain_tokens;
  if (++num_steps_ < kWindow) return;
  if (drafting_loses()) {
    ++num_pauses_;
    pause_left_ = next_pause_;
    next_pause_ = std::min(2 * next_pause_, kMaxPause);
  } else {
    next_pause_ = kWindow;
  }
  ns_ = plain_ns_ = 0;
  tokens_ = plain_tokens_ = num_steps_ = 0;
}

void DraftWatchdog::rested() {
  NIB_CHECK(!may_draft(), "no pause is on");
  --pause_left_;
}

// ns / tokens > plain_ns / plain_tokens
bool DraftWatchdog::drafting_loses() const {
  return ns_ * static_cast<double>(plain_tokens_) > plain_ns_ * static_cast<double>(tokens_);
}

}  // namespace nib
