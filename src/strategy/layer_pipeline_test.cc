#include "strategy/layer_pipeline.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace convene::strategy {
namespace {

using schedule::LaneKind;
using schedule::Schedule;
using schedule::Task;
using schedule::TaskKind;

// The first layer is dense.
model::ModelSpec SpecOfStages(int num_layers) {
  model::ModelSpec spec;
  spec.vocab_size = 50;
  spec.hidden_size = 16;
  for (int i = 0; i < num_layers; ++i) {
    model::LayerSpec& layer = spec.layers.emplace_back();
    layer.attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 4, .value_dim = 4};
    if (i == 0) {
      layer.dense_intermediate_size = 24;
      continue;
    }
    layer.moe.emplace();
    layer.moe->num_experts = 8;
    layer.moe->top_k = 2;
    layer.moe->intermediate_size = 8;
  }
  return spec;
}

Schedule Build(int num_layers, const Layout& layout, int micro_batches, int only_rank = -1) {
  return BuildStep(
      SpecOfStages(num_layers),
      {.roles = layout, .pipeline = {.micro_batches = micro_batches}, .only_rank = only_rank});
}

// Building checks the schedules: cycles, and tasks that touch the same thing in no order.
TEST(LayerPipeline, HasEachLayerOnOneRankAndPassesRowsBetweenNeighbours) {
  for (const int stages : {2, 3, 5}) {
    for (const int micro_batches : {1, 2, 7}) {
      const Schedule schedule = Build(7, {.stages = stages}, micro_batches);
      EXPECT_EQ(schedule.num_ranks, stages);
      std::map<int, std::set<int>> ranks_of_layer;
      std::map<int, std::set<int>> ranks_of_passing;  // by number of the collective
      for (const Task& task : schedule.tasks) {
        if (task.layer >= 0) ranks_of_layer[task.layer].insert(task.lane.rank);
        if (task.kind == TaskKind::kPassRows) {
          ranks_of_passing[task.collective].insert(task.lane.rank);
        }
      }
      const Roles roles = Layout{.stages = stages};
      ASSERT_EQ(ranks_of_layer.size(), 7u);
      for (const auto& [layer, ranks] : ranks_of_layer) {
        ASSERT_EQ(ranks.size(), 1u) << "layer " << layer;
        EXPECT_TRUE(roles.of(*ranks.begin()).stage.HasLayer(layer, 7)) << "layer " << layer;
      }
      EXPECT_EQ(ranks_of_passing.size(), static_cast<size_t>((stages - 1) * micro_batches));
      for (const auto& [number, ranks] : ranks_of_passing) {
        ASSERT_EQ(ranks.size(), 2u);
        EXPECT_EQ(*ranks.rbegin(), *ranks.begin() + 1);
      }
    }
  }
}

// Otherwise ranks would wait for each other for ever.
TEST(LayerPipeline, OfOneRankIsThatRanksPartOfTheWhole) {
  for (const int micro_batches : {1, 4}) {
    const Layout layout{.stages = 3};
    const Schedule all = Build(6, layout, micro_batches);
    for (int rank = 0; rank < 3; ++rank) {
      const auto lines = [&](const Schedule& schedule) {
        std::map<LaneKind, std::vector<std::vector<int>>> lanes;
        for (const Task& task : schedule.tasks) {
          if (task.lane.rank != rank) continue;
          lanes[task.lane.kind].push_back({static_cast<int>(task.kind), task.layer,
                                           task.micro_batch, task.collective,
                                           static_cast<int>(task.after.size())});
        }
        return lanes;
      };
      EXPECT_EQ(lines(Build(6, layout, micro_batches, rank)), lines(all)) << "rank " << rank;
    }
  }
}

// What it is for: the next micro-batch is computed before the last rank has this one.
TEST(LayerPipeline, ComputesAllMicroBatchesOneBehindTheOtherOnEachRank) {
  const Schedule schedule = Build(6, {.stages = 3}, 4);
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<int> micro_batches;
    for (const Task& task : schedule.tasks) {
      const bool is_attention = task.kind == TaskKind::kAttention && task.lane.rank == rank;
      if (is_attention) micro_batches.push_back(task.micro_batch);
    }
    EXPECT_EQ(micro_batches, (std::vector{0, 0, 1, 1, 2, 2, 3, 3})) << "rank " << rank;
    // What comes and what goes have lanes of their own.
    std::map<LaneKind, std::set<int>> neighbours;
    for (const Task& task : schedule.tasks) {
      if (task.kind != TaskKind::kPassRows || task.lane.rank != rank) continue;
      neighbours[task.lane.kind].insert(task.work.link_bytes.empty() ? rank - 1 : rank + 1);
    }
    for (const auto& [lane, others] : neighbours) EXPECT_EQ(others.size(), 1u);
    EXPECT_EQ(neighbours.size(), rank == 1 ? 2u : 1u);
  }
}

}  // namespace
}  // namespace convene::strategy
