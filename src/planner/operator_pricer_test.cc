#include "planner/operator_pricer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cost/presets.h"
#include "planner/whole_step.h"
#include "strategy/paging.h"

namespace convene::planner {
namespace {

model::ModelSpec SpecOfOperators() {
  model::LayerSpec layer;
  layer.attention = {.num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .value_dim = 128};
  layer.moe = model::MoeSpec{.num_experts = 8, .top_k = 2, .intermediate_size = 14336};
  model::ModelSpec spec;
  spec.hidden_size = 4096;
  spec.vocab_size = 32000;
  spec.layers.assign(8, layer);
  return spec;
}

// Of each of four ranks so many sequences.
WholeStep StepOfOperators(const OperatorSource& source, const Conditions& conditions, int tokens,
                          size_t count = 1) {
  const ShortModel model = Shorten(SpecOfOperators(), {});
  const auto pricer =
      source.PricerOf({.num_ranks = 4, .num_threads = 1, .weights = "bf16"}, conditions, 0);
  CHECK(pricer.ok(), "{}", pricer.error().message);
  strategy::StepOptions options;
  options.roles = strategy::Layout{.attention_dp = 4, .expert_ep = 4};
  const std::vector<std::vector<strategy::SequenceRows>> groups(
      4, std::vector(count, strategy::SequenceRows{.num_tokens = tokens}));
  const auto step = PredictWholeStep(model, options, groups, **pricer);
  CHECK(step.ok(), "{}", step.error().message);
  return *step;
}

double SecondsOfOperators(const OperatorSource& source, const Conditions& conditions, int tokens) {
  return StepOfOperators(source, conditions, tokens).seconds;
}

TEST(OperatorPricer, StepsOfAPresetTakeLongerUnderWorseConditions) {
  const cost::MachineProfile machine = *cost::Preset("a100-nvlink");
  const OperatorSource source(machine);
  EXPECT_EQ(source.ThreadsOf(8, "bf16"), (std::vector<int>{1}));
  EXPECT_TRUE(source.ThreadsOf(8, "f32").empty());
  const double usual = SecondsOfOperators(source, {}, 2048);
  EXPECT_GT(usual, 0);
  EXPECT_GT(SecondsOfOperators(source, {.machine = {.compute = 2}}, 2048), 1.3 * usual);
  EXPECT_GT(SecondsOfOperators(source, {.link = 10}, 2048), 1.1 * usual);
  const double few = SecondsOfOperators(source, {}, 1);
  EXPECT_GT(SecondsOfOperators(source, {.machine = {.memory = 2}}, 1), 1.3 * few);
  EXPECT_LT(SecondsOfOperators(source, {.machine = {.compute = 2}}, 1), 1.1 * few);
}

TEST(OperatorPricer, StepsBeyondTheTablesSaySoAndAreLessCertain) {
  const cost::MachineProfile machine = *cost::Preset("a100-nvlink");
  const OperatorSource source(machine);
  const auto pricer = source.PricerOf({.num_ranks = 4, .num_threads = 1, .weights = "bf16"}, {}, 0);
  ASSERT_TRUE(pricer.ok());
  const auto relative_width = [&](const WholeStep& step) {
    const cost::Interval interval = cost::IntervalOf(OutlineOf(step), (*pricer)->Errors());
    return interval.high / step.seconds - 1;
  };
  const WholeStep inside = StepOfOperators(source, {}, 2048);
  const WholeStep beyond = StepOfOperators(source, {}, 2048, /*count=*/512);
  EXPECT_LT(inside.extrapolated_share, 0.1);
  EXPECT_GT(beyond.extrapolated_share, 0.5);
  WholeStep as_measured = beyond;
  as_measured.extrapolated_share = 0;
  EXPECT_GT(relative_width(beyond), 1.5 * relative_width(as_measured));
}

// Errors are those of the operators that price: of a format's own where the profile has them.
TEST(OperatorPricer, ErrorsAreOfTheFormatsOperators) {
  const cost::MachineProfile machine = *cost::Preset("h100-nvlink");
  const OperatorSource source(machine);
  for (const auto& [weights, name] : {std::pair<std::string, std::string>{"bf16", "bf16"},
                                      std::pair<std::string, std::string>{"int4", "int4_wo"}}) {
    const auto pricer =
        source.PricerOf({.num_ranks = 4, .num_threads = 1, .weights = weights}, {}, 0);
    ASSERT_TRUE(pricer.ok()) << pricer.error().message;
    const std::optional<cost::ErrorRange> found =
        (*pricer)->Errors().by_kind[static_cast<size_t>(schedule::TaskKind::kExperts)];
    ASSERT_TRUE(found.has_value());
    const cost::OperatorModel& model = machine.operators.at("grouped_product " + name);
    EXPECT_EQ(found->low, model.low_factor - 1) << weights;
    EXPECT_EQ(found->high, model.high_factor - 1) << weights;
  }
}

// A step that reads half of the experts from a disk.
Result<WholeStep> PagedStep(const cost::MachineProfile& machine, const Conditions& conditions) {
  const OperatorSource source(machine);
  const ShortModel model = Shorten(SpecOfOperators(), {}, /*is_overlapping=*/true);
  const auto pricer =
      source.PricerOf({.num_ranks = 1, .num_threads = 1, .weights = "bf16"}, conditions, 0);
  CHECK(pricer.ok(), "{}", pricer.error().message);
  const int num_tokens = 64;
  const strategy::StepOptions options{.paging =
                                          strategy::PagingOf(SpecOfOperators(), /*encoder=*/false,
                                                             /*experts_in_memory=*/32, num_tokens)};
  return PredictWholeStep(model, options, {{{.num_tokens = num_tokens}}}, **pricer);
}

TEST(OperatorPricer, HostsHaveTheRateOfTheirFormat) {
  const cost::MachineProfile machine = *cost::Preset("epyc-7763");
  const OperatorSource source(machine);
  EXPECT_THAT(source.Formats(), testing::Contains("int8"));
  EXPECT_DOUBLE_EQ(source.FiguresOf({.weights = "int8"}).operations_per_second,
                   1e9 * machine.machine.int8_gops);
  EXPECT_DOUBLE_EQ(source.FiguresOf({.weights = "bf16"}).operations_per_second,
                   1e9 * machine.machine.f32_gflops);
}

TEST(OperatorPricer, StepsThatReadADiskTakeItsRateAndHaveNoPriceWithoutIt) {
  cost::MachineProfile machine = *cost::Preset("epyc-9654");
  const Result<WholeStep> unknown = PagedStep(machine, {});
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.error().message, testing::HasSubstr("whose rate the profile does not know"));

