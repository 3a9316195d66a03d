#include "planner/hybrid_pass.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "planner/hybrid_search.h"
#include "planner/invented_costs_test.h"
#include "planner/plan_search_test.h"

namespace convene::planner {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kWeights = 1 << 20;  // of a rank in one division

// Two ranks. Prompts are long and wait for exchanges, of which whole experts need fewer than
// slices; nearly all tokens go to the first experts, whose weights generated tokens wait for, so
// that slices of all experts are read faster than one rank's whole ones.
struct AskedOfHybrid {
  AskedOfHybrid() : spec(InventedSpec(8, /*num_experts=*/16)) {
    for (model::LayerSpec& layer : spec.layers) {
      layer.moe->top_k = 1;
    }
    profile.steps.push_back(InventedCosts(2, 1e8));
    for (auto& task : profile.steps[0].tasks) task->per_weight_byte.value = {1e-10, 1e-10};
    question.num_ranks = 2;
    question.allowed.layout = true;
    question.passes_off = {"pipelines", "micro_batches", "heads"};  // hide exchanges, or gain more
    question.constraints.keeps_step_tokens = true;
    question.memory_of = [this](const RankSetup&, const plan::Plan& plan,
                                int) -> Result<RankMemory> {
      const bool has_both = plan.decode && plan.phase_change.keeps_both;
      return RankMemory{.weights_bytes =
                            has_both ? 2 * kWeights : kWeights + (plan.decode ? 1 : 0)};
    };
    question.memory_per_rank = [this](int) { return memory; };
    question.bytes_of = [](const std::string&, plan::Wire) { return strategy::ElementBytes(); };
    question.clock = [this] { return seconds += 1e-6; };
    workload.routing = {.skew = 0.9, .num_experts_skew = 2};
  }

