#include "engine/scheduler_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <vector>

namespace convene::engine {
namespace {

TEST(Scheduler, CutsAPromptIntoChunksAndThenGeneratesOneByOne) {
  BlockManager blocks(8);
  Scheduler scheduler(blocks, {.max_step_tokens = 100, .max_sequences = 2});
  const auto sequence = MakeSequence(250);
  scheduler.Add(sequence.get());
  std::vector<int> counts;
  for (int i = 0; i < 5; ++i) {
    const auto step = scheduler.Schedule();
    ASSERT_EQ(step.size(), 1u);
    counts.push_back(step[0].num_tokens);
    Advance(scheduler, step);
  }
  EXPECT_THAT(counts, ::testing::ElementsAre(100, 100, 50, 1, 1));
  EXPECT_EQ(sequence->length(), 253);
  scheduler.Remove(sequence.get());
  EXPECT_TRUE(scheduler.Schedule().empty());
  EXPECT_EQ(blocks.num_available(), 8);
}

TEST(Scheduler, PaddingIsComputedInThePlaceOfTheLastTokenAndHasBlocks) {
  BlockManager blocks(8);
  Scheduler scheduler(blocks, {.max_step_tokens = 60, .max_sequences = 2});
  const auto sequence = MakeSequence(50, 100);
  sequence->padded = sequence->tokens;
  sequence->padded.resize(2 * kBlock - 2, -1);  // with the last token, one short of two blocks
  const int32_t last = sequence->tokens.back();
  sequence->padded[49] = -1;
  scheduler.Add(sequence.get());
  std::vector<int> positions;
  std::vector<int> counts;
  std::vector<bool> ends;
  for (int i = 0; i < 6; ++i) {
    const auto step = scheduler.Schedule();
    ASSERT_EQ(step.size(), 1u);
    positions.push_back(sequence->next_position());
    counts.push_back(step[0].num_tokens);
    ends.push_back(step[0].reach_end());
    if (i == 0) {
      EXPECT_EQ(sequence->pending()[48], 148);
    }
    if (i < 3) {
      EXPECT_EQ(sequence->pending()[static_cast<size_t>(step[0].num_tokens) - 1], -1);
    }
    if (i == 3) {
      EXPECT_EQ(sequence->pending().front(), last);
    }
    Advance(scheduler, step);
  }
  EXPECT_THAT(positions, ::testing::ElementsAre(0, 60, 120, 49, 50, 51));
  EXPECT_THAT(counts, ::testing::ElementsAre(60, 60, 6, 1, 1, 1));
  EXPECT_THAT(ends, ::testing::ElementsAre(false, false, false, true, true, true));
  // A padded sequence of 127 tokens has its third block with the second generated one.
  EXPECT_EQ(sequence->padded_length(), 2 * kBlock + 2);
  EXPECT_EQ(sequence->blocks.size(), 3u);
  EXPECT_EQ(sequence->num_published, 0);
  scheduler.Remove(sequence.get());
  EXPECT_EQ(blocks.num_available(), 8);
}

TEST(Scheduler, GeneratingSequencesComeBeforePrompts) {
  BlockManager blocks(32);
  Scheduler scheduler(blocks, {.max_step_tokens = 10, .max_sequences = 3});
  const auto first = MakeSequence(5);
  const auto second = MakeSequence(50, 1000);
  scheduler.Add(first.get());
  scheduler.Add(second.get());
  auto step = scheduler.Schedule();
  ASSERT_EQ(step.size(), 2u);
  EXPECT_EQ(step[1].num_tokens, 5);  // what the first left of the budget
  Advance(scheduler, step);
  step = scheduler.Schedule();
  ASSERT_EQ(step.size(), 2u);
  EXPECT_EQ(step[0].num_tokens, 1);
  EXPECT_EQ(step[1].num_tokens, 9);
}

std::vector<int> CountsOf(const std::vector<ScheduledTokens>& step,
                          const std::vector<std::unique_ptr<Sequence>>& sequences) {
  std::vector<int> counts(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (const ScheduledTokens& scheduled : step) {
      if (scheduled.sequence == sequences[i].get()) counts[i] = scheduled.num_tokens;
    }
  }
  return counts;
}

TEST(Scheduler, AShortPromptIsReadBesideALongOne) {
  BlockManager blocks(64);
  Scheduler scheduler(blocks, {.max_step_tokens = 100, .max_sequences = 8});
  std::vector<std::unique_ptr<Sequence>> sequences;
  const auto add = [&](int length) {
    sequences.push_back(MakeSequence(length, static_cast<int32_t>(1000 * sequences.size())));
    scheduler.Add(sequences.back().get());
  };
  const auto next = [&] {
    const auto step = scheduler.Schedule();
    const std::vector<int> counts = CountsOf(step, sequences);
    Advance(scheduler, step);
    return counts;
  };
  add(1000);
  EXPECT_THAT(next(), ::testing::ElementsAre(100));
  add(900);  // waits for the one before
  add(30);
  add(60);  // is no short one, in steps of 100
  add(20);
  add(10);
  EXPECT_THAT(next(), ::testing::ElementsAre(50, 0, 30, 0, 20, 0));
  EXPECT_THAT(next(), ::testing::ElementsAre(88, 0, 1, 0, 1, 10));
  EXPECT_THAT(next(), ::testing::ElementsAre(97, 0, 1, 0, 1, 1));
  // The oldest is never left out, and then it is the turn of who has waited longest.
  int num_steps = 4;
  for (; sequences[0]->length() == 1000; ++num_steps) {
    add(30);
    EXPECT_GE(next()[0], std::min(45, 1000 - sequences[0]->num_computed));
  }
  EXPECT_LT(num_steps, 20);
  EXPECT_GT(next()[1], 0);  // a place was left for it
}

TEST(Scheduler, APromptWhoseBeginningIsBeingReadWaitsForIt) {
  BlockManager blocks(64);
  Scheduler scheduler(blocks, {.max_step_tokens = 2 * kBlock, .max_sequences = 4});
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int i = 0; i < 2; ++i) {
    sequences.push_back(MakeSequence(8 * kBlock + i));
    scheduler.Add(sequences.back().get());
  }
  for (int i = 0; i < 4; ++i) {
    const auto step = scheduler.Schedule();
    EXPECT_THAT(CountsOf(step, sequences), ::testing::ElementsAre(2 * kBlock, 0));
    Advance(scheduler, step);
  }
  EXPECT_THAT(CountsOf(scheduler.Schedule(), sequences), ::testing::ElementsAre(1, 1));
}

TEST(Scheduler, RunsNoMoreSequencesThanAllowed) {
  BlockManager blocks(32);
  Scheduler scheduler(blocks, {.max_step_tokens = 512, .max_sequences = 2});
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int i = 0; i < 5; ++i) {
    sequences.push_back(MakeSequence(10, i * 100));
    scheduler.Add(sequences.back().get());
  }
  const auto step = scheduler.Schedule();
  ASSERT_EQ(step.size(), 2u);
  EXPECT_EQ(step[0].sequence, sequences[0].get());
  Advance(scheduler, step);
  scheduler.Remove(sequences[0].get());
  EXPECT_EQ(scheduler.Schedule()[1].sequence, sequences[2].get());
}

