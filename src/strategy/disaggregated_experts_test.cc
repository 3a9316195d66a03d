#include "strategy/disaggregated_experts.h"

#include <gtest/gtest.h>

#include "schedule/hazards_test.h"

namespace convene::strategy {
namespace {

// The first layer is dense.
model::ModelSpec SpecOf(int num_layers, int shared_size) {
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
    layer.moe->shared_intermediate_size = shared_size;
  }
  return spec;
}

int Count(const schedule::Schedule& schedule, schedule::TaskKind kind) {
  int count = 0;
  for (const schedule::Task& task : schedule.tasks) count += task.kind == kind;
  return count;
}

// Building checks the schedules: cycles, and tasks that touch the same thing in no order.
TEST(DisaggregatedExperts, AreInOrderForAllDegrees) {
  for (const int attention_ranks : {1, 2, 3}) {
    for (const int expert_ranks : {1, 4}) {
      for (const int micro_batches : {1, 2, 5}) {
        for (const int chunks : {1, 3}) {
          for (const auto order : {AttentionOrder::kAsas, AttentionOrder::kAass}) {
            for (const bool after_shared : {false, true}) {
              const auto schedule = BuildDisaggregatedExperts(
                  SpecOf(4, chunks == 3 ? 0 : 12), {.attention_ranks = attention_ranks,
                                                    .expert_ranks = expert_ranks,
                                                    .micro_batches = micro_batches,
                                                    .chunks = chunks,
                                                    .order = order,
                                                    .dispatch_after_shared = after_shared});
              EXPECT_EQ(schedule.num_ranks, attention_ranks + expert_ranks);
              EXPECT_EQ(Count(schedule, schedule::TaskKind::kHead), 1);
            }
          }
        }
      }
    }
  }
}

TEST(DisaggregatedExperts, HaveNoDependencyThatIsMissedOrThatTheRestDoesNotImply) {
  for (const auto order : {AttentionOrder::kAsas, AttentionOrder::kAass}) {
    for (const bool after_shared : {false, true}) {
      auto schedule =
          BuildDisaggregatedExperts(SpecOf(4, 12), {.attention_ranks = 2,
                                                    .expert_ranks = 2,
                                                    .micro_batches = 2,
                                                    .chunks = 2,
                                                    .order = order,
                                                    .dispatch_after_shared = after_shared});
      EXPECT_GT(CountDependenciesFound(schedule), 100);
    }
  }
}

TEST(DisaggregatedExperts, DivideTheTasksByRoles) {
  constexpr int kNumAttention = 2;
  const auto schedule = BuildDisaggregatedExperts(
      SpecOf(3, 12),
      {.attention_ranks = kNumAttention, .expert_ranks = 3, .micro_batches = 4, .chunks = 5});
  using enum schedule::TaskKind;
  EXPECT_EQ(Count(schedule, kAttention), 3 * 2 * 4);
  EXPECT_EQ(Count(schedule, kDense), 2 * 4);
  EXPECT_EQ(Count(schedule, kRoute), 2 * 2 * 4);
  EXPECT_EQ(Count(schedule, kShared), 2 * 2 * 4);
  EXPECT_EQ(Count(schedule, kFinish), 2 * 2 * 4);
  EXPECT_EQ(Count(schedule, kExperts), 2 * 3 * 4 * 5);
  EXPECT_EQ(Count(schedule, kReduce), 2 * 3 * 4 * 5);
  EXPECT_EQ(Count(schedule, kCounts), 2 * 5 * 4);
  EXPECT_EQ(Count(schedule, kDispatch), 2 * 5 * 4 * 5);
  EXPECT_EQ(Count(schedule, kCombine), 2 * 5 * 4 * 5);
  for (const schedule::Task& task : schedule.tasks) {
    const bool has_rows = task.lane.rank < kNumAttention;
    if (task.kind == kExperts || task.kind == kReduce) {
      EXPECT_FALSE(has_rows);
    } else if (!IsCollective(task.kind)) {
      EXPECT_TRUE(has_rows) << Label(task);
    }
    // Rows go to expert ranks, sums come from them.
    for (const schedule::Term& term : task.work.link_bytes) {
      if (task.kind == kDispatch) {
        EXPECT_TRUE(has_rows && term.size.to >= kNumAttention);
      } else if (task.kind == kCombine) {
        EXPECT_TRUE(!has_rows && term.size.to < kNumAttention);
      }
    }
  }
}

TEST(DisaggregatedExperts, OneRanksTasksAreThoseThatItHasAmongAll) {
  DisaggregatedExperts parameters = {
      .attention_ranks = 2, .expert_ranks = 2, .micro_batches = 2, .chunks = 2};
  const auto all = BuildDisaggregatedExperts(SpecOf(3, 12), parameters);
  for (int rank = 0; rank < 4; ++rank) {
    parameters.only_rank = rank;
    const auto own = BuildDisaggregatedExperts(SpecOf(3, 12), parameters);
    std::vector<std::string> labels;
    for (const schedule::Task& task : all.tasks) {
      if (task.lane.rank == rank) labels.push_back(Label(task));
    }
    ASSERT_EQ(own.tasks.size(), labels.size());
    for (size_t i = 0; i < labels.size(); ++i) EXPECT_EQ(Label(own.tasks[i]), labels[i]);
  }
}

}  // namespace
}  // namespace convene::strategy
