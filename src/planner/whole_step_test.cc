#include "planner/whole_step.h"

#include <gtest/gtest.h>

#include <numeric>

#include "planner/invented_costs_test.h"
#include "planner/workload_steps.h"

namespace convene::planner {
namespace {

// The first layers are dense, and every third one sees a window.
model::ModelSpec MixedSpec(int num_layers) {
  model::ModelSpec spec = InventedSpec(num_layers);
  for (int layer = 0; layer < num_layers; ++layer) {
    if (layer % 3 == 2) spec.layers[layer].attention.window = 128;
    if (layer >= 3) continue;
    spec.layers[layer].moe.reset();
    spec.layers[layer].dense_intermediate_size = 4096;
  }
  return spec;
}

struct Case {
  strategy::Layout layout;
  strategy::Pipeline pipeline;
};

std::vector<Case> Cases() {
  const strategy::Layout expert{.attention_dp = 4, .expert_ep = 4};
  const strategy::Layout tensor{.attention_tp = 4, .expert_tp = 4};
  const strategy::Layout mixed{
      .attention_tp = 2, .attention_dp = 2, .expert_ep = 2, .expert_tp = 2};
  return {{{}, {}},
          {expert, {}},
          {tensor, {}},
          {mixed, {}},
          {expert, {.chunks = 4}},
          {expert, {.chunks = 4, .cut = strategy::ChunkCut::kExperts}},
          {expert, {.micro_batches = 2}},
          {expert, {.micro_batches = 4}},
          {tensor, {.micro_batches = 2}},
          {mixed, {.chunks = 2, .micro_batches = 3}}};
}

// The error of the extension, as a share of what the simulation of all layers says.
double ErrorOf(const model::ModelSpec& spec, const Case& one, const StepSequences& groups,
               const std::vector<cost::ExpertShares>& shares = {}) {
  const cost::StepCosts costs = InventedCosts(one.layout.num_ranks(), 1e9);
  const MeasuredPricer pricer(costs);
  const strategy::StepOptions options{.roles = one.layout, .pipeline = one.pipeline};
  const auto whole =
      PredictStep({.spec = spec, .options = options, .groups = groups, .shares = shares}, pricer);
  const auto extended = PredictWholeStep(Shorten(spec, shares, one.pipeline.micro_batches > 1),
                                         options, groups, pricer);
  EXPECT_TRUE(whole.ok() && extended.ok());
  const double sum = std::accumulate(extended->path.begin(), extended->path.end(), 0.0);
  EXPECT_NEAR(sum + extended->once_seconds, extended->seconds, 1e-9);
  return extended->seconds / whole->seconds - 1;
}

TEST(WholeStep, FewLayersSayWhatAllOfThemDo) {
  for (const int num_layers : {1, 2, 3, 60}) {
    for (const model::ModelSpec& spec : {InventedSpec(num_layers), MixedSpec(num_layers)}) {
      for (const Case& one : Cases()) {
        const strategy::Roles roles = one.layout;
        const StepSequences prefill =
            PrefillSteps(std::vector<RequestLengths>(8, {256, 1}), roles, 512).front().groups;
        // With micro-batches layers overlap, and one simulated layer is not exactly the mean one.
        const double bound = one.pipeline.micro_batches > 1 ? 0.02 : 1e-6;
        EXPECT_NEAR(ErrorOf(spec, one, prefill), 0, bound)
            << num_layers << " layers, " << one.pipeline.micro_batches << " micro-batches, "
            << one.pipeline.chunks << " chunks";
        EXPECT_NEAR(ErrorOf(spec, one, DecodeStep(16, 300, 256, roles)), 0, bound)
            << num_layers << " layers, decode";
      }
    }
  }
}

TEST(WholeStep, FewLayersOfAnEncoderSayWhatAllOfThemDo) {
  for (const int num_layers : {1, 2, 3, 12}) {
    const model::ModelSpec spec = InventedEncoderDecoder(num_layers);
    for (const Case& one : Cases()) {
      if (one.pipeline.micro_batches > 1) continue;  // an encoder's inputs stay whole
      const cost::StepCosts costs = InventedCosts(one.layout.num_ranks(), 1e9);
      const MeasuredPricer pricer(costs);
      const strategy::StepOptions options{.roles = one.layout, .pipeline = one.pipeline};
      const StepSequences inputs =
          EncoderSteps(std::vector<RequestLengths>(8, {60, 1}), options.roles, 512).front().inputs;
      const auto whole = PredictStep(
          {.spec = spec, .options = options, .groups = inputs, .is_encoder = true}, pricer);
      const auto extended = PredictWholeStep(ShortenEncoder(spec, {}), options, inputs, pricer);
      ASSERT_TRUE(whole.ok() && extended.ok());
      EXPECT_NEAR(extended->seconds / whole->seconds, 1, 1e-6) << num_layers << " layers";
    }
  }
}

TEST(WholeStep, AnEncodersTokensSeeTheirWholeInput) {
  const model::ModelSpec spec = InventedEncoderDecoder(4);
  const cost::StepCosts costs = InventedCosts(1, 1e9);
  const MeasuredPricer pricer(costs);
  const auto seconds = [&](int length) {
    const StepSequences inputs =
        EncoderSteps(std::vector<RequestLengths>(1024 / length, {length, 1}), {}, 1024)
            .front()
            .inputs;
    const auto step = PredictWholeStep(ShortenEncoder(spec, {}), {}, inputs, pricer);
    EXPECT_TRUE(step.ok());
    return step->seconds;
  };
  // As many tokens and weights, and the keys that each token sees: 896 more, of 4 layers of 16
  // heads of 64 elements, twice 2 operations of 10 ps.
  EXPECT_NEAR(seconds(1024) - seconds(128), 1024.0 * 896 * 4 * 16 * 64 * 4 * 1e-11, 1e-4);
}

TEST(WholeStep, LayersThatConcentrateTheirTokensDifferentlyAreSixOfThem) {
  const model::ModelSpec spec = InventedSpec(48);
  std::vector<cost::ExpertShares> shares;
  for (int layer = 0; layer < 48; ++layer) {
    std::vector<double> counts(16, 1);
    counts[layer % 16] = 1 + (layer * 7) % 12;
    shares.push_back(cost::SharesFromCounts(counts, 2));
  }
  EXPECT_LE(Shorten(spec, shares).spec.num_layers(), 8);
  for (const Case& one : Cases()) {
    const StepSequences prefill =
        PrefillSteps(std::vector<RequestLengths>(8, {256, 1}), one.layout, 512).front().groups;
    EXPECT_NEAR(ErrorOf(spec, one, prefill, shares), 0, 0.05);
  }
}

TEST(WholeStep, ImbalanceIsThatOfTheBusiestRank) {
  const model::ModelSpec spec = InventedSpec(8);
  std::vector<double> counts(16, 1);
  for (int expert = 0; expert < 4; ++expert) counts[expert] = 5;
  const cost::StepCosts costs = InventedCosts(4, 1e9);
  const strategy::Layout layout{.attention_dp = 4, .expert_ep = 4};
  const auto step = PredictWholeStep(
      Shorten(spec, {cost::SharesFromCounts(counts, 2)}), {.roles = layout},
      PrefillSteps(std::vector<RequestLengths>(4, {512, 1}), layout, 512).front().groups,
      MeasuredPricer(costs));
  ASSERT_TRUE(step.ok()) << step.error().message;
  EXPECT_NEAR(step->imbalance, 4 * 20.0 / 32, 0.1);
}

TEST(WholeStep, ImbalanceIsOverRanksThatHaveExperts) {
  const model::ModelSpec spec = InventedSpec(8);
  const cost::StepCosts costs = InventedCosts(4, 1e9);
  const strategy::Layout layout{.attention_dp = 2, .expert_ep = 2, .disaggregates = true};
  const auto step = PredictWholeStep(
      Shorten(spec, {}), {.roles = layout},
      PrefillSteps(std::vector<RequestLengths>(4, {512, 1}), layout, 1024).front().groups,
      MeasuredPricer(costs));
  ASSERT_TRUE(step.ok()) << step.error().message;
  EXPECT_NEAR(step->imbalance, 1, 1e-9);
}

// Of few tokens some rank has more than the others whatever the router prefers, and these wait.
TEST(WholeStep, ImbalanceIsThatOfRoutingsAsTheyAreDrawn) {
  const model::ModelSpec spec = InventedSpec(8);
  const cost::StepCosts costs = InventedCosts(4, 1e12);
  const strategy::Layout layout{.attention_dp = 4, .expert_ep = 4};
  const auto step_of = [&](int batch) {
    return *PredictWholeStep(Shorten(spec, {}), {.roles = layout},
                             DecodeStep(batch, 100, 80, layout), MeasuredPricer(costs));
  };
  const WholeStep few = step_of(4);
  const double experts = few.path[static_cast<size_t>(schedule::TaskKind::kExperts)];
  // What is waited for is the busiest rank's work: the others have the mean.
  const Result<PredictedStep> expected = PredictStep(
      {.spec = spec, .options = {.roles = layout}, .groups = DecodeStep(4, 100, 80, layout)},
      MeasuredPricer(costs));
  double mean = 0;
  for (size_t id = 0; id < expected->schedule.tasks.size(); ++id) {
    if (expected->schedule.tasks[id].kind != schedule::TaskKind::kExperts) continue;
    mean += expected->timeline.tasks[id].seconds() / 4;
  }
  EXPECT_GT(few.imbalance, 1.2);
  EXPECT_NEAR(few.imbalance, experts / mean, 0.02 * few.imbalance);
  EXPECT_LT(step_of(256).imbalance, few.imbalance);
  EXPECT_NEAR(step_of(1 << 15).imbalance, 1, 1e-9);
}

}  // namespace
}  // namespace convene::planner