  machine.machine.disk_gbps = 2;
  const Result<WholeStep> step = PagedStep(machine, {});
  ASSERT_TRUE(step.ok()) << step.error().message;
  // 8 layers of 6 experts of three matrices in bf16: of 32 in memory two of each layer stay, and
  // the others are on their way.
  const double read_seconds = 8.0 * 6 * 3 * 4096 * 14336 * 2 / 2e9;
  EXPECT_GE(step->seconds, 0.99 * read_seconds);
  EXPECT_LT(step->seconds, 1.3 * read_seconds);
  EXPECT_GT(PagedStep(machine, {.disk = 3})->seconds, 2.5 * step->seconds);
  EXPECT_EQ(OperatorSource(machine).FiguresOf({.weights = "bf16"}).disk_bytes_per_second, 2e9);

  cost::MachineProfile gpu = *cost::Preset("a100-nvlink");
  gpu.machine.disk_gbps = 2;
  const Result<WholeStep> on_gpu = PagedStep(gpu, {});
  ASSERT_FALSE(on_gpu.ok());
  EXPECT_THAT(on_gpu.error().message, testing::HasSubstr("where CPUs compute"));
}

TEST(OperatorPricer, FormatsWithoutOperatorsAreRefused) {
  const cost::MachineProfile machine = *cost::Preset("v100-pcie3");
  const OperatorSource source(machine);
  EXPECT_FALSE(source.PricerOf({.num_ranks = 1, .weights = "f32"}, {}, 0).ok());
  // It has no rate for products of bytes.
  EXPECT_TRUE(source.ThreadsOf(1, "int8").empty());
}

}  // namespace
}  // namespace convene::planner