TEST(Scheduler, ReusesFullBlocksButAlwaysComputesTheLastToken) {
  BlockManager blocks(16);
  Scheduler scheduler(blocks, {.max_step_tokens = 512, .max_sequences = 2});
  const auto first = MakeSequence(3 * kBlock);
  scheduler.Add(first.get());
  Advance(scheduler, scheduler.Schedule());
  scheduler.Remove(first.get());

  const auto same = MakeSequence(3 * kBlock);
  scheduler.Add(same.get());
  auto step = scheduler.Schedule();
  EXPECT_EQ(step[0].num_tokens, kBlock);
  Advance(scheduler, step);

  const auto longer = MakeSequence(3 * kBlock + 1);
  scheduler.Add(longer.get());
  step = scheduler.Schedule();
  ASSERT_EQ(step.size(), 2u);
  EXPECT_EQ(step[1].num_tokens, 1);
  EXPECT_EQ(longer->num_computed, 3 * kBlock);
  EXPECT_EQ(longer->blocks[0], same->blocks[0]);
  EXPECT_EQ(scheduler.num_reused_tokens(), 5 * kBlock);
}

TEST(Scheduler, SharesABlockOnlyAfterTheStepThatWroteIt) {
  BlockManager blocks(16);
  Scheduler scheduler(blocks, {.max_step_tokens = 512, .max_sequences = 4});
  const auto first = MakeSequence(2 * kBlock);
  const auto together = MakeSequence(2 * kBlock);
  scheduler.Add(first.get());
  scheduler.Add(together.get());
  // Of the same step: each computes its own.
  const auto step = scheduler.Schedule();
  ASSERT_EQ(step.size(), 2u);
  EXPECT_EQ(step[1].num_tokens, 2 * kBlock);
  EXPECT_EQ(scheduler.num_reused_tokens(), 0);
  // The step has failed: it is not completed, and nobody finds what it wrote.
  scheduler.Remove(first.get());
  scheduler.Remove(together.get());
  const auto later = MakeSequence(2 * kBlock);
  scheduler.Add(later.get());
  EXPECT_EQ(scheduler.Schedule()[0].num_tokens, 2 * kBlock);
  EXPECT_EQ(scheduler.num_reused_tokens(), 0);
}

