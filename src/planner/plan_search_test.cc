#include "planner/plan_search.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "planner/asked_question_test.h"
#include "planner/explain_plan.h"
#include "planner/plan_search_test.h"

namespace convene::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(PlanSearch, TakesOnlyPlansWithTheLogitsOfOneRankUnlessMoreIsAllowed) {
  Asked asked(1e10);
  asked.workload.batch = 1;
  const PlanAnswer careful = Search(asked);
  EXPECT_TRUE(KeepsLogits(asked.spec, ChosenOf(careful).plan, true));
  // One sequence: only ranks that divide heads and experts have less to read.
  asked.question.allowed.layout = true;
  const PlanAnswer free = Search(asked);
  EXPECT_EQ(ChosenOf(free).plan.layout.attention_tp, 4) << Describe(ChosenOf(free));
  EXPECT_LT(ChosenOf(free).figures->score, ChosenOf(careful).figures->score);
  for (const Candidate& candidate : careful.candidates) {
    if (!candidate.is_ranked() || candidate.plan.layout.attention_tp == 1) continue;
    EXPECT_EQ(candidate.needs, std::vector<std::string>{"layout"}) << Describe(candidate);
  }
}

TEST(PlanSearch, ADivisionOfDecodeThatWasAskedForIsTheOnlyOne) {
  Asked asked(1e9, {2});
  asked.question.constraints.decode_experts = "tp2";
  const PlanAnswer answer = Search(asked);
  int num_both = 0;
  for (const Candidate& one : answer.candidates) {
    if (!one.is_ranked()) continue;
    ASSERT_TRUE(one.plan.decode.has_value()) << Describe(one);
    EXPECT_EQ(one.plan.decode->expert_tp, 2) << Describe(one);
    EXPECT_NE(one.plan.layout.expert_tp, 2) << Describe(one);
    num_both += one.plan.phase_change.keeps_both ? 1 : 0;
    // What both phases take apart, and the moves, are in its price.
    EXPECT_EQ(one.figures->transition_seconds > 0, !one.plan.phase_change.keeps_both);
  }
  EXPECT_GT(num_both, 0);
  asked.question.constraints.decode_experts = "tp4";
  EXPECT_THAT(ErrorOf(asked), HasSubstr("4"));
}

TEST(PlanSearch, UsesFewerRanksOnTheSameCoresWhereThatIsBest) {
  Asked asked(1e6, {1, 2});  // a link on which nothing is worth sending
  asked.profile.steps[0].num_threads = 2;
  asked.question.constraints.num_cores = 2;
  EXPECT_EQ(ChosenOf(Search(asked)).setup.num_ranks, 1);
  asked.question.constraints.num_cores = 1;  // neither fits
  EXPECT_FALSE(SearchPlan(asked.question).ok());
  // Nothing is said of numbers of ranks that were not asked for and of which nothing is known.
  Asked only(1e9, {2});
  only.question.constraints.num_cores = 2;
  for (const Candidate& one : Search(only).candidates) EXPECT_EQ(one.setup.num_ranks, 2);
}

TEST(PlanSearch, FindsTheBestOfAllThatCouldBeEnumerated) {
  for (const double link : {1e8, 1e9, 1e10}) {
    Asked asked(link);
    asked.question.allowed.layout = true;
    PlanSearch search(asked.question);
    const Result<PlanAnswer> answer = SearchPlan(search);
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    double best = answer->candidates[answer->fastest].figures->score;
    // Any layout of any number of ranks with any of these pipelines.
    for (const Candidate& candidate : answer->candidates) {
      if (!candidate.is_ranked() || candidate.plan.pipeline != strategy::Pipeline{}) continue;
      if (candidate.setup.num_ranks == 1 || candidate.plan.layout.disaggregates) continue;
      for (const int chunks : {1, 4}) {
        for (const int micro_batches : {1, 2}) {
          for (const auto cut : {strategy::ChunkCut::kTokens, strategy::ChunkCut::kExperts}) {
            plan::Plan plan = candidate.plan;
            plan.pipeline = {.chunks = chunks, .cut = cut, .micro_batches = micro_batches};
            if (!plan::CheckLayout(plan)) continue;  // chunks of whole layers
            const auto figures = search.FiguresOf(candidate.setup, plan, asked.workload);
            ASSERT_TRUE(figures.ok());
            EXPECT_GE(figures->score, best * (1 - 1e-9)) << plan::ToText(plan.layout);
          }
        }
      }
    }
  }
}

