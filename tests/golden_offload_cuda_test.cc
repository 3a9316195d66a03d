// Decode steps of all families whose weights go through a GPU's memory layer by layer: where the
// GPU attends they give the bits of its resident steps; where the host does, each order gives the
// bits of the others, close to the resident steps of the CPU. Where there is no GPU everything is
// skipped.
#include <gtest/gtest.h>

#include <filesystem>

#include "device/cuda.h"
#include "hardware/gpu.h"
#include "tests/golden_fixtures.h"
#include "tests/offloaded_steps.h"

namespace convene {
namespace {

using strategy::OffloadPipeline;

std::unique_ptr<device::Device> MakeGpu() {
  auto gpu = device::MakeCudaDevice(0, nullptr);
  CHECK(gpu.ok(), "{}", gpu.error().message);
  return *std::move(gpu);
}

class GoldenOffloadCuda : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto gpus = hardware::FindGpus();
    if (!gpus || gpus->empty()) GTEST_SKIP() << "there is no GPU";
    const auto directory =
        std::filesystem::path(CONVENE_SOURCE_DIR "/tests/golden/models") / GetParam();
    const auto checkpoint = checkpoint::Checkpoint::Open(directory.string());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    auto weights = weights::LoadWeights(*checkpoint, formats_.weights, {},
                                        hardware::NumaPolicy::kAuto, pool_, ledger_, {});
    ASSERT_TRUE(weights.ok()) << weights.error().message;
    weights_.emplace(*std::move(weights));
  }

  // Of the steps that the CPU has computed with everything resident; `reads_prompts`: the prompts'
  // before them, which otherwise the CPU has read.
  static Logits Run(Resident& on_gpu, Resident& on_cpu, const OffloadPipeline& pipeline,
                    bool reads_prompts = false) {
    const auto cache = reads_prompts ? on_cpu.EmptyCache() : on_cpu.HostCache();
    auto steps = on_gpu.Offload(pipeline, *cache);
    EXPECT_TRUE(steps.ok()) << steps.error().message;
    if (!steps.ok()) return {};
    Logits logits;
    if (reads_prompts) logits.push_back(LogitsOf(*steps, on_cpu.Prompts()));
    for (int index = 0; index < Resident::kSteps; ++index) {
      logits.push_back(LogitsOf(*steps, on_cpu.StepAt(index)));
    }
    return logits;
  }
  // The largest difference of a sequence's logits, of their norm.
  static double WorstOf(const Logits& found, const Logits& expected) {
    EXPECT_EQ(found.size(), expected.size());
    double worst = 0;
    for (size_t step = 0; step < found.size(); ++step) {
      for (size_t i = 0; i < found[step].size(); ++i) {
        const double norm = NormOf(expected[step][i]);
        worst = std::max(worst, NormOfDifference(found[step][i], expected[step][i]) / norm);
      }
    }
    return worst;
  }

  const runtime::Formats formats_ = runtime::DefaultFormats(kernels::WeightFormat::kBf16);
  hardware::ThreadPool pool_{{0}};
  memory::Ledger ledger_;
  std::optional<weights::ModelWeights> weights_;
};

TEST_P(GoldenOffloadCuda, GivesTheBitsOfResidentStepsWhereTheGpuAttends) {
  Resident on_gpu(*weights_, formats_, /*num_sequences=*/5, MakeGpu());
  for (const strategy::OffloadOrder order : strategy::kOffloadOrders) {
    if (strategy::AttendsOnHost(order)) continue;
    for (const int micro_batches : {1, 3}) {
      ExpectSameBits(on_gpu, {.order = order, .micro_batches = micro_batches});
    }
  }
}

TEST_P(GoldenOffloadCuda, ComesCloseToTheCpuWhereTheHostAttends) {
  Resident on_cpu(*weights_, formats_, /*num_sequences=*/5);
  Resident on_gpu(*weights_, formats_, /*num_sequences=*/5, MakeGpu());
  // Both sides round as often, and independently.
  const double bound = std::sqrt(2.0) * Bf16Bound(weights_->spec.num_layers());
  Logits first;
  for (const OffloadPipeline& pipeline : std::vector<OffloadPipeline>{
           {.order = strategy::OffloadOrder::kCgo, .micro_batches = 3},
           {.order = strategy::OffloadOrder::kCgo, .micro_batches = 3, .pinned_pages = 0},
           {.order = strategy::OffloadOrder::kCgo, .micro_batches = 1},
           {.order = strategy::OffloadOrder::kS2, .micro_batches = 3},
           {.order = strategy::OffloadOrder::kS3, .micro_batches = 2}}) {
    const Logits logits = Run(on_gpu, on_cpu, pipeline);
    if (first.empty()) first = logits;
    EXPECT_EQ(logits, first) << strategy::Name(pipeline.order);
  }
  const double worst = WorstOf(first, on_cpu.logits());
  Logits from_prompts_on = on_cpu.logits();
  from_prompts_on.insert(from_prompts_on.begin(), on_cpu.prompt_logits());
  const double with_prompts =
      WorstOf(Run(on_gpu, on_cpu, {.micro_batches = 3, .pinned_pages = 0}, /*reads_prompts=*/true),
              from_prompts_on);
  fmt::print("  {}: worst {:.5f}, from prompts on {:.5f} of {:.5f} allowed\n", GetParam(), worst,
             with_prompts, bound);
  EXPECT_LE(worst, bound);
  EXPECT_LE(with_prompts, bound);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GoldenOffloadCuda,
                         testing::Values("dbrx_clip", "gpt_oss_plain", "granitemoe_plain",
                                         "mixtral_window", "olmoe_clip", "qwen2_many",
                                         "qwen3_window", "qwen3_yarn"));

}  // namespace
}  // namespace convene
