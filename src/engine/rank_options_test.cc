#include "engine/rank_options.h"

#include <gtest/gtest.h>

#include "checkpoint/model_files.h"
#include "device/cpu/cpu_device.h"

namespace convene::engine {
namespace {

constexpr uint64_t kMebibyte = uint64_t{1} << 20;

// So that a device that is no CPU can answer for itself.
TEST(PlanMemoryOf, AsksTheDeviceThatItIsGiven) {
  const device::DeviceBytes invented{
      .of_kv_block = [](const model::ModelSpec&, kernels::KvFormat) { return 3 * kMebibyte; },
      .of_layer_block = [](const model::ModelSpec&, kernels::KvFormat) { return kMebibyte; },
      .of_steps =
          [](const model::ModelSpec&, kernels::ActivationFormat, const device::StepShape& shape,
             int num_threads) {
            memory::Amounts bytes;
            bytes[memory::Use::kWorking] = static_cast<uint64_t>(shape.context) * kMebibyte;
            bytes[memory::Use::kExchange] = static_cast<uint64_t>(num_threads);
            return bytes;
          }};
  const auto spec = checkpoint::OpenConfig(CONVENE_SOURCE_DIR "/tests/golden/models/olmoe_plain");
  ASSERT_TRUE(spec) << spec.error().message;
  memory::Ledger ledger;
  const auto plan = PlanMemoryOf(invented, *spec, {.context = 128, .max_sequences = 2}, {},
                                 /*num_threads=*/7, ledger);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->num_kv_blocks, 4);
  EXPECT_EQ(plan->kv_bytes(), 4 * 3 * kMebibyte);
  EXPECT_EQ(plan->bytes[memory::Use::kWorking], 128 * kMebibyte);
  EXPECT_EQ(plan->bytes[memory::Use::kExchange], 7u);
}

TEST(RankOptions, StepsOfFewTokensAreNotCutWhereAPlanSaysSo) {
  LoadOptions options;
  options.plan.layout = {.attention_dp = 2, .expert_ep = 2};
  options.plan.pipeline = {.chunks = 2, .micro_batches = 2};
  EXPECT_EQ(TransformerOptionsOf(options, {}, 0).parallel.chunks_from_tokens, 0);
  options.plan.cut_from_tokens = 64;
  const runtime::ParallelOptions parallel = TransformerOptionsOf(options, {}, 0).parallel;
  EXPECT_EQ(parallel.chunks_from_tokens, 64);
  EXPECT_EQ(parallel.micro_batches_from_tokens, 64);
}

TEST(PlanMemoryOf, CountsTheOtherDivisionOfTheExpertsInDecodeAndSaysWhatItTakes) {
  const auto spec = checkpoint::OpenConfig(CONVENE_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(spec) << spec.error().message;
  const auto plan_in = [&](const LoadOptions& options, uint64_t budget_bytes) {
    memory::Ledger ledger(memory::Tier{.budget_bytes = budget_bytes, .limited_by = "a test"});
    return PlanMemoryOf(device::CpuBytes(), *spec, options, {}, /*num_threads=*/1, ledger);
  };
  constexpr uint64_t kMuch = 1024 * kMebibyte;
  LoadOptions options{.context = 128};
  options.plan.layout = {.attention_dp = 2, .expert_ep = 2};
  const auto one = plan_in(options, kMuch);
  ASSERT_TRUE(one) << one.error().message;
  options.plan.decode = {.attention_dp = 2, .expert_tp = 2};
  const auto moving = plan_in(options, kMuch);
  ASSERT_TRUE(moving) << moving.error().message;
  options.plan.phase_change.keeps_both = true;
  const auto both = plan_in(options, kMuch);
  ASSERT_TRUE(both) << both.error().message;
  EXPECT_GT(moving->weights_bytes(), one->weights_bytes());
  EXPECT_GT(both->weights_bytes(), moving->weights_bytes());
  EXPECT_GT(moving->bytes[memory::Use::kExchange], one->bytes[memory::Use::kExchange]);
  EXPECT_EQ(both->bytes[memory::Use::kExchange], moving->bytes[memory::Use::kExchange]);
  const auto refused = plan_in(options, one->needed_bytes());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kResourceExhausted);
  for (const char* words : {"the experts' other division in decode takes", "for moving",
                            "--decode-experts", "\"keep\": \"one\""}) {
    EXPECT_NE(refused.error().message.find(words), std::string::npos) << refused.error().message;
  }
}

}  // namespace
}  // namespace convene::engine
