#include "strategy/transition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "strategy/step.h"

namespace convene::strategy {
namespace {

constexpr int kHidden = 16;
constexpr int kIntermediate = 60;
constexpr int kExpertBytes = 3 * kHidden * kIntermediate * 2;

// A dense layer, and layers with so many experts each.
model::ModelSpec SpecOfTransition(const std::vector<int>& num_experts) {
  model::ModelSpec spec;
  spec.hidden_size = kHidden;
  spec.layers.emplace_back().dense_intermediate_size = 24;
  for (const int count : num_experts) {
    model::MoeSpec& moe = spec.layers.emplace_back().moe.emplace();
    moe.num_experts = count;
    moe.intermediate_size = kIntermediate;
    moe.activation.kind = model::Activation::kSiluMul;
  }
  return spec;
}

// Which columns of an expert's intermediate size a rank has, one by one.
std::vector<bool> Columns(const Roles& roles, int rank, int num_experts, int expert) {
  std::vector<bool> columns(kIntermediate);
  const Part part = roles.ExpertsOf(rank, num_experts);
  if (expert < part.first || expert >= part.first + part.size) return columns;
  const ExpertRole& role = *roles.of(rank).experts;
  const Part slice = PartOf(kIntermediate, role.slice, role.slices);
  std::fill_n(columns.begin() + slice.first, slice.size, true);
  return columns;
}

// (sender, receiver) to bytes, counted over experts and columns: what the receiver has not yet.
std::map<std::pair<int, int>, int> Counted(const Roles& from, const Roles& to, int num_experts) {
  std::map<std::pair<int, int>, int> bytes;
  for (int receiver = 0; receiver < to.num_ranks(); ++receiver) {
    for (int expert = 0; expert < num_experts; ++expert) {
      const std::vector<bool> wanted = Columns(to, receiver, num_experts, expert);
      for (int sender = 0; sender < from.num_ranks(); ++sender) {
        if (sender == receiver) continue;
        const std::vector<bool> there = Columns(from, sender, num_experts, expert);
        for (int column = 0; column < kIntermediate; ++column) {
          if (!wanted[column] || !there[column]) continue;
          bytes[{sender, receiver}] += kExpertBytes / kIntermediate;
        }
      }
    }
  }
  return bytes;
}

TEST(Transition, MovesWhatEachRankHasNotYet) {
  const std::vector<std::pair<Layout, Layout>> pairs = {
      {{1, 2, 2, 1}, {1, 2, 1, 2}},
      {{1, 2, 1, 2}, {1, 2, 2, 1}},
      {{1, 2, 2, 1}, {1, 2, 2, 1, {3, 1}}},
      {{1, 4, 4, 1}, {1, 4, 2, 2}},
      {{1, 3, 1, 3}, {1, 3, 3, 1}},
      {{1, 6, 3, 2}, {1, 6, 2, 3}},
      {{1, 3, 3, 1, {4, 1, 1}}, {1, 3, 3, 1, {1, 1, 4}}}};
  const std::vector<int> num_experts = {8, 7, 60};
  for (const auto& [from, to] : pairs) {
    const auto schedule = BuildTransition(SpecOfTransition(num_experts), from, to, 2);
    std::vector<std::map<std::pair<int, int>, int>> bytes(num_experts.size());
    std::map<int, int> collective_of;
    for (const schedule::Task& task : schedule.tasks) {
      EXPECT_EQ(task.kind, schedule::TaskKind::kMoveExperts);
      EXPECT_EQ(collective_of.try_emplace(task.layer, task.collective).first->second,
                task.collective);
      for (const schedule::Term& term : task.work.link_bytes) {
        EXPECT_NEAR(term.factor, std::round(term.factor), 1e-6);
        bytes.at(task.layer - 1)[{task.lane.rank, term.size.to}] +=
            static_cast<int>(std::lround(term.factor));
      }
    }
    for (size_t i = 0; i < num_experts.size(); ++i) {
      EXPECT_EQ(bytes[i], Counted(from, to, num_experts[i])) << num_experts[i] << " experts";
    }
  }
}

TEST(Transition, OfRolesThatStayIsNothing) {
  for (const Layout& layout : {Layout{1, 4, 4, 1}, Layout{1, 2, 2, 1, {3, 1}}}) {
    EXPECT_TRUE(BuildTransition(SpecOfTransition({8, 6}), layout, layout, 2).tasks.empty());
  }
}

TEST(Transition, LeavesOutLayersThatStay) {
  // Of three experts each rank has one before and after; of eight the seventh changes its rank.
  const auto moved = BuildTransition(SpecOfTransition({3, 8}), Layout{1, 3, 3, 1, {4, 3, 1}},
                                     Layout{1, 3, 3, 1, {4, 2, 2}}, 2);
  ASSERT_EQ(moved.tasks.size(), 3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(moved.tasks[rank].layer, 2);
    EXPECT_EQ(moved.tasks[rank].lane.rank, rank);
  }
  ASSERT_EQ(moved.tasks[1].work.link_bytes.size(), 1);
  EXPECT_EQ(moved.tasks[1].work.link_bytes[0].factor, kExpertBytes);
  EXPECT_TRUE(moved.tasks[0].work.link_bytes.empty());
  EXPECT_TRUE(moved.tasks[2].work.link_bytes.empty());
}

TEST(Transition, LeavesAnEncoderAsItIs) {
  model::ModelSpec spec = SpecOfTransition({8});
  std::swap(spec.encoder_layers, spec.layers);
  EXPECT_TRUE(BuildTransition(spec, Layout{1, 2, 2, 1}, Layout{1, 2, 1, 2}, 2).tasks.empty());
}

TEST(ExpertLoads, WriteWhatARankWillHaveAndMakeOfInt4WhatItHadNot) {
  const model::ModelSpec spec = SpecOfTransition({8, 7});
  for (const auto& [from, to] : {std::pair<Layout, Layout>{{1, 2, 2, 1}, {1, 2, 1, 2}},
                                 {{1, 2, 1, 2}, {1, 2, 2, 1}},
                                 {{1, 4, 4, 1}, {1, 4, 2, 2}},
                                 {{1, 2, 2, 1}, {1, 2, 2, 1, {3, 1}}}}) {
    for (const bool rounded : {true, false}) {
      const ExpertLoads loads{.from = from, .to = to, .bytes = 2, .rounded = rounded};
      const schedule::Schedule schedule = BuildLoads(spec, loads);
      ASSERT_EQ(schedule.tasks.size(), 2 * loads.to.num_ranks());
      for (const schedule::Task& task : schedule.tasks) {
        EXPECT_EQ(task.kind, schedule::TaskKind::kLoadExperts);
        EXPECT_EQ(task.lane.kind, schedule::LaneKind::kLoad);
        EXPECT_TRUE(task.work.link_bytes.empty());
        const int num_experts = spec.layers[task.layer].moe->num_experts;
        int all = 0;
        int lacking = 0;
        for (int expert = 0; expert < num_experts; ++expert) {
          const auto had = Columns(loads.from, task.lane.rank, num_experts, expert);
          const auto has = Columns(loads.to, task.lane.rank, num_experts, expert);
          for (int column = 0; column < kIntermediate; ++column) {
            all += has[column] ? 1 : 0;
            lacking += has[column] && !had[column] ? 1 : 0;
          }
        }
        EXPECT_NEAR(task.work.memory_bytes.at(0).factor, all * kExpertBytes / kIntermediate, 1e-6);
        if (rounded) {
          EXPECT_NEAR(task.work.flops.at(0).factor, lacking * kExpertBytes / kIntermediate / 2,
                      1e-6);
        } else {
          EXPECT_TRUE(task.work.flops.empty());
        }
      }
    }
  }
}

TEST(ExpertLoads, ComeOnceAStepIsThroughWithALayer) {
  model::ModelSpec spec = SpecOfTransition({8, 8});
  for (model::LayerSpec& layer : spec.layers) {
    layer.attention = {.num_heads = 2, .num_kv_heads = 2, .head_dim = 8, .value_dim = 8};
    if (layer.moe) layer.moe->top_k = 2;
  }
  StepOptions options{.roles = Layout{1, 2, 2, 1},
                      .pipeline = {.chunks = 2, .cut = ChunkCut::kExperts, .micro_batches = 2}};
  const size_t without = BuildStep(spec, options).tasks.size();
  options.loads = ExpertLoads{.from = options.roles, .to = Layout{1, 2, 1, 2}, .rounded = true};
  const schedule::Schedule step = BuildStep(spec, options);
  ASSERT_EQ(step.tasks.size(), without + 4);
  for (size_t id = without; id < step.tasks.size(); ++id) {
    const schedule::Task& load = step.tasks[id];
    EXPECT_EQ(load.after.size(), 4);  // chunks of both micro-batches
    for (const schedule::TaskId before : load.after) {
      EXPECT_EQ(step.tasks[before].kind, schedule::TaskKind::kExperts);
      EXPECT_EQ(step.tasks[before].layer, load.layer);
      EXPECT_EQ(step.tasks[before].lane.rank, load.lane.rank);
    }
  }
  // Nobody waits for them.
  for (const schedule::Task& task : step.tasks) {
    for (const schedule::TaskId before : task.after) {
      EXPECT_NE(step.tasks[before].kind, schedule::TaskKind::kLoadExperts);
    }
  }
  options.only_rank = 1;
  const schedule::Schedule own = BuildStep(spec, options);
  EXPECT_EQ(std::ranges::count(own.tasks, schedule::TaskKind::kLoadExperts, &schedule::Task::kind),
            2);
}

}  // namespace
}  // namespace convene::strategy
