#include "engine/spec_decode/acceptance.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace nib {

namespace {

// Acceptance before anything was seen, by Proposer: high enough that each of them is tried.
constexpr std::array<double, kNumProposers> kFirstGuess = {0, 0.5, 0.9, 0.7};
constexpr double kGuessWeight = 16, kEngineWeight = 4;  // observations
constexpr double kEngineMemory = 500, kEngineIdleMemory = 10'000;
constexpr double kSequenceMemory = 10, kSequenceIdleMemory = 100;

void fade_unobserved(std::vector<RunningAcceptance>& running, std::array<bool, kNumProposers>& observed) {
  for (int p = 0; p < kNumProposers; ++p)
    if (!observed[p]) running[p].fade();
  observed.fill(false);
}

}  // namespace

RunningAcceptance::RunningAcceptance(double memory, double idle_memory)
    : keep_(std::exp(-1 / memory)), idle_keep_(std::exp(-1 / idle_memory)) {}

void RunningAcceptance::observe(int64_t proposed, int64_t accepted) {
  NIB_CHECK(0 <= accepted && accepted <= proposed, "{} accepted of {}", accepted, proposed);
  const int64_t num_judged = std::min(accepted + 1, proposed);
  if (static_cast<int64_t>(positions_.size()) < num_judged) positions_.resize(num_judged);
  for (int64_t i = 0; i < num_judged; ++i) {
    positions_[i].tried = positions_[i].tried * keep_ + 1;
    positions_[i].accepted = positions_[i].accepted * keep_ + (i < accepted ? 1 : 0);
  }
}

void RunningAcceptance::fade() {
  for (Counts& c : positions_) c = {c.tried * idle_keep_, c.accepted * idle_keep_};
}

double RunningAcceptance::conditional(int64_t index, double prior, double weight) const {
  const Counts c = index < static_cast<int64_t>(positions_.size()) ? positions_[index] : Counts{};
  return (c.accepted + weight * prior) / (c.tried + weight);
}

EngineAcceptance::EngineAcceptance() : running_(kNumProposers, {kEngineMemory, kEngineIdleMemory}) {}

void EngineAcceptance::observe(Proposer p, int64_t proposed, int64_t accepted) {
  running_[static_cast<int>(p)].observe(proposed, accepted);
  observed_[static_cast<int>(p)] = true;
}

void EngineAcceptance::end_step() { fade_unobserved(running_, observed_); }

double EngineAcceptance::conditional(Proposer p, int64_t index) const {
  return running_[static_cast<int>(p)].conditional(index, kFirstGuess[static_cast<int>(p)], kGuessWeight);
}

SequenceAcceptance::SequenceAcceptance(EngineAcceptance& engine)
    : engine_(engine), running_(kNumProposers, {kSequenceMemory, kSequenceIdleMemory}) {}

void SequenceAcceptance::observe(Proposer p, int64_t proposed, int64_t accepted) {
  running_[static_cast<int>(p)].observe(proposed, accepted);
  observed_[static_cast<int>(p)] = true;
  engine_.observe(p, proposed, accepted);
}

void SequenceAcceptance::observe_unverified(Proposer p, std::span<const int32_t> proposal,
                                            std::span<const int32_t> emitted) {
  const size_t num_judged = std::min(proposal.size(), emitted.size());
  const auto differs = std::mismatch(proposal.begin(), proposal.begin() + num_judged, emitted.begin()).first;
  observe(p, static_cast<int64_t>(num_judged), differs - proposal.begin());
}

void SequenceAcceptance::end_step() { fade_unobserved(running_, observed_); }

std::vector<double> SequenceAcceptance::survival(Proposer p, int64_t num_drafts) const {
  std::vector<double> out;
  double survives = 1;
  for (int64_t i = 0; i < num_drafts; ++i) {
    survives *= running_[static_cast<int>(p)].conditional(i, engine_.conditional(p, i), kEngineWeight);
    out.push_back(survives);
  }
  return out;
}

}  // namespace nib
