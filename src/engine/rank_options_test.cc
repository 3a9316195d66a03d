#include "engine/rank_options.h"

#include <gtest/gtest.h>

#include "checkpoint/model_files.h"

namespace convene::engine {
namespace {

constexpr uint64_t kMib = uint64_t{1} << 20;

// So that a device that is no CPU can answer for itself.
TEST(PlanMemoryOf, AsksTheDeviceThatItIsGiven) {
  const device::DeviceBytes invented{
      .of_kv_block = [](const model::ModelSpec&, kernels::KvFormat) { return 3 * kMib; },
      .of_steps =
          [](const model::ModelSpec&, kernels::ActivationFormat, const device::StepShape& shape,
             int num_threads) {
            memory::Amounts bytes;
            bytes[memory::Use::kWorking] = static_cast<uint64_t>(shape.context) * kMib;
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
  EXPECT_EQ(plan->kv_bytes(), 4 * 3 * kMib);
  EXPECT_EQ(plan->bytes[memory::Use::kWorking], 128 * kMib);
  EXPECT_EQ(plan->bytes[memory::Use::kExchange], 7u);
}

}  // namespace
}  // namespace convene::engine
