// The sequences, micro-batches and steps of a batch whose experts go through a GPU layer by layer,
// on an invented GPU with an invented host.
#include "engine/plan_offload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "checkpoint/model_files.h"
#include "device/cpu/cpu_device.h"
#include "runtime/offloaded_steps.h"

namespace convene::engine {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMib = uint64_t{1} << 20;
constexpr uint64_t kBesideBytes = 8 * kMib;

// Takes what a CPU takes, and so much for weights.
Result<uint64_t> Beside(const model::ModelSpec&, weights::DeviceLoans loans) {
  EXPECT_EQ(loans, weights::DeviceLoans::kFeedForward);
  return kBesideBytes;
}

class PlanOffloadTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto spec = checkpoint::OpenConfig(CONVENE_SOURCE_DIR "/models/demo/config.json");
    ASSERT_TRUE(spec.ok()) << spec.error().message;
    spec_ = *spec;
    options_.max_step_tokens = 128;
    options_.batch_work = BatchWork{.num_requests = 400,
                                    .prompt_tokens = 70,
                                    .gen_tokens = 50,
                                    .longest = 120,
                                    .chooses_sequences = true,
                                    .chooses_step_tokens = true};
  }

  OffloadMachine Machine(uint64_t host_bytes) {
    device::DeviceBytes device = device::CpuBytes();
    device.of_weights_beside = Beside;
    cost::MachineProfile profile{.device = cost::DeviceFigures{.name = "a GPU",
                                                               .flops = {{"bf16", 500e12}},
                                                               .memory_bytes_per_second = 3e12,
                                                               .memory_bytes = 1 << 30,
                                                               .host_bytes_per_second = 1e9}};
    profile.machine.bf16_gflops = 5000;
    profile.machine.read_gbps = 100;
    return {profile, device, of_device_, host_bytes};
  }

  const runtime::Formats formats_ = runtime::DefaultFormats(kernels::WeightFormat::kBf16);
  model::ModelSpec spec_;
  LoadOptions options_;
  memory::Ledger of_device_{
      memory::Tier{.kind = memory::TierKind::kDevice, .budget_bytes = 2048 * kMib}};
};

TEST_F(PlanOffloadTest, AsManySequencesShareALayerAsTheHostHasRoomFor) {
  const auto small = PlanOffload(spec_, options_, formats_, Machine(80 * kMib));
  ASSERT_TRUE(small.ok()) << small.error().message;
  const auto large = PlanOffload(spec_, options_, formats_, Machine(8192 * kMib));
  ASSERT_TRUE(large.ok()) << large.error().message;
  EXPECT_EQ(large->max_sequences, 400) << "all that there are";
  EXPECT_GT(small->max_sequences, 1);
  EXPECT_LT(small->max_sequences, large->max_sequences);
  EXPECT_LE(small->host_kv_bytes, 80 * kMib);
  for (const auto& plan : {*small, *large}) {
    EXPECT_GE(plan.max_step_tokens, plan.max_sequences);
    EXPECT_GE(plan.num_kv_blocks, plan.max_sequences * BlocksOfSequence(*options_.batch_work));
    EXPECT_GE(plan.offload_micro_batches, 1);
    EXPECT_LE(plan.needed_bytes(), plan.available_bytes);
    EXPECT_EQ(plan.num_page_buffers, 0);
    EXPECT_EQ(plan.context, 120);
    EXPECT_THAT(plan.batch_words, HasSubstr("attention are the host's"));
  }
}

TEST_F(PlanOffloadTest, CountsWhatTheDeviceTakes) {
  const auto plan = PlanOffload(spec_, options_, formats_, Machine(8192 * kMib));
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  const runtime::OffloadedOptions offloaded{
      .pipeline = {.micro_batches = plan->offload_micro_batches, .pinned_pages = 0},
      .max_sequences = plan->max_sequences,
      .max_step_tokens = plan->max_step_tokens,
      .context = plan->context};
  EXPECT_EQ(plan->weights_bytes(),
            kBesideBytes + 2 * weights::StreamedWeights::RoomBytes(spec_, formats_.weights));
  EXPECT_GE(plan->bytes[memory::Use::kExchange],
            runtime::OffloadedSteps::PlannedRowBytes(spec_, offloaded));
}

TEST_F(PlanOffloadTest, IsPricedAboveFewSequencesWithPagesAndBelowManyThatAreResident) {
  const OffloadMachine machine = Machine(8192 * kMib);
  const auto plan = PlanOffload(spec_, options_, formats_, machine);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  const auto offloaded = TokensPerSecond(spec_, options_, *plan, machine);
  MemoryPlan paged{
      .num_kv_blocks = 24, .num_page_buffers = 2, .max_sequences = 400, .max_step_tokens = 400};
  const auto of_few = TokensPerSecond(spec_, options_, paged, machine);
  paged = {
      .num_kv_blocks = 1200, .num_page_buffers = 32, .max_sequences = 400, .max_step_tokens = 4096};
  const auto of_all = TokensPerSecond(spec_, options_, paged, machine);
  ASSERT_TRUE(offloaded.ok() && of_few.ok() && of_all.ok());
  EXPECT_GT(*offloaded, 5 * *of_few) << "keys and values of eight fit";
  EXPECT_GT(*of_all, *offloaded);
}

TEST_F(PlanOffloadTest, WithoutABatchAsManyRunAsAreAskedFor) {
  options_.batch_work.reset();
  options_.max_sequences = 24;
  options_.context = 200;
  const auto plan = PlanOffload(spec_, options_, formats_, Machine(8192 * kMib));
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->max_sequences, 24);
  EXPECT_EQ(plan->context, 200);
}

TEST_F(PlanOffloadTest, SaysWhatDoesNotFit) {
  const auto no_host = PlanOffload(spec_, options_, formats_, Machine(kMib));
  ASSERT_FALSE(no_host.ok());
  EXPECT_THAT(no_host.error().message, HasSubstr("the host has 1.00 MiB and needs"));
  OffloadMachine unmeasured_machine = Machine(8192 * kMib);
  unmeasured_machine.profile.machine.read_gbps = 0;
  const auto unmeasured = PlanOffload(spec_, options_, formats_, unmeasured_machine);
  ASSERT_FALSE(unmeasured.ok());
  EXPECT_THAT(unmeasured.error().message, HasSubstr("convene measure"));
  OffloadMachine no_gpu = Machine(8192 * kMib);
  no_gpu.device = device::CpuBytes();
  EXPECT_FALSE(PlanOffload(spec_, options_, formats_, no_gpu).ok()) << "there is no GPU";
  spec_.layers.front().attention.latent.emplace();
  const auto latent = PlanOffload(spec_, options_, formats_, Machine(8192 * kMib));
  ASSERT_FALSE(latent.ok());
  EXPECT_THAT(latent.error().message, HasSubstr("latent attention"));
}

}  // namespace
}  // namespace convene::engine
