#include "planner/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "planner/workload_steps.h"

namespace convene::planner {
namespace {

using ::testing::HasSubstr;

Result<WorkloadFile> Read(const std::string& text) { return WorkloadFromJson(*ParseJson(text)); }

model::ModelSpec Spec(int num_layers = 2) {
  model::LayerSpec layer;
  layer.attention = {.num_heads = 8, .num_kv_heads = 8, .head_dim = 16, .value_dim = 16};
  layer.moe = model::MoeSpec{.num_experts = 8, .top_k = 2, .intermediate_size = 64};
  model::ModelSpec spec;
  spec.hidden_size = 128;
  spec.vocab_size = 1000;
  spec.max_positions = 4096;
  spec.layers = std::vector(static_cast<size_t>(num_layers), layer);
  return spec;
}

TEST(Workload, IsReadFromAFile) {
  const auto file = Read(
      R"({"version": 1, "prompt_tokens": 4096, "gen_tokens": {"mean": 63.6}, "batch": 8,
          "routing": {"skew": 0.6, "experts": 8}, "objective": "goodput",
          "limits": {"ttft_s": 2, "time_per_token_s": 0.1}})");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->workload, (Workload{.requests = {{4096, 64}},
                                      .batch = 8,
                                      .routing = {.skew = 0.6, .num_experts_skew = 8},
                                      .objective = Objective::kGoodput,
                                      .limits = {.ttft = 2, .time_per_token = 0.1}}));
  const auto named = Read(R"({"version": 1, "trace": "a.csv", "arrival_rate": 2.5,
                              "routing": {"recorded": "r.json"}})");
  ASSERT_TRUE(named.ok()) << named.error().message;
  EXPECT_EQ(named->trace_path, "a.csv");
  EXPECT_EQ(named->routing_path, "r.json");
  EXPECT_EQ(named->workload.arrival_rate, 2.5);
}

TEST(Workload, WhatMakesNoSenseIsAnErrorThatSaysWhatWould) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"([])", "no version"},
      {R"({"version": 2})", "version 2; this program reads version 1"},
      {R"({"version": 1})", "prompt_tokens"},
      {R"({"version": 1, "prompt_tokens": 1})", "gen_tokens"},
      {R"({"version": 1, "prompt_tokens": 0, "gen_tokens": 1})", "from 1 to"},
      {R"({"version": 1, "prompt_tokens": 1e300, "gen_tokens": 1})", "prompt_tokens"},
      {R"({"version": 1, "prompt_tokens": 18446744073709551615, "gen_tokens": 1})", "from 1 to"},
      {R"({"version": 1, "prompt_tokens": {"median": 3}, "gen_tokens": 1})", "mean"},
      {R"({"version": 1, "trace": "a", "gen_tokens": 1})", "trace"},
      {R"({"version": 1, "trace": "a", "batch": 1, "arrival_rate": 1})", "arrival_rate"},
      {R"({"version": 1, "trace": "a", "routing": {"skew": 0.5}})", "experts"},
      {R"({"version": 1, "trace": "a", "routing": {"skew": 2, "experts": 1}})", "from 0 to 1"},
      {R"({"version": 1, "trace": "a", "objective": "speed"})", "throughput, ttft"},
      {R"({"version": 1, "trace": "a", "limits": {"ttft": 1}})", "ttft_s"},
      {R"({"version": 1, "trace": "a", "colour": 1})", "colour"},
  };
  for (const auto& [text, message] : kCases) {
    const auto file = Read(text);
    ASSERT_FALSE(file.ok()) << text;
    EXPECT_THAT(file.error().message, HasSubstr(message)) << text;
  }
}

