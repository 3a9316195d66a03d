#include "planner/workload_figures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "planner/invented_costs_test.h"

namespace convene::planner {
namespace {

constexpr double kPromptSeconds = 0.1;
constexpr double kDecodeSeconds = 0.15;
constexpr int kPromptTokens = 512;

// A step with a whole prompt, and any other one, take what is said above, whatever their tasks.
class PricerOfWholeSteps : public StepPricer {
 public:
  explicit PricerOfWholeSteps(double sampling_seconds = 0) : sampling_seconds_(sampling_seconds) {}

  Result<SchedulePrices> Price(const model::ModelSpec& /*spec*/,
                               const schedule::Schedule& /*schedule*/,
                               const schedule::ActivityGraph& graph,
                               const cost::Sizes& sizes) const override {
    const auto num_activities = static_cast<size_t>(graph.num_activities());
    SchedulePrices priced;
    priced.prices.fixed_seconds.assign(num_activities, 0);
    priced.prices.first_demand.assign(num_activities + 1, 0);
    const bool is_prompt = sizes({.kind = schedule::SizeKind::kTokens, .from = 0}) >= kPromptTokens;
    priced.once_seconds = is_prompt ? kPromptSeconds : kDecodeSeconds;
    return priced;
  }
  cost::StepErrors Errors() const override { return {}; }
  double SamplingSeconds(const model::ModelSpec& /*spec*/) const override {
    return sampling_seconds_;
  }

