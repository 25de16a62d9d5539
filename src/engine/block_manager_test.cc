#include "engine/block_manager.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/block_table_rows.h"

namespace nib {
namespace {

using Kind = CacheSpec::Kind;

std::vector<CacheSpec> specs() {
  return {{Kind::kFull, {0}, 4, 0, 16, {16}}, {Kind::kWindow, {1}, 4, 6, 16, {16}}, {Kind::kConv, {0}, 3, 0, 16, {16}}};
}

BlockManager manager(std::vector<int64_t> pools) { return BlockManager(specs(), pools); }

std::vector<int64_t> free_of(const BlockManager& m) {
  return {m.pool(0).num_free(), m.pool(1).num_free(), m.pool(2).num_free()};
}

TEST(BlockPool, LendsEachBlockOnceAndTakesItBackWhenTheLastHolderReturnsIt) {
  BlockPool pool(3);
  const int32_t a = pool.take(), b = pool.take(), c = pool.take();
  EXPECT_EQ(std::set<int32_t>({a, b, c}), std::set<int32_t>({0, 1, 2}));
  EXPECT_EQ(pool.num_free(), 0);
  pool.share(b);
  pool.give_back(b);
  EXPECT_EQ(pool.num_free(), 0);
  pool.give_back(b);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.take(), b);
}

TEST(BlockPoolDeathTest, StopsAtABlockReturnedTwice) {
  BlockPool pool(2);
  const int32_t a = pool.take();
  pool.give_back(a);
  EXPECT_DEATH(pool.give_back(a), "is free");
  EXPECT_DEATH(pool.share(a), "is free");
}

TEST(BlockManager, GrowsByWholeBlocksOrNotAtAll) {
  BlockManager m = manager({3, 3, 1});
  SequenceCache a, b;
  EXPECT_TRUE(m.grow(a, 5));
  EXPECT_EQ(free_of(m), (std::vector<int64_t>{1, 1, 0}));
  EXPECT_TRUE(m.grow(a, 8));  // still in the second block
  EXPECT_EQ(free_of(m), (std::vector<int64_t>{1, 1, 0}));
  EXPECT_FALSE(m.grow(b, 1));  // no slot
  EXPECT_FALSE(m.grow(a, 13));
  EXPECT_EQ(free_of(m), (std::vector<int64_t>{1, 1, 0}));
  m.release(a);
  EXPECT_EQ(free_of(m), (std::vector<int64_t>{3, 3, 1}));
}

TEST(BlockManager, ReturnsWindowBlocksAsTheyFallOut) {
  // Window 6, blocks of 4: position p reads p-5 .. p.
  struct Case {
    int64_t next;
    int64_t gone;
  };
  for (const Case& c : {Case{0, 0}, {8, 0}, {9, 1}, {12, 1}, {13, 2}, {16, 2}}) {
    BlockManager m = manager({8, 8, 1});
    SequenceCache a;
    ASSERT_TRUE(m.grow(a, 16));
    m.trim(a, c.next);
    EXPECT_EQ(a.tables[1].num_gone, c.gone) << c.next;
    EXPECT_EQ(m.pool(1).num_free(), 4 + c.gone) << c.next;
    EXPECT_EQ(m.pool(0).num_free(), 4) << "full attention keeps all";
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(a.tables[1].blocks[i] == -1, i < c.gone) << c.next;
    m.release(a);
    EXPECT_EQ(free_of(m), (std::vector<int64_t>{8, 8, 1})) << c.next;
  }
}

TEST(BlockManager, ForkSharesWholeBlocksAndCopiesThePartialOneAndTheSlot) {
  for (const int64_t positions : {8, 9, 11}) {
    const bool partial = positions % 4 != 0;
    BlockManager m = manager({8, 8, 2});
    SequenceCache a, b;
    std::vector<BlockCopy> copies;
    ASSERT_TRUE(m.grow(a, positions));
    ASSERT_TRUE(m.fork(a, b, positions, copies));
    EXPECT_EQ(copies.size(), partial ? 3u : 1u) << positions;
    EXPECT_EQ(a.tables[0].blocks[1], b.tables[0].blocks[1]) << positions;
    EXPECT_EQ(a.tables[0].blocks.back() == b.tables[0].blocks.back(), !partial) << positions;
    EXPECT_NE(a.tables[2].blocks[0], b.tables[2].blocks[0]) << positions;
    EXPECT_NE(a.lease, b.lease);
    m.release(a);
    EXPECT_LT(m.pool(0).num_free(), 8) << "b still holds them";
    m.release(b);
    EXPECT_EQ(free_of(m), (std::vector<int64_t>{8, 8, 2})) << positions;
  }
}

TEST(BlockManager, ForkWithoutASlotOrABlockChangesNothing) {
  for (const std::vector<int64_t>& pools : {std::vector<int64_t>{8, 8, 1}, {2, 8, 2}, {8, 2, 2}}) {
    BlockManager m = manager(pools);
    SequenceCache a, b;
    std::vector<BlockCopy> copies;
    ASSERT_TRUE(m.grow(a, 7));
    const std::vector<int64_t> before = free_of(m);
    EXPECT_FALSE(m.fork(a, b, 7, copies));
    EXPECT_TRUE(copies.empty());
    EXPECT_EQ(free_of(m), before);
  }
}

TEST(BlockTableRows, FollowGrowthTrimmingAndANewOwner) {
  BlockManager m = manager({16, 16, 4});
  BlockTableRows rows(2, 8);
  SequenceCache a, b;
  ASSERT_TRUE(m.grow(a, 12) && m.grow(b, 4));
  const auto expect_row = [&](int64_t i, const SequenceCache& c) {
    rows.set(i, c.lease, c.tables[1]);
    for (size_t k = 0; k < c.tables[1].blocks.size(); ++k)
      EXPECT_EQ(rows.view(2)(i, k), c.tables[1].blocks[k]) << i << " " << k;
  };
  expect_row(0, a);
  expect_row(1, b);
  ASSERT_TRUE(m.grow(a, 20));
  m.trim(a, 15);
  expect_row(0, a);
  m.release(b);
  ASSERT_TRUE(m.grow(b, 9));  // the same sequence begins again with other blocks
  expect_row(1, b);
  expect_row(1, a);  // they change places
  expect_row(0, b);
}

}  // namespace
}  // namespace nib