TEST(Workload, TracesAreReadByTheirColumns) {
  const auto azure = RequestsFromTrace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03,4808,10\r\nx,110,0\r\n");
  ASSERT_TRUE(azure.ok()) << azure.error().message;
  EXPECT_EQ(azure->requests, (std::vector<RequestLengths>{{4808, 10}}));
  EXPECT_EQ(azure->num_left_out, 1u);
  const auto summaries = RequestsFromTrace(
      "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.85\n");
  ASSERT_TRUE(summaries.ok()) << summaries.error().message;
  EXPECT_EQ(summaries->requests, (std::vector<RequestLengths>{{3772, 54}}));
  EXPECT_EQ(summaries->num_left_out, 0u);
  for (const char* text : {"", "a,b\n1,2\n", "prompt_tokens,gen_tokens\n1,x\n",
                           "prompt_tokens,gen_tokens\n0,0\n", "prompt_tokens,gen_tokens\n-1,2\n"}) {
    EXPECT_FALSE(RequestsFromTrace(text).ok()) << text;
  }
}

TEST(Workload, IsCheckedAgainstTheModel) {
  const model::ModelSpec spec = Spec();
  EXPECT_TRUE(CheckWorkload({}, spec).ok());
  const auto message = [&](const Workload& workload) {
    const Status checked = CheckWorkload(workload, spec);
    return checked ? "" : checked.error().message;
  };
  EXPECT_THAT(message({.requests = {{0, 4}}}), HasSubstr("at least 1"));
  EXPECT_THAT(message({.requests = {{4000, 400}}}), HasSubstr("4096 positions"));
  EXPECT_THAT(message({.objective = Objective::kGoodput}), HasSubstr("limit"));
  EXPECT_THAT(message({.limits = {.ttft = 1}}), HasSubstr("--objective goodput"));
  EXPECT_EQ(message({.objective = Objective::kGoodput, .limits = {.ttft = 1}}), "");
  EXPECT_THAT(message({.requests = {{4, 1}}, .objective = Objective::kTimePerToken}),
              HasSubstr("2 tokens"));
  EXPECT_THAT(message({.routing = {.skew = 0.5, .num_experts_skew = 8}}), HasSubstr("2"));
  EXPECT_THAT(message({.routing = {.counts = {{1, 2}}}}), HasSubstr("1 layers"));
}

TEST(Workload, SkewedSharesAreThoseOfTheTokens) {
  const auto shares = SharesOf({.skew = 0.6, .num_experts_skew = 4}, Spec());
  ASSERT_EQ(shares.size(), 1u);
  EXPECT_NEAR(shares[0][0], 2 * 0.6 / 4, 1e-12);
  EXPECT_NEAR(shares[0][7], 2 * 0.4 / 4, 1e-12);
  EXPECT_TRUE(SharesOf({}, Spec()).empty());
}

TEST(Workload, TypicalSequencesAreAsLongAsTheTraceOnAverage) {
  Workload workload{.requests = {{10, 1}, {1000, 3}, {20, 1}, {30, 3}}};
  const auto two = TypicalSequences(workload, 2);
  EXPECT_EQ(two, (std::vector<RequestLengths>{{15, 1}, {515, 3}}));
  EXPECT_EQ(TypicalSequences(workload, 1), (std::vector<RequestLengths>{{265, 2}}));
  EXPECT_EQ(TypicalSequences(workload, 8).size(), 8u);
  // Long answers have more of the generated tokens.
  EXPECT_NEAR(workload.mean_context(), (10.5 + 3 * 1001.5 + 20.5 + 3 * 31.5) / 8, 1e-9);
}

// All steps stand for all rows, and for all keys before them.
TEST(WorkloadSteps, TypicalStepsStandForAllOfThem) {
  for (const strategy::Layout& layout :
       {strategy::Layout{}, strategy::Layout{.attention_dp = 2, .expert_ep = 2}}) {
    const std::vector<RequestLengths> sequences = {{1000, 1}, {700, 1}, {90, 1}, {513, 1}};
    double rows = 0;
    double keys = 0;
    double wanted = 0;
    const auto steps = PrefillSteps(sequences, layout, 256);
    EXPECT_LT(steps.size(), 10u);
    for (const TypicalStep& step : steps) {
      for (const auto& group : step.groups) {
        int64_t of_step = 0;
        for (const strategy::SequenceRows& sequence : group) {
          rows += step.count * static_cast<double>(sequence.num_tokens);
          wanted += step.count * static_cast<double>(sequence.num_wanted);
          keys += step.count * static_cast<double>(sequence.first_position * sequence.num_tokens);
          of_step += sequence.num_tokens;
        }
        EXPECT_LE(of_step, 256);
      }
    }
    EXPECT_NEAR(rows, 1000 + 700 + 90 + 513, 1e-6);
    EXPECT_GT(keys, 0);
    EXPECT_GE(wanted, 1);
  }
}