  model::ModelSpec spec;
  cost::MachineProfile profile;
  uint64_t memory = kWeights + kWeights / 2;  // enough for one division, and a layer more
  double seconds = 0;
  Workload workload = {.requests = {{16384, 8192}}, .batch = 4};
  MeasuredSource source{profile};
  PlanQuestion question{.spec = spec, .workload = workload, .source = source};
};

TEST(HybridPass, WinsWherePhasesAreBestInTwoDivisions) {
  AskedOfHybrid asked;
  const PlanAnswer answer = Search(asked);
  const Candidate& chosen = ChosenOf(answer);
  ASSERT_TRUE(chosen.plan.changes_layout()) << Describe(chosen);
  EXPECT_EQ(chosen.plan.layout.expert_ep, 2);
  EXPECT_EQ(chosen.plan.decode->expert_tp, 2);
  EXPECT_EQ(chosen.added_by, "hybrid");
  EXPECT_FALSE(chosen.plan.phase_change.keeps_both);  // both do not fit
  EXPECT_EQ(chosen.plan.phase_change.epoch_steps, 8191);
  // Priced as all others: both phases as those of one division, the moves, and the solver.
  PlanSearch search(asked.question);
  const auto of = [&](const strategy::Layout& layout) {
    plan::Plan plan = chosen.plan;
    plan.layout = layout;
    plan.decode.reset();
    return *search.FiguresOf(chosen.setup, plan, asked.workload);
  };
  const PlanFigures& figures = *chosen.figures;
  EXPECT_GT(figures.transition_seconds, 0);
  EXPECT_GT(figures.solver_seconds, 0);
  EXPECT_NEAR(figures.ttft, of(chosen.plan.layout).ttft + figures.solver_seconds, 1e-12);
  EXPECT_NEAR(figures.time_per_token, of(*chosen.plan.decode).time_per_token, 1e-12);
  EXPECT_NEAR(figures.score * 4 * 8192,
              figures.ttft - figures.solver_seconds + 8191 * figures.time_per_token +
                  figures.transition_seconds,
              1e-9);
  asked.question.passes_off.emplace_back("hybrid");
  const PlanAnswer without = Search(asked);
  for (const Candidate& candidate : without.candidates) EXPECT_FALSE(candidate.plan.decode);
  EXPECT_LT(figures.score, ChosenOf(without).figures->score);
}

TEST(HybridPass, HowLongTheSolverTookChangesNoChoice) {
  AskedOfHybrid asked;
  const PlanAnswer fast = Search(asked);
  asked.question.clock = [&asked] { return asked.seconds += 1e6; };
  const PlanAnswer slow = Search(asked);
  EXPECT_TRUE(ChosenOf(fast).plan.changes_layout());
  EXPECT_EQ(ChosenOf(slow).plan, ChosenOf(fast).plan);
  EXPECT_EQ(ChosenOf(slow).figures->score, ChosenOf(fast).figures->score);
  // It is told all the same.
  EXPECT_GT(ChosenOf(slow).figures->ttft, 1e6);
  EXPECT_GT(ChosenOf(slow).figures->solver_seconds, 1e6 - 1);
}

TEST(HybridPass, LosesWhereMovingCostsMoreThanItGains) {
  AskedOfHybrid asked;
  asked.workload.requests = {{16384, 8}};
  const PlanAnswer answer = Search(asked);
  EXPECT_FALSE(ChosenOf(answer).plan.decode) << Describe(ChosenOf(answer));
  int num_rejected = 0;
  for (const Candidate& candidate : answer.candidates) {
    if (!candidate.plan.decode) continue;
    EXPECT_EQ(candidate.rejected_by, "hybrid");
    EXPECT_THAT(candidate.reason, HasSubstr("experts move there and back"));
    ++num_rejected;
  }
  EXPECT_EQ(num_rejected, 4);
}

TEST(HybridPass, BothDivisionsStayInMemoryWhereTheyFit) {
  AskedOfHybrid asked;
  asked.memory = 2 * kWeights;
  const PlanAnswer answer = Search(asked);
  const Candidate& chosen = ChosenOf(answer);
  EXPECT_TRUE(chosen.plan.phase_change.keeps_both) << Describe(chosen);
  EXPECT_EQ(chosen.figures->transition_seconds, 0);
  EXPECT_EQ(chosen.memory.total(), 2 * kWeights);
  // The same with less memory is an alternative.
  plan::Plan moving = chosen.plan;
  moving.phase_change.keeps_both = false;
  EXPECT_TRUE(std::ranges::any_of(answer.candidates, [&](const Candidate& candidate) {
    return candidate.is_ranked() && candidate.plan == moving;
  }));
  asked.memory = kWeights;
  for (const Candidate& candidate : Search(asked).candidates) {
    if (!candidate.plan.decode) continue;
    EXPECT_THAT(candidate.reason, HasSubstr("with the experts of both phases"));
  }
}

// Moving between ranks costs more than what a rank makes of its own backup.
TEST(HybridPass, ExpertsComeFromABackupWhereThatIsAllowedAndTakesLess) {
  AskedOfHybrid asked;
  const auto memory_of = asked.question.memory_of;
  uint64_t backup = kWeights / 4;
  asked.question.memory_of = [&](const RankSetup& setup, const plan::Plan& plan, int batch) {
    Result<RankMemory> memory = memory_of(setup, plan, batch);
    if (plan.loads_experts()) memory->weights_bytes += backup;
    return memory;
  };
  const Candidate without = ChosenOf(Search(asked));
  EXPECT_FALSE(without.plan.loads_experts());
  for (const Candidate& candidate : Search(asked).candidates) {
    EXPECT_FALSE(candidate.plan.loads_experts()) << Describe(candidate);
  }
  asked.question.allowed.transition = true;
  const PlanAnswer answer = Search(asked);
  const Candidate& chosen = ChosenOf(answer);
  ASSERT_TRUE(chosen.plan.loads_experts()) << Describe(chosen);
  EXPECT_THAT(Describe(chosen), HasSubstr("from an int4 backup"));
  EXPECT_EQ(chosen.memory.weights_bytes, kWeights + 1 + backup);
  EXPECT_GT(chosen.figures->transition_seconds, 0);
  EXPECT_LT(chosen.figures->transition_seconds, without.figures->transition_seconds);
  EXPECT_NEAR(chosen.figures->score * 4 * 8192,
              chosen.figures->ttft - chosen.figures->solver_seconds +
                  8191 * chosen.figures->time_per_token + chosen.figures->transition_seconds,
              1e-9);
  // The one that moves them is an alternative.
  EXPECT_TRUE(std::ranges::any_of(answer.candidates, [&](const Candidate& candidate) {
    return candidate.is_ranked() && candidate.plan == without.plan;
  }));
  // One that fits nowhere, or takes longer, is none.
  backup = kWeights;
  const PlanAnswer full = Search(asked);
  EXPECT_FALSE(ChosenOf(full).plan.loads_experts());
  EXPECT_TRUE(std::ranges::any_of(full.candidates, [](const Candidate& candidate) {
    return candidate.plan.loads_experts() &&
           candidate.reason.find("of decode's in int4") != std::string::npos;
  }));
  backup = kWeights / 4;
  asked.profile.steps[0]
      .tasks[static_cast<size_t>(schedule::TaskKind::kLoadExperts)]
      ->per_weight_byte.value = {1e-7, 1e-5};
  EXPECT_FALSE(ChosenOf(Search(asked)).plan.loads_experts());
}

TEST(HybridPass, BackupsAreOfFloats) {
  EXPECT_FALSE(CanLoad(AskedOfHybrid().question, {2, 1, "bf16"}));
  AskedOfHybrid asked;
  asked.question.allowed.transition = true;
  EXPECT_TRUE(CanLoad(asked.question, {2, 1, "bf16"}));
  EXPECT_TRUE(CanLoad(asked.question, {2, 1, "f32"}));
  EXPECT_FALSE(CanLoad(asked.question, {2, 1, "int8"}));
  EXPECT_FALSE(CanLoad(asked.question, {2, 1, "int4"}));
}

TEST(HybridPass, OnlyWithSlicesAllowed) {
  AskedOfHybrid asked;
  asked.question.allowed.layout = false;
  const PlanAnswer answer = Search(asked);
  EXPECT_FALSE(ChosenOf(answer).plan.decode);
  const auto hybrid = std::ranges::find_if(answer.candidates, [](const Candidate& candidate) {
    return candidate.is_ranked() && candidate.plan.decode;
  });
  ASSERT_NE(hybrid, answer.candidates.end());
  EXPECT_EQ(hybrid->needs, std::vector<std::string>{"layout"});
}

TEST(HybridPass, AMixedStreamHasEpochs) {
  AskedOfHybrid asked;
  asked.spec.max_positions = 1 << 22;
  asked.workload.requests = {{1 << 18, 1 << 19}};
  for (auto& task : asked.profile.steps[0].tasks) task->per_score.value = {1e-14, 1e-14};
  asked.workload.arrival_rate = 0.6 / ChosenOf(Search(asked)).figures->ttft;
  const PlanAnswer answer = Search(asked);
  const auto hybrid = std::ranges::find_if(answer.candidates, [](const Candidate& candidate) {
    return candidate.is_ranked() && candidate.plan.decode;
  });
  ASSERT_NE(hybrid, answer.candidates.end());
  const int steps = hybrid->plan.phase_change.epoch_steps;
  EXPECT_GT(steps, 1);
  EXPECT_LT(steps, 1 << 19);
  // Longer epochs: prompts wait longer, and fewer moves are in each step.
  PlanSearch search(asked.question);
  plan::Plan longer = hybrid->plan;
  longer.phase_change.epoch_steps *= 4;
  const auto figures = search.FiguresOf(hybrid->setup, longer, asked.workload);
  ASSERT_TRUE(figures.ok()) << figures.error().message;
  EXPECT_GT(figures->ttft, hybrid->figures->ttft);
  EXPECT_LT(figures->time_per_token, hybrid->figures->time_per_token);
}

TEST(HybridPass, ADivisionOfDecodeThatWasAskedForHasEpochsToo) {
  AskedOfHybrid asked;
  asked.spec.max_positions = 1 << 22;
  asked.question.constraints.decode_experts = "tp2";
  const auto steps_of_moves = [&] {
    std::set<int> steps;
    for (const Candidate& one : Search(asked).candidates) {
      const bool moves = one.plan.changes_layout() && !one.plan.phase_change.keeps_both;
      if (one.is_ranked() && moves) steps.insert(one.plan.phase_change.epoch_steps);
    }
    return steps;
  };
  EXPECT_THAT(steps_of_moves(), testing::ElementsAre(8191));  // all are there at once
  asked.workload.requests = {{1 << 18, 1 << 19}};
  for (auto& task : asked.profile.steps[0].tasks) task->per_score.value = {1e-14, 1e-14};
  asked.workload.arrival_rate = 0.3 / ChosenOf(Search(asked)).figures->ttft;
  const std::set<int> of_stream = steps_of_moves();
  ASSERT_FALSE(of_stream.empty());
  EXPECT_GT(*of_stream.begin(), 1);
  EXPECT_LT(*of_stream.rbegin(), 1 << 19);
}

TEST(HybridPass, GroupsOfLimitedRoutingAreNotSplit) {
  AskedOfHybrid asked;
  asked.workload.routing = {};
  for (model::LayerSpec& layer : asked.spec.layers) {
    layer.moe->num_expert_groups = 1;
    layer.moe->top_expert_groups = 1;
  }
  EXPECT_EQ(WhySplitsGroups(*asked.spec.layers[0].moe, 2), "");  // no limit
  model::MoeSpec moe{.num_experts = 18, .top_k = 4};
  moe.num_expert_groups = 3;
  moe.top_expert_groups = 2;
  EXPECT_EQ(WhySplitsGroups(moe, 3), "");
  EXPECT_THAT(WhySplitsGroups(moe, 2), HasSubstr("1 of them would be split over up to 2 ranks"));
  for (model::LayerSpec& layer : asked.spec.layers) {
    layer.moe->num_experts = 18;
    layer.moe->num_expert_groups = 3;
    layer.moe->top_expert_groups = 2;
    layer.moe->top_k = 4;
  }
  for (const Candidate& candidate : Search(asked).candidates) {
    if (!candidate.plan.decode) continue;
    EXPECT_THAT(candidate.reason, HasSubstr("in 2 of 3 groups"));
  }
}

}  // namespace
}  // namespace convene::planner
