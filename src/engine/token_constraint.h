// Which tokens may come next in one sequence: what a grammar, or anything like it, tells the sampler.
//   constraint->fill_mask(words);              // bit id % 32 of words[id / 32]: 1 may come next
//   if (!constraint->accept(token)) ...        // the token may not come next; nothing has changed
//   constraint->rewind(1);                     // takes the last accepted token back
#pragma once

#include <cstdint>
#include <span>

#include "compute/tensor/view.h"

namespace nib {

// Owned by one Sequence, used by the engine thread.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  virtual void fill_mask(std::span<uint32_t> words) const = 0;  // writes all bits
  virtual bool accept(int32_t token) = 0;
  virtual void rewind(int64_t num_tokens) = 0;  // REQUIRES: that many were accepted
};

inline int64_t mask_words(int64_t vocab_size) { return (vocab_size + 31) / 32; }

inline bool is_allowed(std::span<const uint32_t> words, int32_t id) { return words[id / 32] >> (id % 32) & 1; }

// The masks of the rows that verify `drafts`: row j follows drafts[0 .. j-1]. Stops at the row whose mask excludes its
// draft, since later rows cannot count, and leaves the constraint as it was. masks: [at least drafts.size() + 1,
// words]. Returns the number of rows written: at least 1, and drafts.size() + 1 if all drafts are legal.
int64_t fill_masks(TokenConstraint& constraint, std::span<const int32_t> drafts, View<uint32_t, 2> masks);

}  // namespace nib
