// Steps of one rank whose experts lie on a disk: what is read when.
#include "strategy/paged_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "schedule/hazards.h"

namespace convene::strategy {
namespace {

using schedule::LaneKind;
using schedule::Task;
using schedule::TaskId;
using enum schedule::TaskKind;

model::ModelSpec PagedModel(int num_layers, bool first_is_dense) {
  model::ModelSpec spec;
  spec.hidden_size = 64;
  spec.vocab_size = 100;
  for (int layer = 0; layer < num_layers; ++layer) {
    model::LayerSpec& one = spec.layers.emplace_back();
    one.attention.num_heads = 2;
    one.attention.num_kv_heads = 2;
    one.attention.head_dim = 32;
    one.attention.value_dim = 32;
    if (layer == 0 && first_is_dense) {
      one.dense_intermediate_size = 64;
    } else {
      one.moe = model::MoeSpec{.num_experts = 8, .top_k = 2, .intermediate_size = 32};
    }
  }
  return spec;
}

std::vector<TaskId> TasksOfPages(const schedule::Schedule& schedule, schedule::TaskKind kind) {
  std::vector<TaskId> found;
  for (TaskId id = 0; id < std::ssize(schedule.tasks); ++id) {
    if (schedule.tasks[id].kind == kind) found.push_back(id);
  }
  return found;
}

bool PageWaitsFor(const Task& task, TaskId before) {
  return std::ranges::find(task.after, before) != task.after.end();
}

TEST(PagedExperts, EveryChunkIsReadBeforeItIsComputedAndNoMoreThanTheDepthAhead) {
  for (const bool first_is_dense : {false, true}) {
    for (const Paging& paging :
         {Paging{.chunks = 1, .depth = 2}, Paging{.chunks = 3, .depth = 4},
          Paging{.chunks = 8, .depth = 2}, Paging{.chunks = 2, .depth = 99}}) {
      const model::ModelSpec spec = PagedModel(4, first_is_dense);
      const schedule::Schedule schedule = BuildStep(spec, {.paging = paging});
      const std::vector<TaskId> reads = TasksOfPages(schedule, kReadPages);
      const std::vector<TaskId> experts = TasksOfPages(schedule, kExperts);
      ASSERT_EQ(std::ssize(reads), (first_is_dense ? 3 : 4) * paging.chunks);
      ASSERT_EQ(reads.size(), experts.size());
      for (size_t i = 0; i < reads.size(); ++i) {
        const Task& read = schedule.tasks[reads[i]];
        const Task& computed = schedule.tasks[experts[i]];
        EXPECT_EQ(read.lane.kind, LaneKind::kLoad);
        EXPECT_EQ(read.layer, computed.layer);
        EXPECT_EQ(read.chunk, computed.chunk);
        EXPECT_TRUE(PageWaitsFor(computed, reads[i]));
        const auto depth = static_cast<size_t>(paging.depth);
        if (i < depth) {
          EXPECT_TRUE(read.after.empty()) << "so that it can be read before the step begins";
        } else {
          EXPECT_TRUE(PageWaitsFor(read, experts[i - depth]));
        }
        EXPECT_FALSE(read.work.disk_bytes.empty());
      }
      // While the head computes and the caller samples, the next step's first pages are read.
      const std::vector<TaskId> next = TasksOfPages(schedule, kReadNext);
      ASSERT_EQ(next.size(), 1u);
      EXPECT_TRUE(PageWaitsFor(schedule.tasks[next[0]], experts.back()));
      EXPECT_GT(next[0], reads.back()) << "on the same lane";
      for (const Task& task : schedule.tasks) EXPECT_FALSE(PageWaitsFor(task, next[0]));
    }
  }
}

TEST(PagedExperts, WhatTokensChoseIsReadOnceThatIsKnown) {
  const model::ModelSpec spec = PagedModel(3, /*first_is_dense=*/false);
  const Paging paging{.chunks = 4, .depth = 2, .after_routing = true};
  const schedule::Schedule schedule = BuildStep(spec, {.paging = paging});
  EXPECT_TRUE(TasksOfPages(schedule, kReadPages).empty());
  EXPECT_TRUE(TasksOfPages(schedule, kReadNext).empty()) << "nobody knows what it will choose";
  const std::vector<TaskId> reads = TasksOfPages(schedule, kReadChosen);
  const std::vector<TaskId> experts = TasksOfPages(schedule, kExperts);
  const std::vector<TaskId> routes = TasksOfPages(schedule, kRoute);
  ASSERT_EQ(reads.size(), 12u);
  for (size_t i = 0; i < reads.size(); ++i) {
    EXPECT_TRUE(PageWaitsFor(schedule.tasks[reads[i]], routes[i / 4]));
    EXPECT_TRUE(PageWaitsFor(schedule.tasks[experts[i]], reads[i]));
  }
}

TEST(PagedExperts, WhatTheNextLayerWillChooseIsReadBehindWhatThisOneChose) {
  const model::ModelSpec spec = PagedModel(4, /*first_is_dense=*/true);
  const Paging paging{.chunks = 2, .depth = 3, .after_routing = true, .predicts = true};
  const schedule::Schedule schedule = BuildStep(spec, {.paging = paging});
  EXPECT_TRUE(schedule::CheckHazards(schedule).ok());
  const std::vector<TaskId> predicted = TasksOfPages(schedule, kReadPredicted);
  const std::vector<TaskId> chosen = TasksOfPages(schedule, kReadChosen);
  const std::vector<TaskId> routes = TasksOfPages(schedule, kRoute);
  ASSERT_EQ(predicted.size(), 2u) << "three layers have experts, and the last one has no next";
  for (size_t i = 0; i < predicted.size(); ++i) {
    const Task& task = schedule.tasks[predicted[i]];
    EXPECT_EQ(task.lane.kind, LaneKind::kLoad);
    EXPECT_TRUE(PageWaitsFor(task, routes[i]));
    EXPECT_GT(predicted[i], chosen[2 * i + 1]);
    EXPECT_LT(predicted[i], chosen[2 * i + 2]);
  }
  schedule::Schedule broken = schedule;
  broken.tasks[predicted[0]].after.clear();
  broken.tasks[chosen[0]].after.clear();
  broken.tasks[chosen[1]].after.clear();
  EXPECT_FALSE(schedule::CheckHazards(broken).ok()) << "a prediction is read before it is made";
}

TEST(PagedExperts, SeveralRanksReadChunkByChunkWhileRowsAreOnTheirWay) {
  const model::ModelSpec spec = PagedModel(3, /*first_is_dense=*/true);
  const Layout layout{.attention_dp = 2, .expert_ep = 2};
  for (const bool after_routing : {false, true}) {
    for (const bool overlap : {true, false}) {
      StepOptions options{
          .roles = layout,
          .pipeline = {.overlap = overlap, .micro_batches = 2},
          .paging =
              Paging{.chunks = 2, .depth = 3, .after_routing = after_routing, .predicts = true}};
      options.pipeline = PipelineOf(options);
      EXPECT_EQ(options.pipeline.micro_batches, 1) << "each expert is read once in a step";
      const schedule::Schedule schedule = BuildStep(spec, options);
      const std::vector<TaskId> reads =
          TasksOfPages(schedule, after_routing ? kReadChosen : kReadPages);
      const std::vector<TaskId> experts = TasksOfPages(schedule, kExperts);
      ASSERT_EQ(reads.size(), 8u) << "two ranks, layers and chunks";
      for (const TaskId id : experts) {
        const Task& computed = schedule.tasks[id];
        const auto read = std::ranges::find_if(reads, [&](TaskId other) {
          const Task& task = schedule.tasks[other];
          return task.lane.rank == computed.lane.rank && task.layer == computed.layer &&
                 task.chunk == computed.chunk;
        });
        ASSERT_NE(read, reads.end());
        EXPECT_TRUE(PageWaitsFor(computed, *read));
        const Task& task = schedule.tasks[*read];
        EXPECT_EQ(task.lane.kind, LaneKind::kLoad);
        EXPECT_FALSE(task.work.disk_bytes.empty());
        const bool waits_for_rows = std::ranges::any_of(task.after, [&](TaskId before) {
          return schedule.tasks[before].kind == kDispatch &&
                 schedule.tasks[before].chunk == task.chunk;
        });
        EXPECT_EQ(waits_for_rows, after_routing) << "only rows say what is wanted";
      }
      // Each rank builds the same tasks for itself.
      for (int rank = 0; rank < 2; ++rank) {
        options.only_rank = rank;
        const schedule::Schedule own = BuildStep(spec, options);
        const auto count = std::ranges::count_if(
            schedule.tasks, [&](const Task& task) { return task.lane.rank == rank; });
        EXPECT_EQ(std::ssize(own.tasks), count);
      }
    }
  }
}

TEST(PagedExperts, TheHazardCheckerMissesEachReadThatIsNotWaitedFor) {
  const model::ModelSpec spec = PagedModel(2, /*first_is_dense=*/false);
  const schedule::Schedule whole = BuildStep(spec, {.paging = Paging{.chunks = 2, .depth = 3}});
  for (const TaskId id : TasksOfPages(whole, kExperts)) {
    schedule::Schedule broken = whole;
    std::erase_if(broken.tasks[id].after,
                  [&](TaskId before) { return broken.tasks[before].kind == kReadPages; });
    EXPECT_FALSE(schedule::CheckHazards(broken).ok()) << Label(whole.tasks[id]);
  }
}

}  // namespace
}  // namespace convene::strategy
