#include "engine/spec_decode/ngram.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "engine/noise.h"

namespace nib {

namespace {

constexpr int64_t kMaxLengths = 4;
constexpr size_t kFirstSlots = 64;
constexpr uint64_t kBase = 0x9e3779b97f4a7c15u;  // odd, so that no power of it is zero

// Every length if there are at most four, else four in equal ratios; the longest first.
std::vector<int64_t> match_lengths(int64_t least, int64_t most) {
  std::vector<int64_t> lengths;
  const int64_t count = std::min(kMaxLengths, most - least + 1);
  const double ratio = static_cast<double>(least) / static_cast<double>(most);
  for (int64_t i = 0; i < count; ++i) {
    const double step = std::pow(ratio, static_cast<double>(i) / static_cast<double>(kMaxLengths - 1));
    lengths.push_back(most - least < kMaxLengths ? most - i : std::llround(static_cast<double>(most) * step));
  }
  return lengths;
}

uint64_t term(int32_t token) { return mix64(static_cast<uint32_t>(token)); }

}  // namespace

NgramIndex::NgramIndex(int64_t length) : length_(length), slots_(kFirstSlots) {
  for (int64_t i = 0; i < length; ++i) leaving_factor_ *= kBase;
}

uint32_t NgramIndex::roll(const std::vector<int32_t>& tokens) {
  rolling_ = rolling_ * kBase + term(tokens.back());
  const int64_t leaving = static_cast<int64_t>(tokens.size()) - 1 - length_;
  if (leaving >= 0) rolling_ -= leaving_factor_ * term(tokens[leaving]);
  return static_cast<uint32_t>(mix64(rolling_) >> 32);
}

// The slot of the last n-gram, or the empty one where it belongs. Equal hashes are told apart by their tokens.
NgramIndex::Slot& NgramIndex::find(const std::vector<int32_t>& tokens, uint32_t hash) {
  for (size_t i = home(hash);; i = (i + 1) & (slots_.size() - 1)) {
    Slot& slot = slots_[i];
    if (slot.end < 0) return slot;
    if (slot.hash == hash && std::equal(tokens.end() - length_, tokens.end(), tokens.begin() + slot.end + 1 - length_))
      return slot;
  }
}

int64_t NgramIndex::exchange(const std::vector<int32_t>& tokens) {
  const uint32_t hash = roll(tokens);
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  if (num_tokens < length_) return -1;
  if (4 * num_used_ >= 3 * static_cast<int64_t>(slots_.size())) grow();
  Slot& slot = find(tokens, hash);
  const int64_t before = slot.end;
  num_used_ += before < 0;
  slot = {hash, static_cast<int32_t>(num_tokens - 1)};
  return before;
}

void NgramIndex::grow() {
  std::vector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.end < 0) continue;
    size_t i = home(slot.hash);
    while (slots_[i].end >= 0) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = slot;
  }
}

CopyDrafter::CopyDrafter(int64_t min_match, int64_t max_match) : max_match_(max_match) {
  NIB_CHECK(1 <= min_match && min_match <= max_match, "{} and {}", min_match, max_match);
  for (int64_t length : match_lengths(min_match, max_match)) indices_.emplace_back(length);
}

void CopyDrafter::append(int32_t token) {
  NIB_CHECK(num_tokens() < INT32_MAX, "positions are 32 bits wide");
  tokens_.push_back(token);
  match_end_ = -1;
  for (NgramIndex& index : indices_)
    if (const int64_t end = index.exchange(tokens_); match_end_ < 0) match_end_ = end;
}

int64_t CopyDrafter::match_length() const {
  if (match_end_ < 0) return 0;
  const int64_t last = num_tokens() - 1, most = std::min(max_match_, match_end_ + 1);
  int64_t length = 0;
  while (length < most && tokens_[match_end_ - length] == tokens_[last - length]) ++length;
  return length;
}

std::vector<int32_t> CopyDrafter::propose(int64_t max_tokens) const {
  std::vector<int32_t> out;
  if (match_end_ < 0) return out;
  const int64_t rest = num_tokens() - 1 - match_end_;  // tokens from behind the match to the end
  for (int64_t i = 0; i < max_tokens; ++i) out.push_back(i < rest ? tokens_[match_end_ + 1 + i] : out[i - rest]);
  return out;
}

int64_t CopyDrafter::bytes() const {
  int64_t bytes = static_cast<int64_t>(tokens_.capacity() * sizeof(int32_t));
  for (const NgramIndex& index : indices_) bytes += index.bytes();
  return bytes;
}

}  // namespace nib
