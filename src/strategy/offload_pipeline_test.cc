#include "strategy/offload_pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "schedule/hazards_test.h"

namespace convene::strategy {
namespace {

using schedule::Schedule;
using schedule::Task;
using schedule::TaskKind;

// The last layer is dense where there are several.
model::ModelSpec SpecOfOffload(int num_layers) {
  model::ModelSpec spec;
  spec.vocab_size = 50;
  spec.hidden_size = 16;
  for (int i = 0; i < num_layers; ++i) {
    model::LayerSpec& layer = spec.layers.emplace_back();
    layer.attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 4, .value_dim = 4};
    if (i > 0 && i + 1 == num_layers) {
      layer.dense_intermediate_size = 24;
      continue;
    }
    layer.moe.emplace();
    layer.moe->num_experts = 8;
    layer.moe->top_k = 2;
    layer.moe->intermediate_size = 8;
    layer.moe->shared_intermediate_size = i % 2 == 0 ? 12 : 0;
  }
  return spec;
}

int CountTasks(const Schedule& schedule, TaskKind kind) {
  return static_cast<int>(std::count_if(schedule.tasks.begin(), schedule.tasks.end(),
                                        [&](const Task& task) { return task.kind == kind; }));
}

// Building checks the schedules: cycles, and tasks that touch the same thing in no order.
TEST(OffloadPipeline, IsInOrderForAllSizes) {
  for (const int layers : {1, 2, 5}) {
    for (const int micro_batches : {1, 2, 3, 8}) {
      for (const int lead : {1, 2, 3}) {
        for (const bool next_step : {false, true}) {
          const Schedule schedule = BuildOffloadPipeline(
              SpecOfOffload(layers),
              {.micro_batches = micro_batches, .next_step = next_step, .lead = lead});
          EXPECT_EQ(CountTasks(schedule, TaskKind::kEmbed), micro_batches);
          EXPECT_EQ(CountTasks(schedule, TaskKind::kHead), 1);
        }
      }
    }
  }
}

TEST(OffloadPipeline, OfWholeLayersIsInOrderForAllSizes) {
  for (const OffloadOrder order : kOffloadOrders) {
    if (order == OffloadOrder::kCgo) continue;
    for (const int layers : {1, 2, 5}) {
      for (const int micro_batches : {1, 2, 3, 8}) {
        for (const bool next_step : {false, true}) {
          for (const bool loads_behind : {false, true}) {
            SCOPED_TRACE(Name(order));
            const Schedule schedule =
                BuildOffloadPipeline(SpecOfOffload(layers), {.order = order,
                                                             .micro_batches = micro_batches,
                                                             .next_step = next_step,
                                                             .loads_behind = loads_behind});
            const int items = layers * micro_batches;
            EXPECT_EQ(CountTasks(schedule, TaskKind::kAttend), items);
            EXPECT_EQ(CountTasks(schedule, TaskKind::kLoadPage), layers - (next_step ? 0 : 1));
            EXPECT_EQ(CountTasks(schedule, TaskKind::kStagePage), 0);
            EXPECT_EQ(CountTasks(schedule, TaskKind::kSendQkv), AttendsOnHost(order) ? items : 0);
            const int of_cache = order == OffloadOrder::kS4 ? items : 0;
            EXPECT_EQ(CountTasks(schedule, TaskKind::kReadKv), of_cache);
            EXPECT_EQ(CountTasks(schedule, TaskKind::kWriteKv), of_cache);
          }
        }
      }
    }
  }
}

TEST(OffloadPipeline, OfWholeLayersHasNoDependencyThatIsMissedOrThatTheRestDoesNotImply) {
  for (const OffloadOrder order : {OffloadOrder::kS2, OffloadOrder::kS3}) {
    Schedule schedule = BuildOffloadPipeline(
        SpecOfOffload(5), {.order = order, .micro_batches = 2, .next_step = true});
    EXPECT_GT(CountDependenciesFound(schedule), 20) << Name(order);
  }
}

TEST(OffloadPipeline, OrdersHaveNames) {
  for (const OffloadOrder order : kOffloadOrders) EXPECT_EQ(OffloadOrderNamed(Name(order)), order);
  EXPECT_FALSE(OffloadOrderNamed("s1"));
}

TEST(OffloadPipeline, HasNoDependencyThatIsMissedOrThatTheRestDoesNotImply) {
  // With buffers for all pages: that they are used again is not checked.
  Schedule schedule = BuildOffloadPipeline(
      SpecOfOffload(5), {.micro_batches = 2, .pinned_pages = 10, .next_step = true});
  EXPECT_GT(CountDependenciesFound(schedule), 30);
}

TEST(OffloadPipeline, StreamsAllLayersButTheFirst) {
  const Schedule schedule = BuildOffloadPipeline(SpecOfOffload(4), {.micro_batches = 3});
  EXPECT_EQ(CountTasks(schedule, TaskKind::kPostAttention), 12);
  EXPECT_EQ(CountTasks(schedule, TaskKind::kAttend), 12);
  EXPECT_EQ(CountTasks(schedule, TaskKind::kExperts), 9);
  EXPECT_EQ(CountTasks(schedule, TaskKind::kDense), 3);
  EXPECT_EQ(CountTasks(schedule, TaskKind::kLoadPage), 9);
  EXPECT_EQ(CountTasks(schedule, TaskKind::kStagePage), 9);
}

TEST(OffloadPipeline, LoadsTheFirstLayerForTheNextStep) {
  const Schedule schedule =
      BuildOffloadPipeline(SpecOfOffload(4), {.micro_batches = 3, .next_step = true});
  EXPECT_EQ(CountTasks(schedule, TaskKind::kLoadPage), 12);
  EXPECT_EQ(CountTasks(schedule, TaskKind::kStagePage), 12);
}

TEST(OffloadPipeline, APageWaitsUntilTheLayerWhoseBufferItTakesIsThrough) {
  const Schedule schedule = BuildOffloadPipeline(SpecOfOffload(4), {.micro_batches = 3});
  int num_waiting = 0;
  for (const Task& task : schedule.tasks) {
    if (task.kind != TaskKind::kLoadPage || task.layer < 2) continue;
    for (const schedule::TaskId id : task.after) {
      const Task& before = schedule.tasks[id];
      if (before.kind != TaskKind::kFinish) continue;
      EXPECT_EQ(before.layer, task.layer - 2);
      EXPECT_EQ(before.micro_batch, 2);  // the last one
      ++num_waiting;
    }
  }
  EXPECT_EQ(num_waiting, 6);
}

}  // namespace
}  // namespace convene::strategy
