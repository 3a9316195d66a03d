#include "planner/pipeline_degree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "planner/costs_test.h"

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
constexpr MadeCosts kSlowLink = {.flops_per_second = 6e11,
                                 .weight_bytes_per_second = 1.2e10,
                                 .seconds_per_group = 2e-5,
                                 .link_bytes_per_second = 8e7,
                                 .latency = 1e-4,
                                 .core_seconds_per_byte = 5e-10,
                                 .error = 0.05};

PipelineQuestion QuestionOf(const model::ModelSpec& spec, const cost::StepCosts& costs,
                            int tokens) {
  return {.spec = spec,
          .roles = strategy::Layout{.attention_dp = 2, .expert_ep = 2},
          .costs = costs,
          .tokens_per_group = tokens};
}

PipelineChoice Choose(const PipelineQuestion& question) {
  const Result<PipelineChoice> choice = ChoosePipeline(question);
  CHECK(choice.ok(), "{}", choice.error().message);
  return *choice;
}

TEST(ChoosePipeline, APromptOnASlowLinkIsDividedAndGains) {
  const model::ModelSpec spec = Olmoe();
  const cost::StepCosts costs = MakeCosts(2, kSlowLink);
  const PipelineChoice choice = Choose(QuestionOf(spec, costs, 512));
  EXPECT_NE(choice.chosen.pipeline, Pipeline{});
  EXPECT_GT(choice.Speedup(choice.chosen), 1.2);
  EXPECT_LT(choice.Speedup(choice.chosen), 2);
  for (const PricedPipeline& other : choice.candidates) {
    EXPECT_LE(choice.fastest.seconds(), other.seconds());
    const bool is_simpler = other.pipeline.micro_batches < choice.chosen.pipeline.micro_batches;
    EXPECT_TRUE(!is_simpler || SurelyBeats(choice.fastest, other, costs));
  }
}

TEST(ChoosePipeline, TwoMicroBatchesAreACandidateUnlessTheirNumberIsGiven) {
  const model::ModelSpec spec = Olmoe();
  const cost::StepCosts costs = MakeCosts(2, kSlowLink);
  PipelineQuestion question = QuestionOf(spec, costs, 512);
  const auto last = [&] { return PipelineCandidates(question).back().micro_batches; };
  EXPECT_EQ(last(), 2);
  question.tokens_per_group = 1;
  EXPECT_EQ(last(), 1);
  question.micro_batches = 3;
  for (const Pipeline& each : PipelineCandidates(question)) EXPECT_EQ(each.micro_batches, 3);
  // Attention of one runs beside the exchange of the other, which chunks cannot.
  const PipelineQuestion large = QuestionOf(spec, costs, 4096);
  EXPECT_LT(PricePipeline(large, {.micro_batches = 2}, 4096).seconds(),
            PricePipeline(large, {}, 4096).seconds());
}

TEST(ChoosePipeline, WhereErrorsLeaveItOpenTheSimplerOneIsTaken) {
  const model::ModelSpec spec = Olmoe();
  MadeCosts made = kSlowLink;
  made.error = 0;
  const cost::StepCosts exact = MakeCosts(2, made);
  const PipelineChoice sure = Choose(QuestionOf(spec, exact, 512));
  EXPECT_EQ(sure.chosen.pipeline, sure.fastest.pipeline);
  made.error = 0.9;
  const cost::StepCosts vague = MakeCosts(2, made);
  const PipelineChoice unsure = Choose(QuestionOf(spec, vague, 512));
  EXPECT_EQ(unsure.fastest.pipeline, sure.fastest.pipeline);
  EXPECT_LE(std::tuple(unsure.chosen.pipeline.micro_batches, unsure.chosen.pipeline.chunks),
            std::tuple(sure.chosen.pipeline.micro_batches, sure.chosen.pipeline.chunks));
  EXPECT_NE(unsure.chosen.pipeline, sure.chosen.pipeline);
  EXPECT_LT(unsure.gain.low, sure.gain.low);
}

TEST(ChoosePipeline, WhatIsTheSameInBothPlansLeavesNothingOpen) {
  const cost::StepCosts costs = MakeCosts(2, kSlowLink);
  PricedPipeline first{.layer = {.seconds = 1}};
  PricedPipeline second{.layer = {.seconds = 1.1}};
  first.layer.by_kind[static_cast<size_t>(schedule::TaskKind::kAttention)] = 0.9;
  second.layer.by_kind[static_cast<size_t>(schedule::TaskKind::kAttention)] = 0.9;
  first.layer.by_kind[static_cast<size_t>(schedule::TaskKind::kExperts)] = 0.1;
  second.layer.by_kind[static_cast<size_t>(schedule::TaskKind::kExperts)] = 0.2;
  EXPECT_TRUE(SurelyBeats(first, second, costs));
  first.layer.by_kind[static_cast<size_t>(schedule::TaskKind::kAttention)] = 4;
  EXPECT_FALSE(SurelyBeats(first, second, costs));
}

TEST(ChoosePipeline, WhereNoErrorIsKnownAGainHasToBeMoreThanTheUsualOne) {
  const model::ModelSpec spec = Olmoe();
  MadeCosts made = kSlowLink;
  made.error = 0;
  cost::StepCosts costs = MakeCosts(2, made);
  const PipelineChoice sure = Choose(QuestionOf(spec, costs, 512));
  ASSERT_NE(sure.chosen.pipeline, Pipeline{});
  costs.held_out = {};
  costs.overlapped_held_out.reset();
  const PipelineChoice usual = Choose(QuestionOf(spec, costs, 512));
  EXPECT_LT(usual.gain.low, sure.gain.low);
  EXPECT_LE(usual.chosen.pipeline.chunks, sure.chosen.pipeline.chunks);
  // A micro-batch less in a hundred.
  PricedPipeline parts{.pipeline = {.micro_batches = 2}, .layer = {.seconds = 0.99}};
  parts.layer.overlapped_seconds = parts.layer.seconds;
  EXPECT_FALSE(SurelyBeats(parts, {.layer = {.seconds = 1}}, costs));
}

