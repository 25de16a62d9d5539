#include "text/bpe.h"

#include <gtest/gtest.h>

#include <random>

namespace nib {
namespace {

// All bytes, then `num_merged` tokens made of two random lower ones, preferably of a, b and c.
Vocabulary random_vocabulary(std::mt19937& random, int num_merged) {
  Vocabulary v;
  for (int byte = 0; byte < 256; ++byte) v.tokens.push_back(std::string(1, char(byte)));
  std::vector<TokenId> pool = {'a', 'b', 'c'};
  for (int i = 0; i < num_merged; ++i) {
    const TokenId left = pool[random() % pool.size()], right = pool[random() % pool.size()];
    const TokenId id = TokenId(v.tokens.size());
    v.tokens.push_back(v.tokens[left] + v.tokens[right]);
    v.merges.push_back({left, right, id, uint32_t(i)});
    pool.push_back(id);
  }
  return v;
}

// The definition, word for word: look at all pairs, merge the best, start again.
std::vector<TokenId> merge_slowly(const Vocabulary& v, std::string_view piece) {
  std::vector<TokenId> ids;
  for (char c : piece) ids.push_back(uint8_t(c));
  for (;;) {
    const Merge* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i)
      for (const Merge& m : v.merges)
        if (m.left == ids[i] && m.right == ids[i + 1] && (best == nullptr || m.rank < best->rank)) best = &m, at = i;
    if (best == nullptr) return ids;
    ids[at] = best->merged;
    ids.erase(ids.begin() + at + 1);
  }
}

std::vector<TokenId> merge(const Bpe& bpe, std::string_view piece) {
  Bpe::Scratch scratch;
  std::vector<TokenId> ids;
  bpe.merge(piece, scratch, ids);
  return ids;
}

TEST(Bpe, MergesAsTheDefinitionSays) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const Vocabulary v = random_vocabulary(random, 1 + int(random() % 20));
    const Result<Bpe> bpe = Bpe::make(v);
    std::string piece(random() % 40, 0);
    for (char& c : piece) c = char('a' + random() % 4);
    EXPECT_EQ(merge(*bpe, piece), merge_slowly(v, piece)) << piece;
  }
}

TEST(Bpe, AMegabyteOfOneLetterTakesNoTime) {
  Vocabulary v;
  for (int byte = 0; byte < 256; ++byte) v.tokens.push_back(std::string(1, char(byte)));
  for (uint32_t rank = 0; rank < 10; ++rank) {  // 2, 4, 8, ... 1024 letters
    const TokenId half = rank == 0 ? 'a' : TokenId(v.tokens.size()) - 1;
    v.merges.push_back({half, half, TokenId(v.tokens.size()), rank});
    v.tokens.push_back(v.tokens[half] + v.tokens[half]);
  }
  EXPECT_EQ(merge(*Bpe::make(v), std::string(1 << 20, 'a')), std::vector<TokenId>(1024, 265));
}

TEST(Bpe, EveryByteNeedsAToken) {
  Vocabulary v;
  for (int byte = 0; byte < 255; ++byte) v.tokens.push_back(std::string(1, char(byte)));
  EXPECT_EQ(Bpe::make(v).status().message(), "the vocabulary has no token for the byte 0xFF");
}

TEST(Bpe, SpecialTokensTakeNoPart) {
  Vocabulary v;
  for (int byte = 0; byte < 256; ++byte) v.tokens.push_back(std::string(1, char(byte)));
  v.tokens.push_back("ab");
  v.merges = {{'a', 'b', 256, 0}};
  EXPECT_EQ(merge(*Bpe::make(v), "ab"), std::vector<TokenId>({256}));
  v.added = {{256, "ab"}};
  EXPECT_EQ(merge(*Bpe::make(v), "ab"), std::vector<TokenId>({'a', 'b'}));
}

}  // namespace
}  // namespace nib
