#include "planner/disaggregated_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "cost/presets.h"
#include "planner/operator_pricer.h"
#include "planner/plan_search_test.h"
#include "strategy/layout.h"

namespace convene::planner {
namespace {

using strategy::AttentionOrder;
using strategy::Pipeline;
using testing::HasSubstr;

// As DeepSeek-V2-Lite, but with fewer layers and without latents.
model::ModelSpec SpecWithSharedExperts() {
  model::LayerSpec layer;
  layer.attention = {.num_heads = 16, .num_kv_heads = 16, .head_dim = 128, .value_dim = 128};
  layer.moe = model::MoeSpec{
      .num_experts = 64, .top_k = 6, .intermediate_size = 1408, .shared_intermediate_size = 2816};
  model::ModelSpec spec;
  spec.hidden_size = 2048;
  spec.vocab_size = 102400;
  spec.max_positions = 1 << 17;
  spec.layers = std::vector(size_t{6}, layer);
  return spec;
}

// As Qwen3-30B-A3B, likewise.
model::ModelSpec SpecWithoutSharedExperts() {
  model::ModelSpec spec = SpecWithSharedExperts();
  for (model::LayerSpec& layer : spec.layers) {
    layer.attention.num_kv_heads = 4;
    layer.moe = model::MoeSpec{.num_experts = 128, .top_k = 8, .intermediate_size = 768};
  }
  return spec;
}

// As Qwen2-57B-A14B, likewise.
model::ModelSpec SpecWithLargeSharedExperts() {
  model::ModelSpec spec = SpecWithSharedExperts();
  spec.hidden_size = 3584;
  for (model::LayerSpec& layer : spec.layers) {
    layer.attention = {.num_heads = 28, .num_kv_heads = 4, .head_dim = 128, .value_dim = 128};
    layer.moe = model::MoeSpec{.num_experts = 64,
                               .top_k = 8,
                               .intermediate_size = 2560,
                               .shared_intermediate_size = 20480};
  }
  return spec;
}

struct AskedOfTurns {
  AskedOfTurns(const char* preset, model::ModelSpec of, strategy::Layout layout,
               RequestLengths requests, int batch)
      : spec(std::move(of)), machine(*cost::Preset(preset)) {
    workload.requests = {requests};
    workload.batch = batch;
    layout.disaggregates = true;
    question.num_ranks = layout.num_ranks();
    question.step_tokens = 8192;
    question.constraints = {
        .num_ranks = layout.num_ranks(), .layout = layout, .keeps_step_tokens = true};
    question.memory_of = [](const RankSetup&, const plan::Plan&, int) -> Result<RankMemory> {
      return RankMemory{.weights_bytes = 1};
    };
    question.memory_per_rank = [](int) { return uint64_t{1} << 30; };
    question.bytes_of = [](const std::string&, plan::Wire) {
      return strategy::ElementBytes{.activations = 4, .dispatched = 4, .returned = 4, .sums = 4};
    };
    question.clock = [] { return 0.0; };
  }