TEST(Scheduler, PublishesGeneratedTokensToo) {
  BlockManager blocks(16);
  Scheduler scheduler(blocks, {.max_step_tokens = 512, .max_sequences = 2});
  const auto first = MakeSequence(kBlock - 2);
  scheduler.Add(first.get());
  for (int i = 0; i < 4; ++i) Advance(scheduler, scheduler.Schedule(), 5000 + i);
  // kBlock - 2 + 4 tokens, of which the last is not computed yet.
  const std::vector<int32_t> tokens = first->tokens;
  scheduler.Remove(first.get());

  auto next_turn = std::make_unique<Sequence>();
  next_turn->tokens = tokens;
  next_turn->prompt_length = next_turn->length();
  scheduler.Add(next_turn.get());
  EXPECT_EQ(scheduler.Schedule()[0].num_tokens, 2);
}

TEST(Scheduler, SharesNothingBeyondTheSharingLimit) {
  BlockManager blocks(16);
  Scheduler scheduler(blocks, {.max_step_tokens = 512, .max_sequences = 2});
  const auto run = [&](int sharing_limit) {
    const auto sequence = MakeSequence(4 * kBlock);
    sequence->sharing_limit = sharing_limit;
    scheduler.Add(sequence.get());
    const auto step = scheduler.Schedule();
    Advance(scheduler, step);
    scheduler.Remove(sequence.get());
    return step[0].num_tokens;
  };
  EXPECT_EQ(run(2 * kBlock + 1), 4 * kBlock);
  EXPECT_EQ(run(4 * kBlock), 2 * kBlock);  // two blocks were published
  EXPECT_EQ(run(0), 4 * kBlock);           // takes none of them
}

TEST(Scheduler, PreemptsTheYoungestWhenBlocksRunOut) {
  BlockManager blocks(4);
  Scheduler scheduler(blocks, {.max_step_tokens = 512, .max_sequences = 2});
  const auto old = MakeSequence(kBlock);
  const auto young = MakeSequence(kBlock - 1, 1000);
  scheduler.Add(old.get());
  scheduler.Add(young.get());
  Advance(scheduler, scheduler.Schedule());
  while (scheduler.num_preemptions() == 0) {
    const auto step = scheduler.Schedule();
    ASSERT_FALSE(step.empty());
    ASSERT_LE(old->length(), 4 * kBlock);
    Advance(scheduler, step);
  }
  EXPECT_GE(old->length(), 2 * kBlock);
  EXPECT_TRUE(young->blocks.empty());
  EXPECT_EQ(young->num_computed, 0);
  EXPECT_GT(young->num_pending(), kBlock);
  scheduler.Remove(old.get());
  const auto step = scheduler.Schedule();  // computed again, as far as it is not still known
  ASSERT_EQ(step.size(), 1u);
  EXPECT_EQ(step[0].sequence, young.get());
}

