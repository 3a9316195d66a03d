// Who is more urgent takes blocks of who is less, and who may come in at all.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/scheduler_test.h"

namespace convene::engine {
namespace {

TEST(SchedulerOfPriorities, AnUrgentOneTakesTheBlocksOfTheLastThatIsLess) {
  BlockManager blocks(9);
  Scheduler scheduler(blocks, {.max_step_tokens = 1024, .max_sequences = 4});
  const auto first = MakeSequence(3 * kBlock);
  const auto second = MakeSequence(3 * kBlock, 1000);
  scheduler.Add(first.get());
  scheduler.Add(second.get());
  Advance(scheduler, scheduler.Schedule());
  EXPECT_EQ(blocks.num_available(), 3);
  const auto as_urgent = MakeSequence(2 * kBlock, 2000);
  scheduler.Add(as_urgent.get());
  auto step = scheduler.Schedule();
  EXPECT_EQ(step.size(), 2u);
  Advance(scheduler, step);
  const auto urgent = MakeSequence(2 * kBlock, 3000);
  urgent->priority = -1;
  scheduler.Add(urgent.get());
  step = scheduler.Schedule();
  EXPECT_EQ(scheduler.num_preemptions(), 1);
  EXPECT_TRUE(second->blocks.empty());
  ASSERT_EQ(step.size(), 2u);
  EXPECT_EQ(step[0].sequence, first.get());
  EXPECT_EQ(step[1].sequence, urgent.get());
  Advance(scheduler, step);
  // Those who wait go on in the order in which they came.
  scheduler.Remove(urgent.get());
  step = scheduler.Schedule();
  ASSERT_GE(step.size(), 2u);
  EXPECT_EQ(step[1].sequence, second.get());
}

TEST(SchedulerOfPriorities, TakesNoBlocksWhereTheyAreNotEnough) {
  BlockManager blocks(8);
  Scheduler scheduler(blocks, {.max_step_tokens = 1024, .max_sequences = 4});
  const auto most = MakeSequence(5 * kBlock);
  const auto less_urgent = MakeSequence(kBlock, 1000);
  less_urgent->priority = 1;
  scheduler.Add(most.get());
  scheduler.Add(less_urgent.get());
  Advance(scheduler, scheduler.Schedule());
  const auto long_one = MakeSequence(5 * kBlock, 3000);
  scheduler.Add(long_one.get());
  EXPECT_EQ(scheduler.Schedule().size(), 2u);
  EXPECT_EQ(scheduler.num_preemptions(), 0);
}

// Blocks for itself there are, but none that the one which goes on running will want next.
TEST(SchedulerOfPriorities, TakesNoBlocksWhereThoseThatStayWouldWantThem) {
  BlockManager blocks(8);
  Scheduler scheduler(blocks, {.max_step_tokens = 1024, .max_sequences = 4});
  const auto staying = MakeSequence(5 * kBlock - 1);
  const auto less_urgent = MakeSequence(2 * kBlock - 1, 1000);
  less_urgent->priority = 1;
  scheduler.Add(staying.get());
  scheduler.Add(less_urgent.get());
  Advance(scheduler, scheduler.Schedule());
  ASSERT_EQ(blocks.num_available(), 1);
  const auto urgent = MakeSequence(3 * kBlock - 1, 3000);
  scheduler.Add(urgent.get());
  EXPECT_EQ(scheduler.Schedule().size(), 2u);
  EXPECT_EQ(scheduler.num_preemptions(), 0);
}

// What a less urgent one shares with one that stays is not given up with it.
TEST(SchedulerOfPriorities, CountsNoBlocksThatOthersHold) {
  BlockManager blocks(8);
  Scheduler scheduler(blocks, {.max_step_tokens = 1024, .max_sequences = 4});
  const auto staying = MakeSequence(3 * kBlock + 1);
  scheduler.Add(staying.get());
  Advance(scheduler, scheduler.Schedule());
  const auto less_urgent = MakeSequence(5 * kBlock - 1);  // the same beginning
  less_urgent->priority = 1;
  scheduler.Add(less_urgent.get());
  Advance(scheduler, scheduler.Schedule());
  ASSERT_EQ(less_urgent->blocks.size(), 5u);
  ASSERT_EQ(blocks.num_available(), 2);
  const auto urgent = MakeSequence(4 * kBlock - 1, 3000);
  scheduler.Add(urgent.get());
  EXPECT_EQ(scheduler.Schedule().size(), 2u);
  EXPECT_EQ(scheduler.num_preemptions(), 0);
}

TEST(SchedulerOfPriorities, TheOldestIsNotOvertakenForEver) {
  BlockManager blocks(4);
  Scheduler scheduler(blocks, {.max_step_tokens = 1024, .max_sequences = 4});
  const auto patient = MakeSequence(3 * kBlock, 100000);
  patient->priority = 5;
  scheduler.Add(patient.get());
  Advance(scheduler, scheduler.Schedule());
  std::vector<std::unique_ptr<Sequence>> urgent;
  int num_before = -1;  // urgent ones that ended before the patient one did
  for (int i = 0; i < 30; ++i) {
    urgent.push_back(MakeSequence(3 * kBlock, 1000 * i));
    urgent.back()->priority = -i;  // each more than all before
    scheduler.Add(urgent.back().get());
    const auto step = scheduler.Schedule();
    Advance(scheduler, step);
    for (const auto& [sequence, count] : step) {
      if (sequence == patient.get() && sequence->length() >= 3 * kBlock + 4) num_before = i;
      if (sequence != patient.get()) scheduler.Remove(sequence);
    }
    if (num_before >= 0) break;
  }
  EXPECT_GE(num_before, Scheduler::kMostOvertakes);
  EXPECT_LE(num_before, Scheduler::kMostOvertakes + 5);
}

TEST(SchedulerOfPriorities, SaysWhetherThereIsRoomForOneMore) {
  BlockManager blocks(8);
  Scheduler scheduler(blocks, {.max_step_tokens = 2 * kBlock, .max_sequences = 4});
  const auto has_room = [&](const std::unique_ptr<Sequence>& sequence, int64_t priority = 0) {
    return scheduler.HasRoomFor(sequence->tokens, 0, priority);
  };
  EXPECT_TRUE(has_room(MakeSequence(8 * kBlock)));
  const auto first = MakeSequence(4 * kBlock);
  scheduler.Add(first.get());
  EXPECT_TRUE(has_room(MakeSequence(3 * kBlock, 1000)));  // with one that the first will want
  EXPECT_FALSE(has_room(MakeSequence(4 * kBlock, 1000)));
  EXPECT_TRUE(has_room(MakeSequence(4 * kBlock, 1000), -1));
  Advance(scheduler, scheduler.Schedule());
  EXPECT_TRUE(has_room(MakeSequence(3 * kBlock, 1000)));
  EXPECT_FALSE(has_room(MakeSequence(4 * kBlock, 1000)));
  Advance(scheduler, scheduler.Schedule());
  EXPECT_TRUE(has_room(MakeSequence(6 * kBlock)));  // the first four are there
  EXPECT_FALSE(has_room(MakeSequence(8 * kBlock)));
}

TEST(SchedulerOfPriorities, SaysWhatWouldBeReadBesideALongPrompt) {
  BlockManager blocks(8);
  Scheduler scheduler(blocks, {.max_step_tokens = kBlock, .max_sequences = 4});
  const std::vector<int32_t> short_one(kBlock / 2, 1000);
  EXPECT_FALSE(scheduler.IsReadBesideLong(short_one));  // nobody is there
  const auto long_one = MakeSequence(5 * kBlock);
  scheduler.Add(long_one.get());
  Advance(scheduler, scheduler.Schedule());
  EXPECT_TRUE(scheduler.IsReadBesideLong(short_one));
  EXPECT_FALSE(scheduler.IsReadBesideLong(std::vector<int32_t>(kBlock / 2 + 1, 1000)));
  const auto added = MakeSequence(kBlock / 2, 1000);
  scheduler.Add(added.get());
  EXPECT_EQ(scheduler.Schedule().size(), 2u);
  while (long_one->length() == 5 * kBlock) Advance(scheduler, scheduler.Schedule());
  EXPECT_FALSE(scheduler.IsReadBesideLong(short_one));  // no long one is read any more
}

}  // namespace
}  // namespace convene::engine