TEST(PlanSearch, PlansEncoderDecoders) {
  Asked asked(1e9);
  asked.spec = InventedEncoderDecoder(8);
  asked.workload = {.requests = {{60, 20}, {300, 10}, {90, 30}}, .batch = 24};
  PlanSearch search(asked.question);
  const Result<PlanAnswer> answer = SearchPlan(search);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  const Candidate& chosen = ChosenOf(*answer);
  EXPECT_GT(chosen.setup.num_ranks, 1) << Describe(chosen);
  for (const Candidate& one : answer->candidates) {
    if (!one.is_ranked()) continue;
    EXPECT_EQ(one.plan.layout.stages, 1);
    EXPECT_FALSE(one.plan.layout.disaggregates);
    EXPECT_FALSE(one.plan.decode.has_value());
  }
  // Prompts are the encoder's, whose steps are drawn, too.
  const auto drawn = search.DrawStep(chosen.setup, chosen.plan, strategy::Phase::kPrefill);
  ASSERT_TRUE(drawn.ok()) << drawn.error().message;
  EXPECT_TRUE(std::ranges::any_of(drawn->schedule.tasks,
                                  [](const schedule::Task& task) { return task.encoder; }));
  // Half of the encoder takes half of its time.
  const double ttft = chosen.figures->ttft;
  asked.spec.encoder_layers.resize(4);
  PlanSearch smaller(asked.question);
  const auto half = smaller.FiguresOf(chosen.setup, chosen.plan, asked.workload);
  ASSERT_TRUE(half.ok()) << half.error().message;
  EXPECT_LT(half->ttft, 0.75 * ttft);
  EXPECT_DOUBLE_EQ(half->time_per_token, chosen.figures->time_per_token);
  asked.question.step_tokens = 256;
  EXPECT_THAT(ErrorOf(asked), HasSubstr("300 tokens"));
}

TEST(PlanSearch, UsesFewerRanksWhereLinksAreSlow) {
  Asked slow(1e6);
  EXPECT_EQ(ChosenOf(Search(slow)).setup.num_ranks, 1);
  Asked fast(1e10);
  EXPECT_EQ(ChosenOf(Search(fast)).setup.num_ranks, 4);
}

// Exact, so that nothing need be allowed.
TEST(PlanSearch, DividesAHeadThatIsMuchOfAStep) {
  Asked asked(1e9, {1, 2});
  asked.spec.vocab_size = 200000;
  const Candidate chosen = ChosenOf(Search(asked));
  EXPECT_TRUE(chosen.plan.layout.divides_head) << Describe(chosen);
  EXPECT_THAT(Describe(chosen), HasSubstr("head=tp2"));
  EXPECT_TRUE(KeepsLogits(asked.spec, chosen.plan, /*one_host=*/true));
  const double divided = chosen.figures->score;
  asked.question.passes_off = {"heads"};
  const PlanAnswer without = Search(asked);
  EXPECT_FALSE(ChosenOf(without).plan.layout.divides_head);
  EXPECT_GT(ChosenOf(without).figures->score, divided);
  // A layout that was asked for is taken as it is.
  asked.question.passes_off = {};
  asked.question.constraints.layout = strategy::Layout{.attention_dp = 2, .expert_ep = 2};
  EXPECT_FALSE(ChosenOf(Search(asked)).plan.layout.divides_head);
}

// Of few rows some ranks have none, and would have nothing to do in a dense block.
TEST(PlanSearch, DividesDenseBlocksThatAreMuchOfAStep) {
  Asked asked(1e9, {1, 2});
  asked.question.allowed.layout = true;
  model::LayerSpec dense = asked.spec.layers.front();
  dense.moe.reset();
  dense.dense_intermediate_size = 60000;
  asked.spec.layers.insert(asked.spec.layers.begin(), dense);
  const Candidate chosen = ChosenOf(Search(asked));
  EXPECT_TRUE(chosen.plan.layout.divides_dense) << Describe(chosen);
  EXPECT_THAT(Describe(chosen), HasSubstr("dense=tp2"));
  EXPECT_FALSE(KeepsLogits(asked.spec, chosen.plan, /*one_host=*/true));
  asked.question.allowed.layout = false;
  EXPECT_FALSE(ChosenOf(Search(asked)).plan.layout.divides_dense);
}

