#include "strategy/offload_pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace convene::strategy {
namespace {

using schedule::Schedule;
using schedule::Task;
using schedule::TaskKind;

TEST(OffloadPipeline, IsValidForAllSizes) {
  for (const int layers : {1, 2, 5}) {
    for (const int micro_batches : {1, 2, 3, 8}) {
      for (const int lead : {1, 2, 3}) {
        for (const bool next_step : {false, true}) {
          const Status status = Validate(BuildOffloadPipeline({.num_layers = layers,
                                                               .micro_batches = micro_batches,
                                                               .next_step = next_step,
                                                               .lead = lead}));
          ASSERT_TRUE(status.ok()) << status.error().message;
        }
      }
    }
  }
}

int Count(const Schedule& schedule, TaskKind kind) {
  return static_cast<int>(std::count_if(schedule.tasks.begin(), schedule.tasks.end(),
                                        [&](const Task& task) { return task.kind == kind; }));
}

TEST(OffloadPipeline, StreamsAllLayersButTheFirst) {
  const Schedule schedule = BuildOffloadPipeline({.num_layers = 4, .micro_batches = 3});
  EXPECT_EQ(Count(schedule, TaskKind::kPostAttention), 12);
  EXPECT_EQ(Count(schedule, TaskKind::kAttend), 12);
  EXPECT_EQ(Count(schedule, TaskKind::kLoadPage), 9);
  EXPECT_EQ(Count(schedule, TaskKind::kStagePage), 9);
}

TEST(OffloadPipeline, LoadsTheFirstLayerForTheNextStep) {
  const Schedule schedule =
      BuildOffloadPipeline({.num_layers = 4, .micro_batches = 3, .next_step = true});
  EXPECT_EQ(Count(schedule, TaskKind::kLoadPage), 12);
  EXPECT_EQ(Count(schedule, TaskKind::kStagePage), 12);
}

TEST(OffloadPipeline, APageWaitsUntilTheLayerWhoseBufferItTakesIsThrough) {
  const Schedule schedule = BuildOffloadPipeline({.num_layers = 4, .micro_batches = 3});
  int num_waiting = 0;
  for (const Task& task : schedule.tasks) {
    if (task.kind != TaskKind::kLoadPage || task.layer < 2) continue;
    for (const schedule::TaskId id : task.after) {
      const Task& before = schedule.tasks[id];
      if (before.kind != TaskKind::kPostAttention) continue;
      EXPECT_EQ(before.layer, task.layer - 2);
      EXPECT_EQ(before.micro_batch, 2);  // the last one
      ++num_waiting;
    }
  }
  EXPECT_EQ(num_waiting, 6);
}

}  // namespace
}  // namespace convene::strategy
