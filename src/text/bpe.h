// Byte-pair merging of one piece of text: of all neighbours that merge, the lowest rank first, then the leftmost.
//   Result<Bpe> bpe = Bpe::make(vocabulary);
//   bpe->merge(piece, scratch, ids);    // appends
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace nib {

// From a pair of ids to the merge, open addressing: the lookup is what merging spends its time on.
class MergeTable {
 public:
  struct Entry {
    uint64_t pair;
    uint32_t rank;
    TokenId merged;
  };
  explicit MergeTable(size_t capacity);
  void insert(const Merge& merge);  // of two merges of one pair the lower rank stays
  const Entry* find(TokenId left, TokenId right) const;

 private:
  Entry* slot(uint64_t pair);
  std::vector<Entry> entries_;
  size_t mask_;
};

// Immutable after make, so any thread may use it with a scratch of its own.
class Bpe {
 public:
  // What merging needs besides the tables; reused from piece to piece.
  struct Node {
    TokenId id;
    int32_t previous, next;  // -1 at the ends
    uint32_t rank;           // of the merge with the next node
    TokenId merged;
  };
  struct Scratch {
    std::vector<Node> nodes;
    std::vector<uint64_t> heap;  // rank << 32 | node
  };

  // Refuses a vocabulary in which one of the 256 bytes has no token. Special tokens take no part.
  static Result<Bpe> make(const Vocabulary& vocabulary);

  // O(n log n) for n bytes. REQUIRES: piece.size() < 2^31
  void merge(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const;

 private:
  explicit Bpe(size_t num_merges) : merges_(num_merges) {}
  void rate(Scratch& scratch, int32_t node) const;
  void join(Scratch& scratch, int32_t node) const;

  std::array<TokenId, 256> byte_ids_;
  MergeTable merges_;
};

}  // namespace nib