// Random loads on a cache that is far too small: all finish, nothing leaks, every step is legal.
TEST(Scheduler, FinishesEverythingThatFitsAlone) {
  std::mt19937 random(11);
  int64_t num_preemptions = 0;
  int64_t num_reused_tokens = 0;
  for (int round = 0; round < 60; ++round) {
    const int num_blocks = 1 + static_cast<int>(random() % 8);
    const int max_sequences = 1 + static_cast<int>(random() % 6);
    const int max_step_tokens = max_sequences + static_cast<int>(random() % 200);
    BlockManager blocks(num_blocks);
    Scheduler scheduler(blocks, {max_step_tokens, max_sequences});
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::map<const Sequence*, int> final_length;
    for (int i = 0; i < 20; ++i) {
      const int longest = num_blocks * kBlock;
      const int prompt_length = 1 + static_cast<int>(random() % (longest - 1));
      sequences.push_back(MakeSequence(prompt_length, static_cast<int32_t>(random() % 2)));
      final_length[sequences.back().get()] =
          std::min(longest, prompt_length + 1 + static_cast<int>(random() % 150));
      if (round % 2 == 1) sequences.back()->priority = i % 3;
      scheduler.Add(sequences.back().get());
    }
    int num_steps = 0;
    while (scheduler.num_sequences() > 0) {
      ASSERT_LT(++num_steps, 200000);
      const auto step = scheduler.Schedule();
      int num_tokens = 0;
      for (const ScheduledTokens& scheduled : step) {
        const Sequence& sequence = *scheduled.sequence;
        ASSERT_GE(scheduled.num_tokens, 1);
        ASSERT_LE(scheduled.num_tokens, sequence.num_pending());
        ASSERT_GE(std::ssize(sequence.blocks) * kBlock,
                  sequence.num_computed + scheduled.num_tokens);
        num_tokens += scheduled.num_tokens;
      }
      ASSERT_LE(num_tokens, max_step_tokens);
      ASSERT_LE(std::ssize(step), max_sequences);
      scheduler.Complete(step);
      for (const ScheduledTokens& scheduled : step) {
        Sequence* sequence = scheduled.sequence;
        if (sequence->num_pending() > 0) continue;
        sequence->tokens.push_back(static_cast<int32_t>(random() % 3));
        if (sequence->length() >= final_length[sequence]) scheduler.Remove(sequence);
      }
    }
    EXPECT_EQ(blocks.num_available(), num_blocks);
    num_preemptions += scheduler.num_preemptions();
    num_reused_tokens += scheduler.num_reused_tokens();
  }
  EXPECT_GT(num_preemptions, 20);
  EXPECT_GT(num_reused_tokens, 1000);
}

// `count` groups of `num_blocks` each.
std::vector<BlockManager> Groups(int count, int num_blocks) {
  std::vector<BlockManager> groups;
  for (int i = 0; i < count; ++i) groups.emplace_back(num_blocks);
  return groups;
}

