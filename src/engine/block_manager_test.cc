#include "engine/block_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>

namespace convene::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kTokensOfBlock = device::kKvBlockTokens;

// `num_blocks` blocks' worth of tokens, different for each `first`.
std::vector<int32_t> Tokens(int num_blocks, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(num_blocks) * kTokensOfBlock);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Allocates and publishes blocks for `tokens` as a sequence does that shares nothing.
std::vector<int32_t> Fill(BlockManager& manager, std::span<const int32_t> tokens) {
  std::vector<int32_t> blocks;
  for (; tokens.size() >= kTokensOfBlock; tokens = tokens.subspan(kTokensOfBlock)) {
    blocks.push_back(*manager.Allocate());
    manager.Publish(blocks, blocks.size() - 1, tokens.first(kTokensOfBlock));
  }
  return blocks;
}

TEST(BlockManager, GivesEachBlockOnce) {
  BlockManager manager(3);
  EXPECT_EQ(manager.num_available(), 3);
  std::set<int32_t> blocks;
  for (int i = 0; i < 3; ++i) blocks.insert(*manager.Allocate());
  EXPECT_THAT(blocks, ElementsAre(0, 1, 2));
  EXPECT_EQ(manager.num_available(), 0);
  EXPECT_FALSE(manager.Allocate());
  manager.Release(std::vector<int32_t>{1});
  EXPECT_EQ(manager.Allocate(), 1);
}

TEST(BlockManager, FindsPublishedBlocksOfTheSamePrefix) {
  BlockManager manager(8);
  const std::vector<int32_t> tokens = Tokens(3);
  const std::vector<int32_t> blocks = Fill(manager, tokens);
  manager.Release(blocks);
  EXPECT_EQ(manager.num_available(), 8);

  EXPECT_EQ(manager.TakePrefix(tokens), blocks);
  EXPECT_EQ(manager.num_available(), 5);
  // A whole block must agree: one token less, or another one, and it is not taken.
  EXPECT_EQ(manager.TakePrefix(std::span(tokens).first(2 * kTokensOfBlock + 63)).size(), 2u);
  std::vector<int32_t> changed = tokens;
  changed[kTokensOfBlock + 5] = -1;
  EXPECT_THAT(manager.TakePrefix(changed), ElementsAre(blocks[0]));
  changed[0] = -1;
  EXPECT_THAT(manager.TakePrefix(changed), IsEmpty());
}

TEST(BlockManager, SameTokensAfterAnotherBeginningAreAnotherBlock) {
  BlockManager manager(8);
  std::vector<int32_t> tokens = Tokens(2);
  Fill(manager, tokens);
  tokens[3] = 999;
  const std::vector<int32_t> other = Fill(manager, tokens);
  EXPECT_EQ(manager.TakePrefix(tokens), other);
}

TEST(BlockManager, UnusedBlocksAreTakenLongestUnusedFirstAndFromTheEnd) {
  BlockManager manager(4);
  const std::vector<int32_t> first = Tokens(2);
  const std::vector<int32_t> second = Tokens(2, 1000);
  const std::vector<int32_t> first_blocks = Fill(manager, first);
  const std::vector<int32_t> second_blocks = Fill(manager, second);
  manager.Release(first_blocks);
  manager.Release(second_blocks);
  EXPECT_EQ(manager.Allocate(), first_blocks[1]);
  EXPECT_THAT(manager.TakePrefix(first), ElementsAre(first_blocks[0]));  // held again
  EXPECT_EQ(manager.Allocate(), second_blocks[1]);
  EXPECT_EQ(manager.Allocate(), second_blocks[0]);
  EXPECT_FALSE(manager.Allocate());
  EXPECT_THAT(manager.TakePrefix(second), IsEmpty());
}

TEST(BlockManager, PrefersUnpublishedBlocks) {
  BlockManager manager(2);
  const std::vector<int32_t> tokens = Tokens(1);
  const std::vector<int32_t> kept = Fill(manager, tokens);
  const int32_t scratch = *manager.Allocate();
  manager.Release(kept);
  manager.Release(std::vector<int32_t>{scratch});
  EXPECT_EQ(manager.Allocate(), scratch);
  EXPECT_EQ(manager.TakePrefix(tokens), kept);
}