// One row from rank to rank, where other layouts exchange rows in every layer.
TEST(PlanSearch, DividesLayersWhereLinksAreSlowAndThereAreManySequences) {
  Asked asked(2e7, {1, 2, 4});
  asked.workload.batch = 32;
  const PlanAnswer answer = Search(asked);
  const Candidate& chosen = ChosenOf(answer);
  EXPECT_GT(chosen.plan.layout.stages, 1) << Describe(chosen);
  EXPECT_GE(chosen.plan.pipeline.micro_batches, chosen.plan.layout.stages);
  EXPECT_EQ(chosen.plan.pipeline.chunks, 1);
  EXPECT_TRUE(KeepsLogits(asked.spec, chosen.plan, /*one_host=*/false));
  EXPECT_THAT(Describe(chosen), HasSubstr("layers=pp"));
  // Without micro-batches one rank computes while the others wait.
  asked.question.passes_off = {"micro_batches"};
  EXPECT_EQ(ChosenOf(Search(asked)).plan.layout.stages, 1);
}

// A rank of half the rate has half the layers.
TEST(PlanSearch, UnlikeRanksHaveAsManyLayersAsTheyAreFast) {
  Asked asked(2e7, {2});
  asked.profile.steps.front().rank_states = {{}, {.memory = 2, .compute = 2}};
  asked.workload.batch = 32;
  asked.question.constraints.num_ranks = 2;
  const PlanAnswer answer = Search(asked);
  const Candidate& chosen = ChosenOf(answer);
  EXPECT_EQ(chosen.plan.layout.stage_weights, (std::vector{2, 1})) << Describe(chosen);
}

TEST(PlanSearch, OverlapsWhereExchangesTakeAsLongAsComputing) {
  Asked asked(2e8, {4});
  const strategy::Pipeline& pipeline = ChosenOf(Search(asked)).plan.pipeline;
  EXPECT_GT(pipeline.chunks * pipeline.micro_batches, 1);
  asked.question.passes_off = {"disaggregated", "pipelines", "micro_batches"};
  const PlanAnswer plain = Search(asked);
  EXPECT_EQ(ChosenOf(plain).plan.pipeline, strategy::Pipeline{});
  const auto off = std::ranges::count_if(plain.passes, &PassReport::is_off);
  EXPECT_EQ(off, 3);
}

TEST(PlanSearch, SaysWhatTheClosedFormWouldDivideExpertsInto) {
  Asked asked(2e8, {4});
  const PlanAnswer answer = Search(asked);
  const auto pass = std::ranges::find(answer.passes, "pipelines", &PassReport::name);
  ASSERT_NE(pass, answer.passes.end());
  EXPECT_THAT(pass->remark, HasSubstr("the closed form of EPS-MoE wants"));
  EXPECT_THAT(pass->remark, HasSubstr("of simulated steps those with"));
  asked.question.passes_off = {"pipelines"};
  const PlanAnswer without = Search(asked);
  for (const PassReport& each : without.passes) EXPECT_EQ(each.remark, "");
}

TEST(PlanSearch, SaysOfEachPassWhatItDid) {
  Asked asked(1e9);
  const PlanAnswer answer = Search(asked);
  int added = 0;
  int simulated = 0;
  for (const PassReport& pass : answer.passes) {
    added += pass.num_added;
    simulated += pass.num_simulated;
    EXPECT_FALSE(pass.purpose.empty());
  }
  EXPECT_EQ(added, std::ssize(answer.candidates));
  EXPECT_EQ(simulated, answer.num_simulated);
  // Ranked ones come first, the best before.
  for (size_t i = 1; i < answer.candidates.size(); ++i) {
    const Candidate& before = answer.candidates[i - 1];
    const Candidate& one = answer.candidates[i];
    EXPECT_TRUE(before.is_ranked() || !one.is_ranked());
    if (one.is_ranked()) {
      EXPECT_LE(before.figures->score, one.figures->score);
    }
    if (!one.is_ranked()) {
      EXPECT_FALSE(one.reason.empty()) << Describe(one);
    }
  }
  asked.question.passes_off = {"prices"};
  EXPECT_THAT(ErrorOf(asked), HasSubstr("no pass prices that could be switched off"));
}