TEST(SchedulerOfGroups, GivesEachGroupItsOwnBudget) {
  std::vector<BlockManager> blocks = Groups(2, 16);
  Scheduler scheduler(blocks, {.max_step_tokens = 100, .max_sequences = 2});
  const auto first = MakeSequence(150);
  const auto second = MakeSequence(150, 1000);
  const auto third = MakeSequence(10, 2000);
  for (const auto& sequence : {&first, &second, &third}) scheduler.Add(sequence->get());
  auto step = scheduler.Schedule();
  ASSERT_EQ(step.size(), 2u);
  EXPECT_EQ(step[0].num_tokens, 100);
  EXPECT_EQ(step[1].num_tokens, 100);
  EXPECT_NE(first->group, second->group);
  EXPECT_EQ(blocks[0].num_available(), blocks[1].num_available());
  Advance(scheduler, step);
  scheduler.Remove(second.get());
  step = scheduler.Schedule();
  ASSERT_EQ(step.size(), 2u);
  EXPECT_EQ(step[1].sequence, third.get());  // in the place that is free again
  EXPECT_EQ(third->group, second->group);
}

TEST(SchedulerOfGroups, AdmitsWhereTheFewestTokensWait) {
  std::vector<BlockManager> blocks = Groups(3, 64);
  Scheduler scheduler(blocks, {.max_step_tokens = 512, .max_sequences = 8});
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (const int length : {300, 100, 150, 40, 40}) {
    sequences.push_back(MakeSequence(length, 1000 * static_cast<int32_t>(sequences.size())));
    scheduler.Add(sequences.back().get());
  }
  const auto step = scheduler.Schedule();
  ASSERT_EQ(step.size(), 5u);
  std::vector<int> groups;
  for (size_t i = 0; i < step.size(); ++i) {
    EXPECT_EQ(step[i].sequence, sequences[i].get());  // in order of arrival
    groups.push_back(sequences[i]->group);
  }
  EXPECT_THAT(groups, ::testing::ElementsAre(0, 1, 2, 1, 1));
}

TEST(SchedulerOfGroups, PrefersTheGroupThatHoldsThePrefixUntilOthersAreSooner) {
  std::vector<BlockManager> blocks = Groups(2, 64);
  Scheduler scheduler(blocks, {.max_step_tokens = 512, .max_sequences = 8});
  const auto busy = MakeSequence(20, 5000);  // so that the prefix is in the second group
  const auto first = MakeSequence(3 * kBlock);
  scheduler.Add(busy.get());
  scheduler.Add(first.get());
  Advance(scheduler, scheduler.Schedule());
  ASSERT_EQ(first->group, 1);
  scheduler.Remove(busy.get());
  const auto same_beginning = MakeSequence(3 * kBlock + 5);
  scheduler.Add(same_beginning.get());
  auto step = scheduler.Schedule();
  EXPECT_EQ(same_beginning->group, 1);
  EXPECT_EQ(scheduler.num_reused_tokens(), 3 * kBlock);
  Advance(scheduler, step);
  // As much waits there as would be saved.
  const auto busier = MakeSequence(400, 7000);
  scheduler.Add(busier.get());
  scheduler.Schedule();
  EXPECT_EQ(busier->group, 0);
  const auto busiest = MakeSequence(1000, 9000);
  scheduler.Add(busiest.get());
  scheduler.Schedule();
  ASSERT_EQ(busiest->group, 1);
  const auto latecomer = MakeSequence(3 * kBlock + 300);  // too long to be read beside it
  scheduler.Add(latecomer.get());
  scheduler.Remove(busier.get());
  scheduler.Schedule();
  EXPECT_EQ(latecomer->group, 0);
}

TEST(SchedulerOfGroups, RunsSoManySequencesInAllGroupsTogether) {
  for (const int max_sequences : {1, 2, 3, 5, 6}) {
    std::vector<BlockManager> blocks = Groups(2, 20);
    Scheduler scheduler(blocks, {.max_step_tokens = 512, .max_sequences = max_sequences});
    std::vector<std::unique_ptr<Sequence>> sequences;
    for (int i = 0; i < 9; ++i) {
      sequences.push_back(MakeSequence(3 + i, 1000 * i));
      scheduler.Add(sequences.back().get());
    }
    std::array<int, 2> of_group = {};
    const auto step = scheduler.Schedule();
    ASSERT_EQ(std::ssize(step), max_sequences);
    for (const auto& [sequence, count] : step) ++of_group.at(static_cast<size_t>(sequence->group));
    EXPECT_LE(std::abs(of_group[0] - of_group[1]), 1) << max_sequences;
    EXPECT_EQ(scheduler.num_waiting(), 9 - max_sequences);
  }
}

