// How far drafts are likely to be accepted: running acceptance by position, of the engine and of each sequence.
//   EngineAcceptance engine;                              // one
//   SequenceAcceptance sequence(engine);                  // one a sequence
//   sequence.survival(Proposer::kDspark, 7);              // P(the first k drafts are accepted), k = 1..7
//   sequence.observe(Proposer::kDspark, proposed, accepted);   // after the step, then end_step()
// Only past steps count, so a length chosen by these numbers never depends on the tokens it admits. Engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace nib {

// Copies after a long match are another thing than copies after a short one: a file that is written again, or a phrase
// that happens to come twice.
enum class Proposer { kNone, kShortCopy, kLongCopy, kDspark };
constexpr int kNumProposers = 4;
constexpr int64_t kLongMatch = 8;  // tokens

constexpr Proposer copy_proposer(int64_t match_length) {
  return match_length >= kLongMatch ? Proposer::kLongCopy : Proposer::kShortCopy;
}

// Exponentially weighted counts of P(draft k accepted | drafts before it accepted).
class RunningAcceptance {
 public:
  // `memory`: observations, `idle_memory`: steps, after which an old one counts 1/e.
  RunningAcceptance(double memory, double idle_memory);

  // REQUIRES 0 <= accepted <= proposed. What lies behind the first rejected draft says nothing.
  void observe(int64_t proposed, int64_t accepted);
  void fade();  // a step without news: the estimate moves back to its prior
  // Of draft `index` (from 0), the prior counting as `weight` observations.
  double conditional(int64_t index, double prior, double weight) const;

 private:
  struct Counts {
    double tried = 0, accepted = 0;
  };
  const double keep_, idle_keep_;
  std::vector<Counts> positions_;
};

// What all sequences together have seen: the prior of each one.
class EngineAcceptance {
 public:
  EngineAcceptance();
  void observe(Proposer p, int64_t proposed, int64_t accepted);
  void end_step();  // of the engine: proposers that were not observed fade
  double conditional(Proposer p, int64_t index) const;

 private:
  std::vector<RunningAcceptance> running_;  // by Proposer
  std::array<bool, kNumProposers> observed_{};
};

class SequenceAcceptance {
 public:
  explicit SequenceAcceptance(EngineAcceptance& engine);  // which must outlive it
  // Counts for the sequence and for the engine.
  void observe(Proposer p, int64_t proposed, int64_t accepted);
  // A copy costs nothing to propose, so one that was not verified is judged by what came instead.
  void observe_unverified(Proposer p, std::span<const int32_t> proposal, std::span<const int32_t> emitted);
  void end_step();  // of the sequence
  // Never rises; in [0, 1].
  std::vector<double> survival(Proposer p, int64_t num_drafts) const;

 private:
  EngineAcceptance& engine_;
  std::vector<RunningAcceptance> running_;  // by Proposer
  std::array<bool, kNumProposers> observed_{};
};

}  // namespace nib
