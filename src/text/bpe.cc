#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace nib {

namespace {

constexpr uint64_t kFree = ~uint64_t{0};
constexpr uint32_t kNoMerge = ~uint32_t{0};

uint64_t pair_of(TokenId left, TokenId right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }

// Spreads the pair's bits over the whole word (Fibonacci hashing, then folded).
size_t hash(uint64_t pair) {
  const uint64_t h = pair * 0x9E3779B97F4A7C15u;
  return h ^ h >> 32;
}

}  // namespace

MergeTable::MergeTable(size_t capacity)
    : entries_(std::bit_ceil(capacity * 2 + 2), Entry{kFree, 0, 0}), mask_(entries_.size() - 1) {}

MergeTable::Entry* MergeTable::slot(uint64_t pair) {
  size_t at = hash(pair) & mask_;
  while (entries_[at].pair != pair && entries_[at].pair != kFree) at = (at + 1) & mask_;
  return &entries_[at];
}

void MergeTable::insert(const Merge& merge) {
  Entry& entry = *slot(pair_of(merge.left, merge.right));
  if (entry.pair == kFree || merge.rank < entry.rank)
    entry = {pair_of(merge.left, merge.right), merge.rank, merge.merged};
}

const MergeTable::Entry* MergeTable::find(TokenId left, TokenId right) const {
  const Entry* entry = const_cast<MergeTable*>(this)->slot(pair_of(left, right));
  return entry->pair == kFree ? nullptr : entry;
}

Result<Bpe> Bpe::make(const Vocabulary& vocabulary) {
  std::vector<bool> special(vocabulary.tokens.size());
  for (const auto& [id, spelling] : vocabulary.added) special[id] = true;
  Bpe bpe(vocabulary.merges.size());
  bpe.byte_ids_.fill(-1);
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& token = vocabulary.tokens[id];
    if (token.size() == 1 && !special[id]) bpe.byte_ids_[uint8_t(token[0])] = TokenId(id);
  }
  for (int byte = 0; byte < 256; ++byte)
    if (bpe.byte_ids_[byte] < 0) return invalid("the vocabulary has no token for the byte 0x{:02X}", byte);
  for (const Merge& merge : vocabulary.merges)
    if (!special[merge.left] && !special[merge.right] && !special[merge.merged]) bpe.merges_.insert(merge);
  return bpe;
}

// Looks up the merge of a node with its right neighbour.
void Bpe::rate(Scratch& scratch, int32_t at) const {
  Node& node = scratch.nodes[at];
  node.rank = kNoMerge;
  if (node.next < 0) return;
  const MergeTable::Entry* entry = merges_.find(node.id, scratch.nodes[node.next].id);
  if (entry == nullptr) return;
  node.rank = entry->rank;
  node.merged = entry->merged;
  scratch.heap.push_back(uint64_t(node.rank) << 32 | uint32_t(at));
}

// Merges a node with its right neighbour, and rates the two pairs that are new.
void Bpe::join(Scratch& scratch, int32_t at) const {
  std::vector<Node>& nodes = scratch.nodes;
  Node& node = nodes[at];
  node.id = node.merged;
  nodes[node.next].rank = kNoMerge;
  node.next = nodes[node.next].next;
  if (node.next >= 0) nodes[node.next].previous = at;
  for (int32_t changed : {node.previous, at}) {
    if (changed < 0) continue;
    const size_t before = scratch.heap.size();
    rate(scratch, changed);
    if (scratch.heap.size() > before) std::push_heap(scratch.heap.begin(), scratch.heap.end(), std::greater<>());
  }
}

void Bpe::merge(std::string_view piece, Scratch& scratch, std::vector<TokenId>& ids) const {
  const int32_t n = int32_t(piece.size());
  std::vector<Node>& nodes = scratch.nodes;
  std::vector<uint64_t>& heap = scratch.heap;
  nodes.resize(n);
  heap.clear();
  for (int32_t i = 0; i < n; ++i) nodes[i] = {byte_ids_[uint8_t(piece[i])], i - 1, i + 1 < n ? i + 1 : -1, kNoMerge, 0};
  for (int32_t i = 0; i < n; ++i) rate(scratch, i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    const uint64_t best = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const int32_t at = int32_t(best & 0xFFFFFFFF);
    if (nodes[at].rank == best >> 32) join(scratch, at);  // else the pair is gone
  }
  for (int32_t i = 0; n > 0 && i >= 0; i = nodes[i].next) ids.push_back(nodes[i].id);
}

}  // namespace nib
