// What speculation knows of one sequence.
//   s.speculation = std::make_unique<SequenceSpeculation>(config, engine_acceptance);
//   s.speculation->read(s);                       // tokens that are new
#pragma once

#include "engine/spec_decode/acceptance.h"
#include "engine/spec_decode/ngram.h"
#include "engine/spec_decode/watchdog.h"

namespace nib {

struct SequenceSpeculation {
  SequenceSpeculation(int64_t min_match, int64_t max_match, EngineAcceptance& engine)
      : copies(min_match, max_match), acceptance(engine) {}

  CopyDrafter copies;
  SequenceAcceptance acceptance;
  DraftWatchdog watchdog;
  bool drafter_failed = false;  // NaN: the answer goes on from the target alone
};

}  // namespace nib
