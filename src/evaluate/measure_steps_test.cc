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
  // Attention over a cache in int8 is measured in steps of their own.
  ASSERT_TRUE(costs->int8_attention && costs->int8_attention_held_out);
  EXPECT_GT(costs->int8_attention_held_out->num_points, 0);
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

TEST(MeasureSteps, OfFloat32HasNoInt8CacheAndLoadsAloneAndBesideComputation) {
  const auto kernels = kernels::ChooseKernels();
  ASSERT_TRUE(kernels.ok());
  hardware::ThreadPool pool({0});
  const auto group = comm::MakeSoloGroup();
  MeasureStepsOptions options = SmallOptions();
  options.weights = kernels::WeightFormat::kF32;
  const auto costs = MeasureSteps(*group, pool, **kernels, options);
  ASSERT_TRUE(costs.ok()) << costs.error().message;
  EXPECT_FALSE(costs->int8_attention);
  ASSERT_TRUE(costs->load_beside.has_value());
  const auto& alone = costs->tasks[static_cast<size_t>(TaskKind::kLoadExperts)];
  ASSERT_TRUE(alone.has_value());
  EXPECT_GT(alone->per_weight_byte.value.front(), 0);
  // The load lane shares the one core with what computes.
  EXPECT_GT(costs->load_beside->per_weight_byte.value.back(), 0);
}

TEST(MeasureSteps, WeightsInACacheAreMeasuredWhereThereIsOneForThem) {
  const auto kernels = kernels::ChooseKernels();
  ASSERT_TRUE(kernels.ok());
  comm::RunOnThreads(2, [&](comm::Group& group) {
    hardware::ThreadPool pool({0});
    MeasureStepsOptions options = SmallOptions();
    options.last_level_cache_bytes = uint64_t{32} << 20;
    const auto costs = MeasureSteps(group, pool, **kernels, options);
    ASSERT_TRUE(costs.ok()) << costs.error().message;
    if (group.rank() != 0) return;
    EXPECT_GT(costs->cached_weight_bytes, 4 << 20);
    EXPECT_LT(costs->cached_weight_bytes, 20 << 20);
    for (const TaskKind kind : {TaskKind::kAttention, TaskKind::kExperts, TaskKind::kShared}) {
      EXPECT_TRUE(costs->cached_tasks[static_cast<size_t>(kind)].has_value())
          << schedule::Name(kind);
    }
  });
}

}  // namespace
}  // namespace convene::evaluate
