#include "evaluate/measure_steps.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "comm/solo/solo_group.h"
#include "comm/threads/thread_group.h"
#include "kernels/choose_kernels.h"
#include "planner/predict_step.h"

namespace convene::evaluate {
namespace {

using schedule::TaskKind;

// Models and steps so small that it takes a moment; figures mean nothing.
MeasureStepsOptions SmallOptions() {
  const ModelShape shape{.hidden = 64,
                         .heads = 4,
                         .layers = 3,
                         .experts = 8,
                         .top_k = 2,
                         .intermediate = 64,
                         .shared_intermediate = 64,
                         .vocab = 96,
                         .dense_intermediate = 128};
  ModelShape latent = shape;
  latent.latent = 32;
  return {.rounds = 2, .shapes = {shape, latent}, .cases = {{2, 16, 0}, {4, 1, 30}, {2, 5, 64}}};
}

TEST(MeasureSteps, GivesCostsByWhichAnotherModelIsPredicted) {
  const auto kernels = kernels::ChooseKernels();
  ASSERT_TRUE(kernels.ok());
  hardware::ThreadPool pool({0});
  const auto group = comm::MakeSoloGroup();
  const auto costs = MeasureSteps(*group, pool, **kernels, SmallOptions());
  ASSERT_TRUE(costs.ok()) << costs.error().message;
  EXPECT_EQ(costs->num_ranks, 1);
  EXPECT_EQ(costs->num_threads, 1);
  EXPECT_EQ(costs->weights, "int8");
  EXPECT_GT(costs->reference.read_bytes_per_second, 0);
  EXPECT_GT(costs->reference.dot_operations_per_second, 0);
  for (const TaskKind kind : {TaskKind::kAttention, TaskKind::kExperts, TaskKind::kHead,
                              TaskKind::kRoute, TaskKind::kDense, TaskKind::kShared}) {
    EXPECT_TRUE(costs->tasks[static_cast<size_t>(kind)].has_value()) << schedule::Name(kind);
  }
  const model::ModelSpec spec = InventSpec({.hidden = 128, .heads = 4, .experts = 4, .top_k = 1});
  planner::StepQuestion question{.spec = spec};
  question.groups = {{{.num_tokens = 10}}};
  const auto step = planner::PredictStep(question, planner::MeasuredPricer(*costs));
  ASSERT_TRUE(step.ok()) << step.error().message;
  EXPECT_GT(step->seconds, 0);
}

TEST(MeasureSteps, OfSeveralRanksHasExchangesAndWhatRanksDoForThem) {
  const auto kernels = kernels::ChooseKernels();
  ASSERT_TRUE(kernels.ok());
  comm::RunOnThreads(2, [&](comm::Group& group) {
    hardware::ThreadPool pool({0});
    const auto costs = MeasureSteps(group, pool, **kernels, SmallOptions());
    ASSERT_TRUE(costs.ok()) << costs.error().message;
    if (group.rank() != 0) return;
    EXPECT_EQ(costs->num_ranks, 2);
    for (const TaskKind kind : {TaskKind::kReduce, TaskKind::kAddPartials, TaskKind::kNormalize}) {
      EXPECT_TRUE(costs->tasks[static_cast<size_t>(kind)].has_value()) << schedule::Name(kind);
    }
    EXPECT_FALSE(costs->exchange.seconds.at.empty());
    EXPECT_GT(costs->exchange.SecondsOf(1e6), 0);
    const auto read = cost::StepCostsFromJson(nlohmann::json::parse(ToJson(*costs).dump()));
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(*read, *costs);
  });
}

}  // namespace
}  // namespace convene::evaluate