TEST(WorkloadSteps, AlikeStepsAreTwoWithTheMeanOfTheKeys) {
  const auto steps = PrefillSteps(std::vector<RequestLengths>(8, {4096, 64}), {}, 512);
  ASSERT_EQ(steps.size(), 2u);
  double keys = 0;
  double count = 0;
  for (const TypicalStep& step : steps) {
    count += step.count;
    keys += step.count * static_cast<double>(step.groups[0][0].first_position);
  }
  EXPECT_NEAR(count, 64, 1e-9);
  EXPECT_NEAR(keys / count, 3.5 * 512, 1e-6);
}

// An encoder sees each input whole, and the decoder begins each answer with one token.
TEST(WorkloadSteps, AnEncodersInputsStayWhole) {
  const strategy::Layout layout{.attention_dp = 2, .expert_ep = 2};
  const std::vector<RequestLengths> sequences = {{200, 9}, {90, 9}, {100, 9}, {60, 9}, {130, 9}};
  double tokens = 0;
  double answers = 0;
  for (const TypicalStep& step : EncoderSteps(sequences, layout, 256)) {
    ASSERT_EQ(step.inputs.size(), 2u);
    for (size_t group = 0; group < 2; ++group) {
      ASSERT_EQ(step.inputs[group].size(), step.groups[group].size());
      int64_t of_step = 0;
      for (size_t i = 0; i < step.inputs[group].size(); ++i) {
        const strategy::SequenceRows& input = step.inputs[group][i];
        of_step += input.num_tokens;
        EXPECT_EQ(input.num_wanted, 0);
        EXPECT_EQ(step.groups[group][i].num_tokens, 1);
        EXPECT_EQ(step.groups[group][i].num_wanted, 1);
        EXPECT_EQ(step.groups[group][i].input_length, input.num_tokens);
        answers += step.count;
      }
      EXPECT_LE(of_step, 256);
      tokens += step.count * static_cast<double>(of_step);
    }
  }
  EXPECT_NEAR(tokens, 200 + 90 + 100 + 60 + 130, 1e-9);
  EXPECT_NEAR(answers, 5, 1e-9);
}

TEST(WorkloadSteps, BehindADecodersTokenIsTheAnswerSoFar) {
  model::ModelSpec spec;
  spec.encoder_layers.resize(1);
  const Workload workload{.requests = {{100, 40}}};
  const StepSequences groups = DecodeStepOf(spec, workload, 3, {});
  ASSERT_EQ(groups.front().size(), 3u);
  EXPECT_EQ(groups.front()[0].first_position, 20);
  EXPECT_EQ(groups.front()[0].input_length, 100);
  EXPECT_EQ(DecodeStepOf({}, workload, 3, {}).front()[0].first_position, 120);
  // An answer that has hardly begun has its first token behind it.
  const StepSequences first = DecodeStepOf(spec, /*prompt_tokens=*/100, /*context=*/100, 3, {});
  EXPECT_EQ(first.front()[0].first_position, 1);
  EXPECT_EQ(first.front()[0].input_length, 100);
}

TEST(WorkloadSteps, DecodeGivesGroupsTheirSequencesInTurn) {
  const strategy::Layout layout{.attention_dp = 4, .expert_ep = 4};
  const StepSequences groups = DecodeStep(6, 100, 80, layout);
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].size(), 2u);
  EXPECT_EQ(groups[3].size(), 1u);
  EXPECT_EQ(groups[0][0].first_position, 100);
}

}  // namespace
}  // namespace convene::planner
