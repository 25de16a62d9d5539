// Which rows of a step belong to which sequence: plain views that every operation with a memory of the past reads.
//   for (const SequenceRows& s : batch.sequences) for (t in s.begin .. s.begin + s.count) position = s.start + (t -
//   s.begin);
#pragma once

#include <cstdint>
#include <span>

namespace nib {

// The rows [begin, begin + count) of a step are the tokens at positions start, start+1, ... of one sequence.
struct SequenceRows {
  int64_t begin = 0;  // first row
  int64_t count = 0;  // rows, >= 1
  int64_t start = 0;  // absolute position of the first row: so many tokens of the sequence are in the cache
};

}  // namespace nib
