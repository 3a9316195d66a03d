// What a GPU has no memory for, a copy that fails, and a GPU that is lost in the middle of a step
// are errors that say so, and what can still compute in the same process does. Where there is no
// GPU everything is skipped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/cuda.h"
#include "hardware/gpu.h"
#include "kernels/choose_kernels.h"
#include "kernels/cuda/rows.h"
#include "tests/golden_prompts.h"
#include "weights/paged_weights.h"

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

// Copies of which one is larger than the memory it goes to.
class TooLargeCopy final : public memory::CopyLane {
 public:
  TooLargeCopy(std::unique_ptr<memory::CopyLane> lane, const bool& fails)
      : lane_(std::move(lane)), fails_(fails) {}
  void Copy(std::byte* to, const std::byte* from, size_t size_bytes) override {
    lane_->Copy(to, from, fails_ ? size_t{1} << 42 : size_bytes);
  }
  Status Wait() override { return lane_->Wait(); }

 private:
  std::unique_ptr<memory::CopyLane> lane_;
  const bool& fails_;
};

TEST_F(CudaFaults, ACopyThatFailsFailsItsStepAlone) {
  hardware::ThreadPool pool({0});
  const auto gpu = MakeGpu(**kernels::ChooseKernels(), pool);
  memory::Ledger of_device{memory::Tier{.kind = memory::TierKind::kDevice}};
  bool fails = false;
  LoadedModel paged(*checkpoint_, formats_, **kernels::ChooseKernels(), 1,
                    strategy::kExpandFromTokens, MakeGpu, [&](weights::ModelWeights& weights) {
                      const weights::PagedSizes sizes =
                          weights::PagedSizesOf(weights.spec, weights.formats);
                      auto store = weights::PagedWeights::OnDevice(
                          weights, {.num_buffers = sizes.fewest_buffers},
                          std::make_unique<TooLargeCopy>(*gpu->CreateCopyLane(), fails), of_device);
                      CHECK(store.ok(), "{}", store.error().message);
                      return *std::move(store);
                    });
  ExpectRight(paged);
  fails = true;
  const std::vector<int> blocks = {0, 1, 2, 3, 4, 5};
  const device::SequenceStep step{.tokens = prompt_.tokens,
                                  .blocks = blocks,
                                  .prompt_length = static_cast<int>(prompt_.tokens.size())};
  const Status failed =
      paged.transformer().Forward({&step, 1}, [](int, int, std::span<const float>) {});
  fails = false;
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().message, HasSubstr("a copy between host and device"));
  ExpectRight(paged);
}

// The last one: CUDA gives this process no GPU any more.
TEST_F(CudaFaults, WithoutItsGpuAStepFailsAndTheCpuComputesOn) {
  const auto on_cpu = Load(device::MakeCpuDevice);
  bool loses = false;
  const auto before_task = [&](const schedule::Task& task) -> Status {
    if (loses && task.kind == schedule::TaskKind::kRoute && task.layer == 1) {
      // Addresses that nobody has.
      kernels::cuda::Unpack({.packed = reinterpret_cast<const std::byte*>(0x1000),
                             .rows = 64,
                             .cols = 64,
                             .to = reinterpret_cast<kernels::cuda::Bf16*>(0x2000),
                             .row_stride = 64},
                            nullptr);
    }
    return {};
  };
  LoadedFixture on_gpu(*checkpoint_, formats_, **kernels::ChooseKernels(), 1,
                       {.max_step_tokens = kMaxLength,
                        .num_kv_blocks = kBlocksEach,
                        .parallel = {.experiment = {.before_task = before_task}}},
                       {}, {}, MakeGpu);
  const std::vector<int> blocks = {0, 1, 2, 3, 4, 5};
  const device::SequenceStep step{.tokens = prompt_.tokens,
                                  .blocks = blocks,
                                  .prompt_length = static_cast<int>(prompt_.tokens.size())};
  const auto forward = [&] {
    return on_gpu.transformer().Forward({&step, 1}, [](int, int, std::span<const float>) {});
  };
  EXPECT_TRUE(forward().ok());
  loses = true;
  const Status lost = forward();
  ASSERT_FALSE(lost.ok());
  EXPECT_THAT(lost.error().message, HasSubstr("illegal memory access"));
  loses = false;
  EXPECT_FALSE(forward().ok()) << "it does not come back";
  ExpectRight(*on_cpu);
}

}  // namespace
}  // namespace convene
