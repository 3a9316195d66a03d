#include "planner/expert_cuts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/costs_test.h"
#include "strategy/expert_cuts.h"

namespace convene::planner {
namespace {

using strategy::ChunkCut;
using strategy::Pipeline;
using testing::IsEmpty;
using testing::SizeIs;

model::ModelSpec SpecOf(int num_experts, int top_k) {
  model::LayerSpec layer;
  layer.attention = {.num_heads = 16, .num_kv_heads = 16, .head_dim = 64, .value_dim = 64};
  layer.moe = model::MoeSpec{};
  layer.moe->num_experts = num_experts;
  layer.moe->top_k = top_k;
  layer.moe->intermediate_size = 512;
  model::ModelSpec spec;
  spec.hidden_size = 1024;
  spec.vocab_size = 1000;
  spec.layers = {layer, layer};
  return spec;
}

// Computing and exchanging take about as long.
const cost::StepCosts& Costs() {
  static const cost::StepCosts costs =
      MakeCosts(2, {.flops_per_second = 6e11, .link_bytes_per_second = 8e7});
  return costs;
}

PipelineQuestion QuestionOfCuts(const model::ModelSpec& spec) {
  return {.spec = spec,
          .roles = strategy::Layout{.attention_dp = 2, .expert_ep = 2},
          .costs = Costs(),
          .tokens_per_group = 512};
}

double Seconds(const PipelineQuestion& question, const Pipeline& pipeline) {
  return PricePipeline(question, pipeline, question.tokens_per_group).seconds();
}

TEST(FitCuts, AreNoSlowerThanEvenChunksAndGainWhereTheFirstCarryMostOfTheDispatch) {
  const model::ModelSpec spec = SpecOf(64, 8);
  const PipelineQuestion question = QuestionOfCuts(spec);
  double most_gain = 1;
  for (const int chunks : {2, 4, 8, 32}) {
    const Pipeline even{.chunks = chunks, .cut = ChunkCut::kExperts};
    const PricedPipeline fitted = FitCuts(question, even);
    const double even_seconds = Seconds(question, even);
    EXPECT_LE(fitted.seconds(), even_seconds);
    EXPECT_EQ(fitted.seconds(), Seconds(question, fitted.pipeline));
    if (!fitted.pipeline.cuts.empty()) {
      EXPECT_THAT(fitted.pipeline.cuts, SizeIs(static_cast<size_t>(chunks - 1)));
    }
    most_gain = std::max(most_gain, even_seconds / fitted.seconds());
  }
  EXPECT_GT(most_gain, 1.02);
}

TEST(FitCuts, FollowRecordedRouting) {
  const model::ModelSpec spec = SpecOf(16, 2);
  PipelineQuestion question = QuestionOfCuts(spec);
  const Pipeline even{.chunks = 3, .cut = ChunkCut::kExperts};
  // Nearly all that a rank's experts do, the first two of them do.
  std::vector<double> counts(16, 1);
  for (const int expert : {0, 1, 8, 9}) counts[expert] = 100;
  question.shares = cost::SharesFromCounts(counts, 2);
  const PricedPipeline fitted = FitCuts(question, even);
  ASSERT_FALSE(fitted.pipeline.cuts.empty());
  EXPECT_LE(fitted.pipeline.cuts.front(), 0.25);
  EXPECT_LT(fitted.seconds(), Seconds(question, even));
}

TEST(CutsToTry, HaveNoEvenOnes) {
  const model::ModelSpec spec = SpecOf(16, 2);
  const PipelineQuestion question = QuestionOfCuts(spec);
  const ExpertStep step = {.spec = spec,
                           .roles = question.roles,
                           .tokens_per_group = question.tokens_per_group,
                           .shares = question.shares};
  for (const int chunks : {2, 3, 4, 8}) {
    const Pipeline even{.chunks = chunks, .cut = ChunkCut::kExperts};
    const int num_experts = question.roles.expert_split().MostExperts(16);
    for (const std::vector<double>& cuts : CutsToTry(step, even)) {
      Pipeline with_cuts = even;
      with_cuts.cuts = cuts;
      EXPECT_NE(strategy::ExpertEnds(with_cuts, num_experts),
                strategy::ExpertEnds(even, num_experts));
    }
  }
}

TEST(FitCuts, LeaveAloneWhatIsNotCutByExperts) {
  const model::ModelSpec spec = SpecOf(64, 8);
  const PipelineQuestion question = QuestionOfCuts(spec);
  for (const Pipeline& pipeline :
       {Pipeline{}, Pipeline{.chunks = 4}, Pipeline{.chunks = 33, .cut = ChunkCut::kExperts}}) {
    EXPECT_THAT(FitCuts(question, pipeline).pipeline.cuts, IsEmpty());
  }
}

}  // namespace
}  // namespace convene::planner