  model::ModelSpec spec;
  cost::MachineProfile machine;
  Workload workload;
  OperatorSource source{machine};
  PlanQuestion question{.spec = spec, .workload = workload, .source = source};
};

// Of so many chunks at most, and all micro-batches that are searched: the least score.
double BestOfGrid(PlanSearch& search, const AskedOfTurns& asked, const RankSetup& setup,
                  int most_chunks) {
  double least = std::numeric_limits<double>::infinity();
  const auto price = [&](const Pipeline& pipeline) {
    plan::Plan plan{.layout = *asked.question.constraints.layout,
                    .pipeline = pipeline,
                    .wire = plan::Wire::kF32};
    const Result<PlanFigures> figures = search.FiguresOf(setup, plan, asked.workload);
    ASSERT_TRUE(figures) << figures.error().message;
    least = std::min(least, figures->score);
  };
  for (int micro_batches = 1; micro_batches <= 8; ++micro_batches) {
    price({.micro_batches = micro_batches, .dispatch_after_shared = true});
    for (int chunks = 1; chunks <= most_chunks; ++chunks) {
      for (const AttentionOrder order : {AttentionOrder::kAsas, AttentionOrder::kAass}) {
        price({.chunks = chunks, .micro_batches = micro_batches, .order = order});
      }
    }
  }
  return least;
}

void ExpectTheBestOfTheGrid(const AskedOfTurns& asked) {
  PlanSearch search(asked.question);
  const Result<PlanAnswer> answer = SearchPlan(search);
  ASSERT_TRUE(answer) << answer.error().message;
  const Candidate& fastest = answer->candidates[answer->fastest];
  const double grid = BestOfGrid(search, asked, fastest.setup, /*most_chunks=*/4);
  EXPECT_LE(fastest.figures->score, 1.01 * grid)
      << "prompts of " << asked.workload.requests.front().prompt_tokens << ": "
      << Describe(fastest);
}

TEST(DisaggregatedTurns, AreAsGoodAsTheBestOfAllNumbersAndOrdersByPrice) {
  const strategy::Layout even{.attention_dp = 2, .expert_ep = 2};
  const strategy::Layout heads{.attention_tp = 2, .expert_ep = 3};
  for (const char* preset : {"findep-a", "findep-b"}) {
    for (const bool has_shared : {true, false}) {
      for (const RequestLengths& requests : {RequestLengths{1024, 1}, RequestLengths{256, 64}}) {
        for (const strategy::Layout& layout : {even, heads}) {
          const AskedOfTurns asked(
              preset, has_shared ? SpecWithSharedExperts() : SpecWithoutSharedExperts(), layout,
              requests, 16);
          PlanSearch search(asked.question);
          const Result<PlanAnswer> answer = SearchPlan(search);
          ASSERT_TRUE(answer) << answer.error().message;
          const Candidate& fastest = answer->candidates[answer->fastest];
          const double grid = BestOfGrid(search, asked, fastest.setup, /*most_chunks=*/4);
          EXPECT_LE(fastest.figures->score, 1.01 * grid)
              << preset << ", " << plan::ToText(layout) << ", prompts of " << requests.prompt_tokens
              << ": " << Describe(fastest);
        }
      }
    }
  }
}

// By lines two micro-batches are best, and with as many chunks one is by price.
TEST(DisaggregatedTurns, MayHaveFewerMicroBatchesForMoreChunks) {
  AskedOfTurns asked("findep-a", SpecWithLargeSharedExperts(), {.attention_tp = 2, .expert_ep = 4},
                     {2048, 1}, 16);
  asked.question.step_tokens = 4096;
  ExpectTheBestOfTheGrid(asked);
}

TEST(DisaggregatedTurns, NumbersThatWereAskedForAreThoseOfAllPlans) {
  for (const bool has_shared : {true, false}) {
    // Of decode a group has two rows: fewer than micro-batches, so that its steps stay whole.
    AskedOfTurns asked("findep-a",
                       has_shared ? SpecWithSharedExperts() : SpecWithoutSharedExperts(),
                       {.attention_dp = 2, .expert_ep = 2}, {512, 64}, 4);
    asked.question.constraints.micro_batches = 3;
    const PlanAnswer three = Search(asked);
    std::set<int> chunks;
    for (const Candidate& one : three.candidates) {
      if (!one.is_ranked()) continue;
      EXPECT_EQ(one.plan.pipeline.micro_batches, 3) << Describe(one);
      EXPECT_TRUE(one.plan.lines.empty());
      chunks.insert(one.plan.pipeline.chunks);
    }
    EXPECT_GT(chunks.size(), 1u);
    asked.question.constraints.micro_batches.reset();
    for (const int wanted : {1, 2}) {
      asked.question.constraints.pipeline = Pipeline{.chunks = wanted};
      std::set<int> micro_batches;
      std::set<plan::DisaggregatedStrategy> strategies;
      for (const Candidate& one : Search(asked).candidates) {
        if (!one.is_ranked()) continue;
        EXPECT_EQ(one.plan.pipeline.chunks, wanted) << Describe(one);
        micro_batches.insert(one.plan.pipeline.micro_batches);
        strategies.insert(plan::StrategyOf(one.plan.pipeline));
      }
      EXPECT_GT(micro_batches.size(), 2u);
      // PPPipe and naive have one chunk.
      EXPECT_EQ(strategies.size(), wanted == 1 ? 3u : 1u);
    }
    // Not even where all steps are smaller is it another number.
    asked.question.constraints = {
        .num_ranks = 4, .layout = asked.question.constraints.layout, .micro_batches = 64};
    EXPECT_EQ(ChosenOf(Search(asked)).plan.pipeline.micro_batches, 64);
  }
}

TEST(DisaggregatedTurns, AStrategyOrAnOrderThatWasAskedForIsThatOfAllPlans) {
  using plan::DisaggregatedStrategy;
  AskedOfTurns asked("findep-a", SpecWithSharedExperts(), {.attention_dp = 2, .expert_ep = 2},
                     {512, 64}, 16);
  Constraints& constraints = asked.question.constraints;
  constraints.layout.reset();
  constraints.disaggregates = true;
  const auto ranked = [&] {
    std::vector<Candidate> found;
    std::ranges::copy_if(Search(asked).candidates, std::back_inserter(found),
                         [](const Candidate& one) { return one.is_ranked(); });
    EXPECT_FALSE(found.empty());
    return found;
  };
  for (const auto wanted : {DisaggregatedStrategy::kNaive, DisaggregatedStrategy::kPpPipe,
                            DisaggregatedStrategy::kFine}) {
    constraints.strategy = wanted;
    for (const Candidate& one : ranked()) {
      EXPECT_TRUE(one.plan.layout.disaggregates) << Describe(one);
      EXPECT_EQ(plan::StrategyOf(one.plan.pipeline), wanted) << Describe(one);
    }
  }
  constraints.strategy.reset();
  constraints.order = AttentionOrder::kAass;
  for (const Candidate& one : ranked()) {
    EXPECT_EQ(one.plan.pipeline.order, AttentionOrder::kAass) << Describe(one);
    EXPECT_TRUE(one.plan.lines.empty());
  }
}

TEST(DisaggregatedTurns, LayoutsThatAreNotSearchedSayWhy) {
  AskedOfTurns asked("findep-b", SpecWithSharedExperts(), {.attention_dp = 4, .expert_ep = 4},
                     {512, 64}, 32);
  asked.question.constraints.layout.reset();
  asked.question.passes_off = {"heads"};  // with which others are further ahead
  const PlanAnswer answer = Search(asked);
  std::set<std::string> refined;
  bool says_why = false;
  for (const Candidate& one : answer.candidates) {
    if (one.added_by == "turns") refined.insert(plan::ToText(one.plan.layout));
    if (one.plan.layout.disaggregates && !one.not_refined.empty()) {
      says_why = true;
      EXPECT_THAT(one.not_refined, HasSubstr("as proposed"));
    }
  }
  EXPECT_FALSE(refined.empty());
  EXPECT_LE(refined.size(), 6u);
  EXPECT_TRUE(says_why);
}

}  // namespace
}  // namespace convene::planner