TEST(SchedulerOfGroups, GroupsGenerateInStepsOfFewerTokensThanThereAreSequences) {
  std::vector<BlockManager> blocks = Groups(2, 20);
  Scheduler scheduler(blocks, {.max_step_tokens = 3, .max_sequences = 6});
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int i = 0; i < 6; ++i) {
    sequences.push_back(MakeSequence(5, 1000 * i));
    scheduler.Add(sequences.back().get());
  }
  size_t most_together = 0;
  for (int steps = 0; steps < 20; ++steps) {
    const auto step = scheduler.Schedule();
    std::array<int, 2> of_group = {};
    for (const auto& [sequence, count] : step) {
      of_group.at(static_cast<size_t>(sequence->group)) += count;
    }
    EXPECT_LE(std::ranges::max(of_group), 3);
    most_together = std::max(most_together, step.size());
    Advance(scheduler, step);
  }
  EXPECT_EQ(most_together, 6u) << "all of them generate in one step";
}

TEST(SchedulerOfGroups, PreemptsWithinTheGroup) {
  std::vector<BlockManager> blocks = Groups(2, 4);
  Scheduler scheduler(blocks, {.max_step_tokens = 512, .max_sequences = 3});
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int i = 0; i < 3; ++i) {
    sequences.push_back(MakeSequence(kBlock, 1000 * i));
    scheduler.Add(sequences.back().get());
  }
  auto step = scheduler.Schedule();
  ASSERT_EQ(step.size(), 3u);
  ASSERT_EQ(sequences[2]->group, 0);
  // The first group's two grow until its four blocks are not enough.
  while (scheduler.num_preemptions() == 0) {
    Advance(scheduler, step);
    step = scheduler.Schedule();
    ASSERT_LT(sequences[0]->length(), 4 * kBlock);
  }
  EXPECT_FALSE(sequences[0]->blocks.empty());
  EXPECT_FALSE(sequences[1]->blocks.empty());
  EXPECT_TRUE(sequences[2]->blocks.empty());
}

TEST(SchedulerOfGroups, FinishesEverythingThatFitsAlone) {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    const int num_groups = 1 + static_cast<int>(random() % 4);
    std::vector<BlockManager> blocks = Groups(num_groups, 5);
    Scheduler scheduler(blocks, {.max_step_tokens = 70, .max_sequences = 3});
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::map<const Sequence*, int> lengths;
    for (int i = 0; i < 12; ++i) {
      const int prompt = 1 + static_cast<int>(random() % (3 * kBlock));
      sequences.push_back(MakeSequence(prompt, static_cast<int32_t>(random() % 3)));
      lengths[sequences.back().get()] = prompt + 1 + static_cast<int>(random() % (2 * kBlock - 1));
      scheduler.Add(sequences.back().get());
    }
    for (int steps = 0; scheduler.num_sequences() > 0; ++steps) {
      ASSERT_LT(steps, 10'000);
      const auto step = scheduler.Schedule();
      ASSERT_LE(std::ssize(step), 3);
      std::vector<int> num_tokens(static_cast<size_t>(num_groups));
      for (const auto& [sequence, count] : step) {
        const auto group = static_cast<size_t>(sequence->group);
        num_tokens[group] += count;
        ASSERT_LE(num_tokens[group], 70);
        ASSERT_GE(std::ssize(sequence->blocks) * kBlock, sequence->num_computed + count);
      }
      Advance(scheduler, step);
      for (const auto& sequence : sequences) {
        if (sequence->length() == lengths[sequence.get()]) {
          scheduler.Remove(sequence.get());
          lengths[sequence.get()] = -1;
        }
      }
    }
    for (const BlockManager& of_group : blocks) EXPECT_EQ(of_group.num_available(), 5);
  }
}

}  // namespace
}  // namespace convene::engine
