#include "planner/one_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/costs_test.h"

namespace convene::planner {
namespace {

model::ModelSpec SpecOfProcess() {
  model::LayerSpec layer;
  layer.attention = {.num_heads = 8, .num_kv_heads = 8, .head_dim = 64, .value_dim = 64};
  layer.moe = model::MoeSpec{.num_experts = 16, .top_k = 2, .intermediate_size = 256};
  model::ModelSpec spec;
  spec.hidden_size = 512;
  spec.vocab_size = 32000;
  spec.layers = {layer, layer};
  return spec;
}

// Two ranks of one thread, and one process of two that is twice as fast.
OneProcess Compared(double latency, double error, bool are_known = true) {
  static const model::ModelSpec spec = SpecOfProcess();
  const MadeCosts rank{.flops_per_second = 5e10,
                       .weight_bytes_per_second = 5e9,
                       .link_bytes_per_second = 2e9,
                       .latency = latency,
                       .error = error};
  MadeCosts all = rank;
  all.flops_per_second *= 2;
  all.weight_bytes_per_second *= 2;
  cost::StepCosts ranks = MakeCosts(2, rank);
  cost::StepCosts one = MakeCosts(1, all);
  one.num_threads = 2;
  for (cost::StepCosts* costs : {&ranks, &one}) {
    if (!are_known) costs->held_out = {};
  }
  const OneProcessQuestion question{
      .spec = spec,
      .options = {.roles = strategy::Layout{.attention_dp = 2, .expert_ep = 2}},
      .costs = ranks,
      .one_process = one,
      .num_sequences = 2};
  const Result<OneProcess> compared = CompareWithOneProcess(question);
  CHECK(compared.ok(), "{}", compared.error().message);
  EXPECT_THAT(Describe(*compared, question), testing::HasSubstr("one process with 2 threads"));
  return *compared;
}

TEST(OneProcess, DecodesTwoSequencesFasterThanTwoRanksThatReadTheSameTwice) {
  const OneProcess compared = Compared(1e-4, 0.02);
  // The head and attention are read by each rank, and at half the rate.
  EXPECT_GT(compared.decode.factor(), 1.3);
  EXPECT_TRUE(compared.decode.is_surely_faster);
  EXPECT_GT(compared.decode.factor(), compared.prefill.factor());
  EXPECT_TRUE(compared.is_worth_a_word());
}

TEST(OneProcess, IsNotSurelyFasterWhereErrorsLeaveItOpen) {
  EXPECT_FALSE(Compared(1e-6, 0.9).decode.is_surely_faster);
}

// Not less than those of which errors are known to be as large as is usual.
TEST(OneProcess, IsNoMoreCertainWhereNoErrorsAreKnown) {
  for (const double latency : {1e-6, 1e-5, 1e-4, 1e-3}) {
    const OneProcess usual = Compared(latency, cost::kUsualError);
    const OneProcess unknown = Compared(latency, 0, /*are_known=*/false);
    EXPECT_LE(unknown.prefill.is_surely_faster, usual.prefill.is_surely_faster) << latency;
    EXPECT_LE(unknown.decode.is_surely_faster, usual.decode.is_surely_faster) << latency;
  }
}

}  // namespace
}  // namespace convene::planner
