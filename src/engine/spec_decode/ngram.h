// Drafts by copying: what followed the last tokens of a sequence when they occurred in it before.
//   CopyDrafter drafter(3, 24);
//   drafter.append(token);                  // every token of the prompt and of the output, in order
//   drafter.propose(15);                    // the continuation of the longest match; empty if there is none
// Match lengths are tried in at most four steps from max_match down to min_match. The longest one that has occurred
// wins, and of its occurrences the most recent. Belongs to one sequence and to the engine thread. An appended token
// costs one look-up for each length (amortised), whatever the length of the context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nib {

// The latest end of every n-gram of a fixed length.
class NgramIndex {
 public:
  explicit NgramIndex(int64_t length);

  int64_t length() const { return length_; }
  int64_t bytes() const { return static_cast<int64_t>(slots_.capacity() * sizeof(Slot)); }
  // Enters the n-gram that ends at the last of `tokens`; returns where it ended before, or -1. Call after every token.
  int64_t exchange(const std::vector<int32_t>& tokens);

 private:
  struct Slot {
    uint32_t hash = 0;
    int32_t end = -1;  // -1: empty
  };

  uint32_t roll(const std::vector<int32_t>& tokens);  // hash of the last n-gram
  Slot& find(const std::vector<int32_t>& tokens, uint32_t hash);
  size_t home(uint32_t hash) const { return hash & (slots_.size() - 1); }
  void grow();

  const int64_t length_;
  uint64_t rolling_ = 0;
  uint64_t leaving_factor_ = 1;  // of the token that leaves the window
  std::vector<Slot> slots_;      // a power of two, linear probing
  int64_t num_used_ = 0;
};

class CopyDrafter {
 public:
  // What bytes() stays below for each token, for four lengths, beyond a constant.
  static constexpr int64_t kMaxBytesPerToken = 96;

  // REQUIRES 1 <= min_match <= max_match.
  CopyDrafter(int64_t min_match, int64_t max_match);

  void append(int32_t token);
  int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }
  // Tokens that agree before the proposal, counted up to max_match; 0: no match, nothing to propose.
  int64_t match_length() const;
  // What followed the match. It may run into itself: "a b a b" goes on with "a b a b ...".
  std::vector<int32_t> propose(int64_t max_tokens) const;
  int64_t bytes() const;

 private:
  const int64_t max_match_;
  std::vector<NgramIndex> indices_;  // the longest first
  std::vector<int32_t> tokens_;
  int64_t match_end_ = -1;  // last position of the earlier occurrence
};

}  // namespace nib
