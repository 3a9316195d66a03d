#include "strategy/tensor_parallel.h"

#include <gtest/gtest.h>

#include <vector>

#include "strategy/step.h"

namespace convene::strategy {
namespace {

using schedule::Block;
using schedule::Schedule;
using schedule::SizeKind;
using schedule::Task;
using schedule::TaskKind;

model::ModelSpec SpecOfADenseLayer() {
  model::ModelSpec spec;
  spec.vocab_size = 50;
  spec.hidden_size = 16;
  model::LayerSpec& dense = spec.layers.emplace_back();
  dense.attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 4, .value_dim = 4};
  dense.dense_intermediate_size = 24;
  model::LayerSpec& last = spec.layers.emplace_back(dense);
  last.dense_intermediate_size = 0;
  last.moe = {.num_experts = 8, .top_k = 2, .intermediate_size = 8};
  return spec;
}

double FactorOf(const schedule::Amount& amount, SizeKind kind, int from) {
  double sum = 0;
  for (const schedule::Term& term : amount) {
    if (term.size.kind == kind && term.size.from == from) sum += term.factor;
  }
  return sum;
}

// Building checks the schedule: cycles, and tasks that touch the same thing in no order.
TEST(DividedDense, HasASliceOfAllRowsOfTheGroupOnEachRank) {
  const model::ModelSpec spec = SpecOfADenseLayer();
  const double elements = 16.0 * 24 * 3;
  for (const bool divides : {false, true}) {
    const Layout layout{
        .attention_tp = 2, .attention_dp = 2, .expert_ep = 4, .divides_dense = divides};
    for (const int micro_batches : {1, 2}) {
      const Schedule schedule =
          BuildStep(spec, {.roles = layout, .pipeline = {.micro_batches = micro_batches}});
      for (const int rank : {0, 1, 2, 3}) {
        std::vector<TaskKind> kinds;  // of the dense block
        for (const Task& task : schedule.tasks) {
          if (task.lane.rank != rank || task.layer != 0 || task.micro_batch > 0) continue;
          const bool is_dense = task.kind == TaskKind::kDense;
          if (is_dense || task.block == Block::kDense) kinds.push_back(task.kind);
          if (!is_dense) continue;
          const double part = divides ? elements / 2 : elements;
          const int other = rank ^ 1;
          EXPECT_EQ(FactorOf(task.work.flops, SizeKind::kRows, rank), 2 * part);
          EXPECT_EQ(FactorOf(task.work.flops, SizeKind::kRows, other), divides ? 2 * part : 0);
          EXPECT_EQ(FactorOf(task.work.flops, SizeKind::kRows, rank ^ 2), 0);
        }
        const std::vector<TaskKind> whole = {TaskKind::kDense};
        const std::vector<TaskKind> divided = {TaskKind::kNormalize, TaskKind::kGatherNormed,
                                               TaskKind::kDense, TaskKind::kScatterSums,
                                               TaskKind::kAddPartials};
        EXPECT_EQ(kinds, divides ? divided : whole);
      }
    }
  }
}

}  // namespace
}  // namespace convene::strategy