TEST(PlanSearch, WhatIsNotKnownNamesTheCommandThatMeasuresIt) {
  Asked asked(1e9, {1, 2});
  asked.question.num_ranks = 4;
  const PlanAnswer answer = Search(asked);
  const auto unknown = std::ranges::find_if(
      answer.candidates, [](const Candidate& one) { return one.setup.num_ranks == 4; });
  ASSERT_NE(unknown, answer.candidates.end());
  EXPECT_THAT(unknown->reason,
              HasSubstr("mpirun -n 4 --bind-to none convene measure --steps bf16"));
  asked.question.formats = {"int8"};
  EXPECT_THAT(ErrorOf(asked), HasSubstr("convene measure --steps int8"));
}

TEST(PlanSearch, ChunksOfExpertsEndWhereRoutingSays) {
  Asked asked(3e8, {2});
  // Nearly all that a rank's experts do, the first two of them do.
  for (const model::LayerSpec& layer : asked.spec.layers) {
    const int num_experts = layer.moe->num_experts;
    std::vector<double> counts(num_experts, 1);
    for (const int expert : {0, 1, num_experts / 2, num_experts / 2 + 1}) counts[expert] = 100;
    asked.workload.routing.counts.push_back(std::move(counts));
  }
  asked.question.constraints.pipeline =
      strategy::Pipeline{.chunks = 4, .cut = strategy::ChunkCut::kExperts};
  const Candidate* even = nullptr;
  const Candidate* cut = nullptr;
  const PlanAnswer answer = Search(asked);  // the best come first
  for (const Candidate& one : answer.candidates) {
    if (!one.is_ranked() || one.plan.pipeline.micro_batches > 1) continue;
    const Candidate*& found = one.plan.pipeline.cuts.empty() ? even : cut;
    if (found == nullptr) found = &one;
  }
  ASSERT_NE(even, nullptr);
  ASSERT_NE(cut, nullptr);
  EXPECT_EQ(cut->added_by, "cuts");
  EXPECT_EQ(cut->plan.pipeline.cuts.size(), 3u);
  EXPECT_LT(cut->figures->score, even->figures->score);
  EXPECT_THAT(Describe(*cut), HasSubstr("4 chunks of experts cut at "));
}

TEST(PlanSearch, OfManyRanksOtherFormatsAreComparedInTheBestLayoutsAlone) {
  Asked asked(1e9, {24}, {"bf16", "int8"});
  asked.question.allowed.layout = true;
  asked.question.passes_off = {"hybrid", "disaggregated", "pipelines", "micro_batches"};
  asked.question.memory_of = [](const RankSetup&, const plan::Plan&, int) -> Result<RankMemory> {
    return RankMemory{.weights_bytes = 1};
  };
  const auto count_left_out = [](const PlanAnswer& answer) {
    return std::ranges::count_if(answer.candidates, [](const Candidate& one) {
      return one.reason.find("best layouts are compared") != std::string::npos;
    });
  };
  const PlanAnswer answer = Search(asked);
  std::set<std::string> compared;
  for (const Candidate& one : answer.candidates) {
    if (one.is_ranked() && one.setup.weights == "int8")
      compared.insert(plan::ToText(one.plan.layout));
  }
  EXPECT_EQ(compared.size(), 4u);
  EXPECT_GT(count_left_out(answer), 8);
  asked.question.allowed.weights = true;
  EXPECT_EQ(count_left_out(Search(asked)), 0);
}