TEST(ChoosePipeline, OneTokenIsNotDivided) {
  const model::ModelSpec spec = Olmoe();
  const cost::StepCosts costs = MakeCosts(2, kSlowLink);
  const PipelineChoice choice = Choose(QuestionOf(spec, costs, 1));
  EXPECT_EQ(choice.chosen.pipeline, Pipeline{});
  EXPECT_EQ(choice.Speedup(choice.chosen), 1);
  EXPECT_THAT(Describe(choice, 0), HasSubstr("pipeline: none"));
}

TEST(ChoosePipeline, AFastLinkIsNotDivided) {
  const model::ModelSpec spec = Olmoe();
  MadeCosts made = kSlowLink;
  made.link_bytes_per_second = 1e12;
  const cost::StepCosts costs = MakeCosts(2, made);
  EXPECT_EQ(Choose(QuestionOf(spec, costs, 512)).chosen.pipeline, Pipeline{});
}

TEST(ChoosePipeline, WhatHasNoExpertsOrOneRankHasNothingToChoose) {
  model::ModelSpec spec = Olmoe();
  const cost::StepCosts costs = MakeCosts(2, kSlowLink);
  PipelineQuestion alone = QuestionOf(spec, costs, 512);
  alone.roles = {};
  EXPECT_EQ(Choose(alone).chosen.pipeline, Pipeline{});
  for (model::LayerSpec& layer : spec.layers) layer.moe.reset();
  EXPECT_EQ(Choose(QuestionOf(spec, costs, 512)).chosen.pipeline, Pipeline{});
  EXPECT_THAT(PipelineCandidates(QuestionOf(spec, costs, 512)), testing::SizeIs(1));
}

TEST(ChoosePipeline, SaysWhatWasNotMeasured) {
  const model::ModelSpec spec = Olmoe();
  cost::StepCosts costs = MakeCosts(2, kSlowLink);
  costs.tasks[static_cast<size_t>(schedule::TaskKind::kReduce)].reset();
  const Result<PipelineChoice> choice = ChoosePipeline(QuestionOf(spec, costs, 512));
  ASSERT_FALSE(choice.ok());
  EXPECT_THAT(choice.error().message, HasSubstr("no cost of reduce"));
}

TEST(PricePipeline, HasEachRanksOwnFactorAndShare) {
  const model::ModelSpec spec = Olmoe();
  // Exchanges take no time, and nothing is read.
  MadeCosts made{.flops_per_second = 1e11, .link_bytes_per_second = 1e18, .latency = 0};
  cost::StepCosts costs = MakeCosts(2, made);
  PipelineQuestion question = QuestionOf(spec, costs, 100);
  const double alike = PricePipeline(question, {}, 100).seconds();
  costs.rank_states = {{}, {.memory = 2, .compute = 2}};
  // The faster one may get more visits than the other without anyone waiting for it: of alike ranks
  // each now and then waits for the other, some percent of a step of 100 rows.
  const double unlike = PricePipeline(question, {}, 100).seconds();
  EXPECT_LT(unlike, 2 * alike);
  EXPECT_GT(unlike, 1.9 * alike);
  // The slower one has a third of the experts.
  question.roles = strategy::Layout{.attention_dp = 2, .expert_ep = 2, .expert_weights = {2, 1}};
  EXPECT_LT(PricePipeline(question, {}, 100).seconds(), 1.6 * alike);
}

TEST(ChoosePipeline, ThereAreNoMoreChunksOfExpertsThanExperts) {
  model::ModelSpec spec = Olmoe();
  for (model::LayerSpec& layer : spec.layers) layer.moe->num_experts = 8;
  for (model::LayerSpec& layer : spec.layers) layer.moe->top_k = 2;
  const cost::StepCosts costs = MakeCosts(2, kSlowLink);
  for (const Pipeline& pipeline : PipelineCandidates(QuestionOf(spec, costs, 512))) {
    EXPECT_TRUE(pipeline.cut == ChunkCut::kTokens || pipeline.chunks <= 4);
  }
}

TEST(ClosedForm, ItsBestIsWhereItsGainIsLargest) {
  const model::ModelSpec spec = Olmoe();
  const cost::StepCosts costs = MakeCosts(2, kSlowLink);
  const ClosedForm form = Choose(QuestionOf(spec, costs, 512)).closed_form;
  EXPECT_GT(form.per_chunk, 0);
  EXPECT_GT(form.chunks, 1);
  EXPECT_GE(form.Gain(form.chunks), form.Gain(form.chunks / 2.0));
  EXPECT_GE(form.Gain(form.chunks), form.Gain(form.chunks * 2.0));
}

TEST(FasterFromTokens, LiesBetweenTheStepThatGainsAndTheOneThatDoesNot) {
  const model::ModelSpec spec = Olmoe();
  const cost::StepCosts costs = MakeCosts(2, kSlowLink);
  const PipelineQuestion question = QuestionOf(spec, costs, 512);
  const PipelineChoice choice = Choose(question);
  const int from = FasterFromTokens(question, choice.chosen.pipeline);
  EXPECT_GT(from, 1);
  EXPECT_LE(from, 512);
  EXPECT_THAT(Describe(choice, from), HasSubstr(" from "));
  // Nowhere below.
  EXPECT_EQ(FasterFromTokens(question, {.chunks = 64, .cut = ChunkCut::kTokens}), 513);
}

}  // namespace
}  // namespace convene::planner
