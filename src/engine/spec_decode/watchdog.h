// Pauses drafting for a sequence where it costs more than it gives.
//   if (watchdog.may_draft()) ...
//   watchdog.drafted({.ns = measured, .table_ns = 150, .plain_table_ns = 120, .tokens = 9, .plain_tokens = 8});
//   watchdog.rested();                      // instead, after a step of a pause
// Time per token of the whole step counts, so one sequence cannot gain at the cost of the others. Engine thread.
#pragma once

#include <cstdint>

namespace nib {

// One step as it was, and as it would have been without the drafts of this sequence. The plain time is the measured one
// times the ratio of the two costs by the table, so that a slow moment of the machine counts on both sides.
struct DraftedStep {
  double ns = 0;              // measured
  double table_ns = 0;        // what the cost table says of this step; 0: nothing yet
  double plain_table_ns = 0;  // and of the step without these drafts
  int64_t tokens = 0;         // emitted by all sequences
  int64_t plain_tokens = 0;   // the same, less what this sequence got from its drafts
};

class DraftWatchdog {
 public:
  static constexpr int64_t kWindow = 16;      // drafted steps that are judged together
  static constexpr int64_t kMaxPause = 1024;  // steps; the first pause is kWindow, each further one twice as long

  bool may_draft() const { return pause_left_ == 0; }
  // REQUIRES may_draft(). Steps in which the sequence had no drafts are not reported; steps of unknown cost do not
  // count.
  void drafted(const DraftedStep& step);
  // REQUIRES !may_draft(). A plain step of a pause; at its end a window of drafts is tried again.
  void rested();
  int64_t num_pauses() const { return num_pauses_; }

 private:
  bool drafting_loses() const;

  // Sums over the window.
  double ns_ = 0, plain_ns_ = 0;
  int64_t tokens_ = 0, plain_tokens_ = 0;
  int64_t num_steps_ = 0;

  int64_t pause_left_ = 0, next_pause_ = kWindow;
  int64_t num_pauses_ = 0;
};

}  // namespace nib
