#include "planner/step_pricer.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "cost/fit_operator_model.h"
#include "planner/asked_question_test.h"

namespace convene::planner {
namespace {

// Of logits that are read at 1 GB/s, where memory gives 4.
void AddGreedySampling(cost::MachineProfile& profile, const std::string& second_feature = "") {
  profile.machine.read_gbps = 4;
  std::vector<cost::OperatorSample> samples;
  for (int words = 16; words <= 1 << 20; words *= 2) {
    std::vector<double> features = {double(words)};
    if (!second_feature.empty()) features.push_back(1);
    samples.push_back(
        {.features = features, .ideal_seconds = 4e-9 * words / 4, .seconds = 4e-9 * words});
  }
  std::vector<std::string> names = {"words"};
  if (!second_feature.empty()) names.push_back(second_feature);
  const auto model =
      cost::FitOperatorModel({.name = "sample greedily", .feature_names = names}, samples);
  ASSERT_TRUE(model) << model.error().message;
  profile.operators.emplace("sample greedily", *model);
}

// The figures of one rank.
PlanFigures FiguresOf(const Asked& asked) {
  PlanSearch search(asked.question);
  const auto figures =
      search.FiguresOf({.num_ranks = 1, .num_threads = 1, .weights = "bf16"}, {}, asked.workload);
  EXPECT_TRUE(figures) << figures.error().message;
  return figures ? *figures : PlanFigures{};
}

TEST(StepPricer, ATokenOfEachSequenceIsSampledOneAfterTheOther) {
  Asked asked(1e9, {1});
  asked.spec.vocab_size = 1 << 18;
  asked.workload.batch = 8;
  const PlanFigures without = FiguresOf(asked);
  AddGreedySampling(asked.profile);
  const PlanFigures with = FiguresOf(asked);
  const double sampling = 8 * 4e-9 * (1 << 18);
  EXPECT_NEAR(with.time_per_token - without.time_per_token, sampling, 0.02 * sampling);
  // The first token comes with the prompt, and is sampled as well.
  EXPECT_NEAR(with.ttft - without.ttft, sampling, 0.02 * sampling);
  EXPECT_LT(with.throughput, without.throughput);
}

TEST(StepPricer, AnOperatorOfOtherFeaturesIsNotTakenForSampling) {
  Asked asked(1e9, {1});
  AddGreedySampling(asked.profile, "threads");
  const auto pricer =
      asked.source.PricerOf({.num_ranks = 1, .num_threads = 1, .weights = "bf16"}, {}, 0);
  ASSERT_TRUE(pricer) << pricer.error().message;
  EXPECT_EQ((*pricer)->SamplingSeconds(asked.spec), 0);
}

TEST(StepPricer, WhatIsMissingIsMeasuredWithTheThreadsAndIntoTheFileThatWereAskedFor) {
  Asked asked(1e9, {1});
  const MeasuredSource source(asked.profile, "one.json");
  EXPECT_EQ(source.WhyUnknown(1, 1, "int8"),
            "nothing is known of 1 rank of 1 thread with weights in int8; measure them with: "
            "convene measure --steps int8 --threads 1 --out one.json");
  EXPECT_EQ(asked.source.WhyUnknown(2, std::nullopt, "int8"),
            "nothing is known of 2 ranks with weights in int8; measure them with: mpirun -n 2 "
            "--bind-to none convene measure --steps int8");
  const auto missing =
      source.PricerOf({.num_ranks = 2, .num_threads = 3, .weights = "bf16"}, {}, 0);
  ASSERT_FALSE(missing);
  EXPECT_EQ(
      missing.error().message,
      "the profile has no costs of steps on 2 ranks of 3 threads with weights in bf16: "
      "measure them with: mpirun -n 2 --bind-to none convene measure --steps bf16 --threads 3 "
      "--out one.json");
}

TEST(StepPricer, AnInt8CacheHasThePricesOfItsOwnAttention) {
  Asked asked(1e9, {1});
  const RankSetup int8 = {.num_ranks = 1, .num_threads = 1, .weights = "bf16", .int8_kv = true};
  const auto missing = asked.source.PricerOf(int8, {}, 0);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message,
            "the profile has no costs of attention with an int8 KV cache on 1 rank of 1 thread "
            "with weights in bf16: measure them with: convene measure --steps bf16 --threads 1");
  // Of a search, too: it takes no other attention for it.
  asked.question.int8_kv = true;
  EXPECT_NE(ErrorOf(asked).find("attention with an int8 KV cache"), std::string::npos)
      << ErrorOf(asked);
  cost::StepCosts& costs = asked.profile.steps.front();
  costs.int8_attention = costs.CostOf(schedule::TaskKind::kAttention);
  costs.int8_attention->once += 1e-3;
  PlanSearch search(asked.question);
  const auto of_int8 = search.FiguresOf(int8, {}, asked.workload);
  ASSERT_TRUE(of_int8) << of_int8.error().message;
  const PlanFigures usual = FiguresOf(asked);
  EXPECT_NEAR(of_int8->time_per_token - usual.time_per_token, 24e-3, 1e-3);  // of 24 layers
  const Result<PlanAnswer> answer = SearchPlan(asked.question);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_TRUE(answer->candidates[answer->chosen].setup.int8_kv);
  EXPECT_EQ(Describe(answer->candidates[answer->chosen]), "1 rank x 1 thread, bf16, int8 KV cache");
}

TEST(StepPricer, WeightsThatStayInACacheArePricedAsReadFromThere) {
  Asked asked(1e9, {1});
  const PlanFigures usual = FiguresOf(asked);
  cost::StepCosts& costs = asked.profile.steps.front();
  const auto experts = static_cast<size_t>(schedule::TaskKind::kExperts);
  costs.cached_tasks[experts] = costs.tasks[experts];
  for (double& value : costs.cached_tasks[experts]->per_weight_byte.value) value /= 4;
  const auto weights =
      asked.question.memory_of({.num_ranks = 1, .weights = "bf16"}, {}, 1)->weights_bytes;
  costs.cached_weight_bytes = static_cast<double>(weights) - 1;
  EXPECT_EQ(FiguresOf(asked).time_per_token, usual.time_per_token) << "they have no room";
  costs.cached_weight_bytes = static_cast<double>(weights);
  EXPECT_LT(FiguresOf(asked).time_per_token, usual.time_per_token);
  asked.question.one_host = false;  // whose caches hold less each
  EXPECT_EQ(FiguresOf(asked).time_per_token, usual.time_per_token);
}

}  // namespace
}  // namespace convene::planner
