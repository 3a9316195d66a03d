#include "planner/pipeline_degree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace convene::planner {
namespace {

using strategy::ChunkCut;
using strategy::Pipeline;
using testing::HasSubstr;

// OLMoE: 8 of 64 experts.
model::ModelSpec Olmoe() {
  model::LayerSpec layer;
  layer.attention = {.num_heads = 16, .num_kv_heads = 16, .head_dim = 128, .value_dim = 128};
  layer.moe = model::MoeSpec{};
  layer.moe->num_experts = 64;
  layer.moe->top_k = 8;
  layer.moe->intermediate_size = 1024;
  layer.moe->activation.kind = model::Activation::kSiluMul;
  model::ModelSpec spec;
  spec.hidden_size = 2048;
  spec.vocab_size = 50304;
  spec.layers = {layer, layer};
  return spec;
}

// Two ranks of a core each on a slow link: exchanges take a third of a layer.
PipelineQuestion SlowLink(const model::ModelSpec& spec, double tokens) {
  return {.spec = spec,
          .roles = strategy::Layout{.attention_dp = 2, .expert_ep = 2},
          .rates = {.ranks = {{.cores = 1,
                               .flops_per_second = 6e11,
                               .weight_bytes_per_second = 1.2e10,
                               .rows_per_expert = 20}},
                    .link_bytes_per_second = 4e7,
                    .link_latency = 1e-5,
                    .link_latency_beside = 4e-4,
                    .link_core_seconds_per_byte = 1e-9},
          .tokens_per_rank = tokens};
}

const PricedPipeline& Find(const PipelineChoice& choice, const Pipeline& pipeline) {
  for (const PricedPipeline& priced : choice.candidates) {
    if (priced.pipeline == pipeline) return priced;
  }
  ADD_FAILURE() << "no such candidate";
  return choice.candidates.front();
}

TEST(ChoosePipeline, APromptOnASlowLinkIsDividedAndGains) {
  const model::ModelSpec spec = Olmoe();
  const PipelineChoice choice = ChoosePipeline(SlowLink(spec, 512));
  EXPECT_GT(choice.pipeline.chunks, 4);
  EXPECT_EQ(choice.pipeline.cut, ChunkCut::kExperts);  // weights are read once
  EXPECT_GT(choice.speedup(), 1.2);
  EXPECT_LT(choice.speedup(), 2);
  for (const PricedPipeline& other : choice.candidates) EXPECT_LE(choice.seconds, other.seconds);
}

TEST(ChoosePipeline, ChunksOfTokensPayWhereWeightsAreLittleBesideTheProducts) {
  const model::ModelSpec spec = Olmoe();
  PipelineQuestion question = SlowLink(spec, 8192);
  question.rates.ranks[0].weight_bytes_per_second = 1e12;
  question.rates.ranks[0].rows_per_expert = 0;
  EXPECT_EQ(ChoosePipeline(question).pipeline.cut, ChunkCut::kTokens);
}

TEST(ChoosePipeline, OneTokenIsNotDivided) {
  const model::ModelSpec spec = Olmoe();
  const PipelineChoice choice = ChoosePipeline(SlowLink(spec, 1));
  EXPECT_EQ(choice.pipeline, Pipeline{});
  EXPECT_EQ(choice.speedup(), 1);
  EXPECT_THAT(Describe(choice, 0), HasSubstr("pipeline: none"));
}

TEST(ChoosePipeline, AFastLinkIsNotDivided) {
  const model::ModelSpec spec = Olmoe();
  PipelineQuestion question = SlowLink(spec, 512);
  question.rates.link_bytes_per_second = 1e12;
  EXPECT_EQ(ChoosePipeline(question).pipeline, Pipeline{});
}

TEST(ChoosePipeline, WhatHasNoExpertsOrOneRankHasNothingToChoose) {
  model::ModelSpec spec = Olmoe();
  PipelineQuestion alone = SlowLink(spec, 512);
  alone.roles = {};
  EXPECT_EQ(ChoosePipeline(alone).pipeline, Pipeline{});
  for (model::LayerSpec& layer : spec.layers) layer.moe.reset();
  EXPECT_EQ(ChoosePipeline(SlowLink(spec, 512)).pipeline, Pipeline{});
  EXPECT_THAT(PipelineCandidates(spec, SlowLink(spec, 512).roles), testing::SizeIs(1));
}

TEST(ChoosePipeline, RanksThatAreSaidToBeAlikeOneByOneAreAlike) {
  const model::ModelSpec spec = Olmoe();
  PipelineQuestion question = SlowLink(spec, 512);
  const PipelineChoice at_once = ChoosePipeline(question);
  question.rates.ranks.push_back(question.rates.ranks.front());
  const PipelineChoice one_by_one = ChoosePipeline(question);
  EXPECT_EQ(one_by_one.pipeline, at_once.pipeline);
  EXPECT_EQ(one_by_one.seconds, at_once.seconds);
  EXPECT_EQ(one_by_one.closed_form.computation, at_once.closed_form.computation);
  EXPECT_EQ(one_by_one.closed_form.communication, at_once.closed_form.communication);
  for (size_t i = 0; i < at_once.candidates.size(); ++i) {
    EXPECT_EQ(one_by_one.candidates[i].seconds, at_once.candidates[i].seconds) << i;
  }
}

TEST(PredictLayerSeconds, HasEachRanksOwnRatesAndShare) {
  model::ModelSpec spec = Olmoe();
  spec.hidden_size = 4;
  for (model::LayerSpec& layer : spec.layers) {
    layer.attention = {.num_heads = 1, .num_kv_heads = 1, .head_dim = 2, .value_dim = 2};
    layer.moe->num_experts = 4;
    layer.moe->top_k = 2;
    layer.moe->intermediate_size = 8;
  }
  // Rank 0 is twice as fast and has three of the four experts; exchanges and memory take no time.
  PipelineQuestion question{
      .spec = spec,
      .roles = strategy::Layout{.attention_dp = 2, .expert_ep = 2, .expert_weights = {3, 1}},
      .rates = {.ranks = {{.flops_per_second = 2000}, {.flops_per_second = 1000}}}};
  // 10 tokens of each rank: projections to and from 2 channels and the router.
  const double attention = 10 * 2.0 * (4 * 2 * 4 + 4 * 4);
  // 40 visits, of three matrices each.
  const double visit = 2.0 * 3 * 4 * 8;
  EXPECT_NEAR(PredictLayerSeconds(question, {}, 10),
              attention / 1000 + std::max(30 * visit / 2000, 10 * visit / 1000), 1e-9);
  question.roles = strategy::Layout{.attention_dp = 2, .expert_ep = 2};
  EXPECT_NEAR(PredictLayerSeconds(question, {}, 10), attention / 1000 + 20 * visit / 1000, 1e-9);
  // Rank 1 alone has costs per expert: it has one, which nearly surely is visited.
  question.roles = strategy::Layout{.attention_dp = 2, .expert_ep = 2, .expert_weights = {3, 1}};
  question.rates.ranks[1].rows_per_expert = 10;
  const double rank_1 = (10 + 10) * visit / 1000;
  EXPECT_NEAR(PredictLayerSeconds(question, {}, 10), attention / 1000 + rank_1, 1e-5);
}

TEST(ChoosePipeline, MoreLatencyGivesFewerChunks) {
  const model::ModelSpec spec = Olmoe();
  PipelineQuestion question = SlowLink(spec, 512);
  question.rates.link_latency_beside = 5e-3;
  const PipelineChoice slow = ChoosePipeline(question);
  const PipelineChoice fast = ChoosePipeline(SlowLink(spec, 512));
  EXPECT_LE(slow.pipeline.chunks, fast.pipeline.chunks);
  EXPECT_LT(slow.closed_form.chunks, fast.closed_form.chunks);
  EXPECT_GT(Find(slow, {.chunks = 32, .cut = ChunkCut::kExperts}).seconds,
            Find(fast, {.chunks = 32, .cut = ChunkCut::kExperts}).seconds);
}

TEST(ChoosePipeline, ThereAreNoMoreChunksOfExpertsThanExperts) {
  model::ModelSpec spec = Olmoe();
  for (model::LayerSpec& layer : spec.layers) layer.moe->num_experts = 8;
  for (model::LayerSpec& layer : spec.layers) layer.moe->top_k = 2;
  for (const Pipeline& pipeline :
       PipelineCandidates(spec, strategy::Layout{.attention_dp = 2, .expert_ep = 2})) {
    EXPECT_TRUE(pipeline.cut == ChunkCut::kTokens || pipeline.chunks <= 4);
  }
}

TEST(ClosedForm, ItsBestIsWhereItsGainIsLargest) {
  const model::ModelSpec spec = Olmoe();
  const ClosedForm form = ChoosePipeline(SlowLink(spec, 512)).closed_form;
  EXPECT_GT(form.per_chunk, 0);
  EXPECT_GT(form.chunks, 1);
  EXPECT_NEAR(form.chunks,
              std::sqrt(std::min(form.communication, form.computation) / form.per_chunk), 0.51);
  EXPECT_GT(form.Gain(form.chunks), form.Gain(form.chunks / 2.0));
  EXPECT_GT(form.Gain(form.chunks), form.Gain(form.chunks * 2.0));
}

TEST(FasterFromTokens, LiesBetweenTheStepThatGainsAndTheOneThatDoesNot) {
  const model::ModelSpec spec = Olmoe();
  const PipelineQuestion question = SlowLink(spec, 512);
  const PipelineChoice choice = ChoosePipeline(question);
  const int from = FasterFromTokens(question, choice.pipeline);
  EXPECT_GT(from, 1);
  EXPECT_LE(from, 512);
  EXPECT_THAT(Describe(choice, from), HasSubstr("of experts from"));
  // Nowhere below.
  EXPECT_EQ(FasterFromTokens(question, {.chunks = 64, .cut = ChunkCut::kTokens}), 513);
}

}  // namespace
}  // namespace convene::planner