TEST(PlanSearch, ObjectivesAreWhatIsSmall) {
  Asked asked(1e9);
  asked.question.allowed.layout = true;
  double throughput = 0;
  for (const Objective objective :
       {Objective::kThroughput, Objective::kTtft, Objective::kTimePerToken}) {
    asked.workload.objective = objective;
    const PlanAnswer answer = Search(asked);
    const PlanFigures& best = *answer.candidates[answer.fastest].figures;
    for (const Candidate& candidate : answer.candidates) {
      if (!candidate.is_ranked() || !candidate.is_allowed()) continue;
      const PlanFigures& figures = *candidate.figures;
      if (objective == Objective::kThroughput) {
        EXPECT_LE(figures.throughput, best.throughput);
      }
      if (objective == Objective::kTtft) {
        EXPECT_GE(figures.ttft, best.ttft);
      }
      if (objective == Objective::kTimePerToken) {
        EXPECT_GE(figures.time_per_token, best.time_per_token);
      }
    }
    throughput = std::max(throughput, best.throughput);
  }
  EXPECT_GT(throughput, 0);
}

TEST(PlanSearch, GoodputTakesTheLargestBatchThatMeetsTheLimits) {
  Asked asked(1e9, {1});
  asked.workload.batch = 32;
  const PlanFigures all = *ChosenOf(Search(asked)).figures;
  asked.workload.objective = Objective::kGoodput;
  asked.workload.limits.ttft = all.ttft / 3;
  const PlanFigures some = *ChosenOf(Search(asked)).figures;
  EXPECT_EQ(some.batch, 8);
  EXPECT_LE(some.ttft, asked.workload.limits.ttft);
  asked.workload.limits.ttft = 1e-9;
  EXPECT_THAT(ErrorOf(asked), HasSubstr("no plan keeps the limits; the nearest, 1 rank"));
  EXPECT_THAT(ErrorOf(asked), HasSubstr("to the first token, beyond the limit of 0.000000001 s"));
}

TEST(PlanSearch, AnArrivalRateDecidesHowManyRunTogether) {
  Asked asked(1e9, {1});
  asked.workload.batch = 1;
  asked.workload.arrival_rate = 0.01;
  const PlanFigures few = *ChosenOf(Search(asked)).figures;
  EXPECT_EQ(few.batch, 1);
  EXPECT_NEAR(few.throughput, 0.01 * 64, 1e-12);
  asked.workload.arrival_rate = 0.5 / few.ttft;
  const PlanFigures many = *ChosenOf(Search(asked)).figures;
  EXPECT_GT(many.batch, 1);
  EXPECT_GT(many.ttft, few.ttft);
  asked.workload.arrival_rate = 2 / few.ttft;
  EXPECT_THAT(ErrorOf(asked), HasSubstr("prompts alone take"));
}

TEST(PlanSearch, OptionsGivenAreConstraints) {
  Asked asked(1e9);
  asked.question.constraints.layout = strategy::Layout{.attention_tp = 2, .expert_ep = 2};
  EXPECT_EQ(ChosenOf(Search(asked)).plan.layout, *asked.question.constraints.layout);
  asked.question.constraints = {.pipeline = strategy::Pipeline{.chunks = 3}, .micro_batches = 1};
  for (const Candidate& candidate : Search(asked).candidates) {
    if (candidate.setup.num_ranks > 1) {
      EXPECT_EQ(candidate.plan.pipeline.chunks, 3);
    }
  }
  asked.question.constraints = {.num_ranks = 2};
  EXPECT_EQ(ChosenOf(Search(asked)).setup.num_ranks, 2);
}

TEST(PlanSearch, BranchesOfTheTreeOfSumsKeepLogits) {
  const model::ModelSpec spec = InventedSpec(1, /*num_experts=*/60);
  const auto keeps = [&](const strategy::Layout& layout) { return CutsNothing(spec, layout); };
  EXPECT_TRUE(keeps({}));
  EXPECT_FALSE(keeps({.attention_dp = 2, .expert_ep = 2}));  // 30 experts are no branch
  EXPECT_TRUE(CutsNothing(InventedSpec(1, 64), {.attention_dp = 4, .expert_ep = 4}));
  EXPECT_FALSE(CutsNothing(InventedSpec(1, 64), {.attention_dp = 3, .expert_ep = 3}));
  EXPECT_FALSE(CutsNothing(InventedSpec(1, 64), {.attention_dp = 2, .expert_tp = 2}));
}

}  // namespace
}  // namespace convene::planner
