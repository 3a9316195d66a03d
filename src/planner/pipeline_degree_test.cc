#include "planner/pipeline_degree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
          .rates = {.cores = 1,
                    .flops_per_second = 6e11,
                    .weight_bytes_per_second = 1.2e10,
                    .rows_per_expert = 20,
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
  question.rates.weight_bytes_per_second = 1e12;
  question.rates.rows_per_expert = 0;
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
