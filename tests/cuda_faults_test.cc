// What a GPU has no memory for is an error that says so, and GPU and CPU of the same process
// compute on. Where there is no GPU everything is skipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/cuda.h"
#include "hardware/gpu.h"
#include "kernels/choose_kernels.h"
#include "tests/golden_prompts.h"

namespace convene {
namespace {

using testing::HasSubstr;

std::unique_ptr<device::Device> MakeGpu(const kernels::KernelSet&, hardware::ThreadPool& pool) {
  auto gpu = device::MakeCudaDevice(0, &pool);
  CHECK(gpu.ok(), "{}", gpu.error().message);
  return *std::move(gpu);
}

class CudaFaults : public testing::Test {
 protected:
  void SetUp() override {
    const auto gpus = hardware::FindGpus();
    if (!gpus || gpus->empty()) GTEST_SKIP() << "there is no GPU";
    auto checkpoint = checkpoint::Checkpoint::Open(kDirectory.string());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    checkpoint_.emplace(*std::move(checkpoint));
    prompt_ = ReadPrompt(kDirectory, "prompt_17");
  }

  std::unique_ptr<LoadedModel> Load(const DeviceOf& device_of) const {
    return std::make_unique<LoadedModel>(*checkpoint_, formats_, **kernels::ChooseKernels(), 1,
                                         strategy::kExpandFromTokens, device_of);
  }
  void ExpectRight(LoadedModel& model) const {
    const std::vector<float> logits = model.Logits(prompt_.tokens, kMaxLength);
    ASSERT_EQ(logits.size(), prompt_.logits.size());
    const double difference = NormOfDifference(logits, prompt_.logits) / NormOf(prompt_.logits);
    EXPECT_LE(difference, Bf16Bound(model.spec().num_layers()));
  }

  const std::filesystem::path kDirectory = CONVENE_SOURCE_DIR "/tests/golden/models/mixtral_window";
  const runtime::Formats formats_ = runtime::DefaultFormats(kernels::WeightFormat::kBf16);
  std::optional<checkpoint::Checkpoint> checkpoint_;
  Prompt prompt_;
};

TEST_F(CudaFaults, TooLittleMemoryIsSaidAndHarmsNobody) {
  const auto on_gpu = Load(MakeGpu);
  hardware::ThreadPool pool({0});
  const auto gpu = MakeGpu(**kernels::ChooseKernels(), pool);
  memory::Ledger ledger({.kind = memory::TierKind::kDevice});
  const auto huge = ledger.Allocate(memory::Use::kKvCache, uint64_t{1} << 46);
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.error().kind, ErrorKind::kResourceExhausted);
  EXPECT_THAT(huge.error().message, HasSubstr("KV cache"));
  memory::Ledger small({.kind = memory::TierKind::kDevice,
                        .budget_bytes = 1 << 20,
                        .limited_by = "--device-memory-budget"});
  const auto refused = runtime::Transformer::Create(
      on_gpu->store(), *gpu, {.num_kv_blocks = 64, .activations = formats_.activations}, small);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("--device-memory-budget"));
  ExpectRight(*on_gpu);
  ExpectRight(*Load(device::MakeCpuDevice));
}

}  // namespace
}  // namespace convene