 private:
  double sampling_seconds_;
};

Result<PlanFigures> Predicted(const Workload& workload, const PhaseStepOptions& options,
                              const StepPricer& pricer) {
  int num_simulated = 0;
  return PredictWorkload(workload, options, pricer, &num_simulated);
}

PlanFigures FiguresWith(const StepPricer& pricer, const Workload& workload,
                        const strategy::Layout& layout = {}, int epoch_steps = 0) {
  const model::ModelSpec spec = InventedSpec(2);
  const ShortModel model = Shorten(spec, {});
  const Result<PlanFigures> figures = Predicted(workload,
                                                {.whole_spec = spec,
                                                 .model = model,
                                                 .overlapping_model = model,
                                                 .roles = layout,
                                                 .decode_roles = layout,
                                                 .step_tokens = kPromptTokens,
                                                 .changes_layout = epoch_steps > 0,
                                                 .phase_change = {.epoch_steps = epoch_steps}},
                                                pricer);
  EXPECT_TRUE(figures.ok()) << figures.error().message;
  return figures ? *figures : PlanFigures{};
}

Workload StreamOf(int gen_tokens, double rate) {
  return {.requests = {{kPromptTokens, gen_tokens}}, .arrival_rate = rate};
}

// Of each second prompts take 0.1 s. Simulated with steps of decode in all of the rest: 0.0806 s.
TEST(WorkloadFigures, APromptWaitsForTheStepOfDecodeThatIsUnderWay) {
  const PricerOfWholeSteps pricer;
  const double queue = 0.01 / 1.8;
  // A step of 0.15 s in each second, and 59 tokens in steps of 10 sequences.
  EXPECT_NEAR(FiguresWith(pricer, StreamOf(2, 1)).ttft, 0.1 + (0.01 + 0.15 * 0.15) / 1.8, 1e-9);
  const PlanFigures many = FiguresWith(pricer, StreamOf(60, 1));
  EXPECT_EQ(many.batch, 10);
  EXPECT_NEAR(many.ttft, 0.1 + (0.01 + 59 * 0.15 / 10 * 0.15) / 1.8, 1e-9);
  // Answers of one token have no such step.
  EXPECT_NEAR(FiguresWith(pricer, StreamOf(1, 1)).ttft, 0.1 + queue, 1e-9);
  // An epoch has the step in it.
  EXPECT_NEAR(FiguresWith(pricer, StreamOf(2, 1), {}, 10).ttft, 0.1 + queue + 0.75, 1e-9);
  // Those that are all there at once wait for nothing but each other.
  const Workload batch{.requests = {{kPromptTokens, 2}}, .batch = 1};
  EXPECT_NEAR(FiguresWith(pricer, batch).ttft, 0.1, 1e-9);
}

// By it plans are compared, and reasons told: of as many prompts as run together it would be as
// many times too long.
TEST(WorkloadFigures, AScoreIsMadeOfThePathAndOfWaiting) {
  cost::StepCosts costs = InventedCosts(1, 1e9);
  costs.step_once = 0;
  const MeasuredPricer pricer(costs);
  const double prompt = FiguresWith(pricer, StreamOf(60, 1e-6)).ttft;
  int most_together = 0;
  for (const double busy : {1e-3, 0.1, 0.5, 0.7}) {
    for (const Objective objective :
         {Objective::kThroughput, Objective::kTtft, Objective::kTimePerToken}) {
      Workload workload = StreamOf(60, busy / prompt);
      workload.objective = objective;
      const PlanFigures figures = FiguresWith(pricer, workload);
      const double path = std::accumulate(figures.path.begin(), figures.path.end(), 0.0);
      EXPECT_NEAR(path + figures.waiting_seconds, figures.score, 1e-9 * figures.score);
      EXPECT_NEAR(cost::IntervalOf(OutlineOfScore(figures), pricer.Errors()).high, figures.score,
                  1e-9 * figures.score);
      if (objective == Objective::kTtft) {
        EXPECT_EQ(figures.score, figures.ttft);
        EXPECT_NEAR(path, prompt, 1e-3 * prompt);
      }
      if (objective == Objective::kTimePerToken) {
        EXPECT_EQ(figures.score, figures.time_per_token);
      }
      if (objective == Objective::kThroughput) {
        // Whatever keeps up generates equally much; a request takes its prompt and its steps.
        EXPECT_NEAR(figures.score, figures.ttft + 59 * figures.time_per_token,
                    1e-9 * figures.score);
      }
      EXPECT_GT(figures.waiting_seconds, 0);
      most_together = std::max(most_together, figures.batch);
    }
  }
  EXPECT_GT(most_together, 2);
}

TEST(WorkloadFigures, GoodputHasRoomForWhatRunsTogether) {
  const PricerOfWholeSteps pricer;
  const model::ModelSpec spec = InventedSpec(2);
  const ShortModel model = Shorten(spec, {});
  const Workload workload{
      .requests = {{kPromptTokens, 2}}, .batch = 64, .objective = Objective::kGoodput};
  const auto figures_with = [&](int room) {
    return Predicted(workload,
                     {.whole_spec = spec,
                      .model = model,
                      .overlapping_model = model,
                      .step_tokens = kPromptTokens,
                      .has_room = [room](int batch) { return batch <= room; }},
                     pricer);
  };
  for (const int room : {1, 2, 9, 64, 1000}) {
    const Result<PlanFigures> figures = figures_with(room);
    ASSERT_TRUE(figures.ok()) << figures.error().message;
    EXPECT_LE(figures->batch, room);
    EXPECT_GT(2 * figures->batch, std::min(room, 64));
  }
  EXPECT_FALSE(figures_with(0).ok());
}

// Of eight sequences each of four groups of ranks has two.
TEST(WorkloadFigures, AStepHasRoomForATokenOfEachSequenceOfItsGroup) {
  const PricerOfWholeSteps pricer;
  const model::ModelSpec spec = InventedSpec(2);
  const ShortModel model = Shorten(spec, {});
  const Workload workload{.requests = {{64, 2}}, .batch = 8};
  const auto ttft = [&](int groups, int step_tokens, bool keeps) -> Result<double> {
    const strategy::Layout layout{.attention_dp = groups, .expert_ep = groups};
    const Result<PlanFigures> figures = Predicted(workload,
                                                  {.whole_spec = spec,
                                                   .model = model,
                                                   .overlapping_model = model,
                                                   .roles = layout,
                                                   .decode_roles = layout,
                                                   .step_tokens = step_tokens,
                                                   .keeps_step_tokens = keeps},
                                                  pricer);
    if (!figures) return figures.error();
    return figures->ttft;
  };
  // Two prompts of 64 tokens in each group.
  EXPECT_NEAR(*ttft(4, 2, true), 64 * kDecodeSeconds, 1e-9);
  EXPECT_NEAR(*ttft(4, 1, false), 64 * kDecodeSeconds, 1e-9) << "two tokens, not eight";
  EXPECT_NEAR(*ttft(1, 2, false), 64 * kDecodeSeconds, 1e-9) << "eight tokens of eight prompts";
  for (const auto& [groups, step_tokens] : {std::pair(4, 1), std::pair(1, 7)}) {
    const Result<double> refused = ttft(groups, step_tokens, true);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("raise --chunk"), std::string::npos);
  }
}

// As many sequences as steps of all groups have room for.
TEST(WorkloadFigures, MoreGroupsKeepUpWithMoreRequests) {
  const PricerOfWholeSteps pricer;
  const model::ModelSpec spec = InventedSpec(2);
  const ShortModel model = Shorten(spec, {});
  const Workload workload{.requests = {{4, 61}}, .arrival_rate = 0.5};
  const auto batch_of = [&](int groups) {
    const strategy::Layout layout{.attention_dp = groups, .expert_ep = groups};
    const Result<PlanFigures> figures = Predicted(workload,
                                                  {.whole_spec = spec,
                                                   .model = model,
                                                   .overlapping_model = model,
                                                   .roles = layout,
                                                   .decode_roles = layout,
                                                   .step_tokens = 4},
                                                  pricer);
    return figures ? figures->batch : 0;
  };
  // Prompts take 0.075 of the time, and 30 tokens are generated in each second of it.
  EXPECT_EQ(batch_of(1), 0) << "four sequences generate 26.7 a second";
  EXPECT_EQ(batch_of(2), 5);
}

TEST(WorkloadFigures, RanksThatDivideTheHeadSampleWithinTheStep) {
  const PricerOfWholeSteps pricer(/*sampling_seconds=*/2);
  const Workload workload{.requests = {{kPromptTokens, 2}}, .batch = 4};
  strategy::Layout layout{.attention_tp = 2, .expert_tp = 2};
  const PlanFigures whole = FiguresWith(pricer, workload, layout);
  EXPECT_NEAR(whole.time_per_token, kDecodeSeconds + 4 * 2, 1e-9);
  EXPECT_NEAR(whole.ttft, 4 * kPromptSeconds + 4 * 2, 1e-9);
  EXPECT_EQ(SamplingSeconds(pricer, InventedSpec(2), layout, 4), 8);
  layout.divides_head = true;
  const PlanFigures divided = FiguresWith(pricer, workload, layout);
  EXPECT_NEAR(divided.time_per_token, kDecodeSeconds, 1e-9);
  EXPECT_NEAR(divided.ttft, 4 * kPromptSeconds, 1e-9);
  EXPECT_EQ(SamplingSeconds(pricer, InventedSpec(2), layout, 4), 0);
}

}  // namespace
}  // namespace convene::planner