TEST(BlockManager, SequencesThatComputedTheSameTogetherShareWhatFollows) {
  BlockManager manager(8);
  const std::vector<int32_t> tokens = Tokens(2);
  const std::vector<int32_t> named = Fill(manager, std::span(tokens).first(kTokensOfBlock));
  // The other one computed the first block too, then a second one that continues it.
  std::vector<int32_t> twin = Fill(manager, tokens);
  EXPECT_NE(twin[0], named[0]);
  EXPECT_THAT(manager.TakePrefix(tokens), ElementsAre(named[0], twin[1]));
  manager.Release(twin);
  manager.Release(named);
  manager.Release(std::vector<int32_t>{named[0], twin[1]});
  EXPECT_EQ(manager.num_available(), 8);
}

TEST(BlockManager, EvictedContentsAreNotFoundThroughTheirSuccessors) {
  BlockManager manager(3);
  const std::vector<int32_t> tokens = Tokens(2);
  const std::vector<int32_t> named = Fill(manager, std::span(tokens).first(kTokensOfBlock));
  const std::vector<int32_t> twin = Fill(manager, tokens);
  manager.Release(named);
  EXPECT_EQ(manager.Allocate(), named[0]);  // evicts what twin[1] continues by name
  EXPECT_THAT(manager.TakePrefix(tokens), IsEmpty());
  manager.Release(twin);
  EXPECT_EQ(manager.num_available(), 2);
}

// Random use against a model that remembers every block's contents.
TEST(BlockManager, NeverGivesWrongContentsNorLosesBlocks) {
  constexpr int kNumBlocks = 12;
  std::mt19937 random(3);
  BlockManager manager(kNumBlocks);
  struct Held {
    std::vector<int32_t> tokens;
    std::vector<int32_t> blocks;
  };
  std::vector<Held> sequences;
  std::map<int32_t, std::vector<int32_t>> contents;  // of each block: the whole prefix it ends
  int num_reused = 0;
  for (int round = 0; round < 20000; ++round) {
    if (!sequences.empty() && random() % 3 == 0) {
      const size_t which = random() % sequences.size();
      manager.Release(sequences[which].blocks);
      sequences.erase(sequences.begin() + static_cast<std::ptrdiff_t>(which));
      continue;
    }
    Held held;
    for (unsigned i = 0, count = 1 + random() % 4; i < count; ++i) {
      held.tokens.insert(held.tokens.end(), kTokensOfBlock, static_cast<int32_t>(random() % 3));
    }
    held.blocks = manager.TakePrefix(held.tokens);
    num_reused += static_cast<int>(held.blocks.size());
    for (size_t i = 0; i < held.blocks.size(); ++i) {
      const auto end = held.tokens.begin() + static_cast<std::ptrdiff_t>((i + 1) * kTokensOfBlock);
      ASSERT_EQ(contents[held.blocks[i]], std::vector<int32_t>(held.tokens.begin(), end));
    }
    while (held.blocks.size() * kTokensOfBlock < held.tokens.size()) {
      const auto block = manager.Allocate();
      if (!block) break;
      for (const Held& other : sequences) {
        ASSERT_EQ(std::count(other.blocks.begin(), other.blocks.end(), *block), 0);
      }
      held.blocks.push_back(*block);
      const size_t begin = (held.blocks.size() - 1) * kTokensOfBlock;
      contents[*block].assign(
          held.tokens.begin(),
          held.tokens.begin() + static_cast<std::ptrdiff_t>(begin + kTokensOfBlock));
      manager.Publish(held.blocks, held.blocks.size() - 1,
                      std::span(held.tokens).subspan(begin, kTokensOfBlock));
    }
    sequences.push_back(std::move(held));
  }
  EXPECT_GT(num_reused, 1000);
  for (const Held& held : sequences) manager.Release(held.blocks);
  EXPECT_EQ(manager.num_available(), kNumBlocks);
}

TEST(BlockManagerDeathTest, ReleasingTwiceIsABug) {
  BlockManager manager(2);
  const std::vector<int32_t> blocks = {*manager.Allocate()};
  manager.Release(blocks);
  EXPECT_DEATH(manager.Release(blocks), testing::HasSubstr("released by nobody"));
}

}  // namespace
}  // namespace convene::engine
