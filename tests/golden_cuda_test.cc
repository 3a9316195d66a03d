// Whole models on a GPU against Hugging Face transformers, with the bounds that the CPU's bf16 has
// (golden_models_test.cc), and how far a sequence's logits depend on its company. Where there is no
// GPU everything is skipped.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "device/cuda.h"
#include "hardware/gpu.h"
#include "kernels/choose_kernels.h"
#include "tests/golden_prompts.h"
#include "weights/paged_weights.h"

namespace convene {
namespace {

std::unique_ptr<device::Device> MakeGpu(const kernels::KernelSet&, hardware::ThreadPool& pool) {
  auto gpu = device::MakeCudaDevice(0, &pool);
  CHECK(gpu.ok(), "{}", gpu.error().message);
  return *std::move(gpu);
}

class GoldenCuda : public testing::TestWithParam<std::filesystem::path> {
 protected:
  void SetUp() override {
    const auto gpus = hardware::FindGpus();
    if (!gpus || gpus->empty()) GTEST_SKIP() << "there is no GPU";
    auto checkpoint = checkpoint::Checkpoint::Open(GetParam().string());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    hardware::ThreadPool pool(std::vector<int>(1, 0));
    const Status fits = MakeGpu(**kernels::ChooseKernels(), pool)
                            ->Supports(checkpoint->spec(), kernels::ActivationFormat::kBf16);
    if (!fits) GTEST_SKIP() << fits.error().message;
    for (const char* name : {"prompt_300", "prompt_17", "prompt_1"}) {
      prompts_.push_back(ReadPrompt(GetParam(), name));
    }
    bound_ = Bf16Bound(checkpoint->spec().num_layers());
    model_ = std::make_unique<LoadedModel>(
        *checkpoint, runtime::DefaultFormats(kernels::WeightFormat::kBf16),
        **kernels::ChooseKernels(), 1, strategy::kExpandFromTokens, MakeGpu);
  }

  // Relative to their norm, the largest difference of a position's logits.
  double WorstOf(std::span<const float> logits, std::span<const float> expected) const {
    const auto vocab = static_cast<size_t>(model_->vocab_size());
    double worst = 0;
    for (size_t at = 0; at < expected.size(); at += vocab) {
      const auto row = expected.subspan(at, vocab);
      worst = std::max(worst, NormOfDifference(logits.subspan(at, vocab), row) / NormOf(row));
    }
    return worst;
  }

  std::vector<Prompt> prompts_;
  double bound_ = 0;
  std::unique_ptr<LoadedModel> model_;
};

TEST_P(GoldenCuda, LogitsStayWithinTheBoundOfTheirRoundings) {
  const auto vocab = static_cast<size_t>(model_->vocab_size());
  double worst = 0;
  for (const Prompt& prompt : prompts_) {
    const auto logits = model_->Logits(prompt.tokens, kMaxLength);
    ASSERT_EQ(logits.size(), prompt.logits.size());
    int num_wrong = 0;
    for (size_t position = 0; position < prompt.tokens.size(); ++position) {
      if (prompt.router_margin[position] <= bound_) continue;
      const auto at = position * vocab;
      const std::span expected(&prompt.logits[at], vocab);
      const double difference = NormOfDifference({&logits[at], vocab}, expected) / NormOf(expected);
      worst = std::max(worst, difference);
      num_wrong += !(difference <= bound_);
    }
    EXPECT_EQ(num_wrong, 0) << "positions of a prompt of " << prompt.tokens.size() << ", bound "
                            << bound_;
  }
  fmt::print("  {}: worst {:.5f} of {:.5f} allowed\n", GetParam().filename().string(), worst,
             bound_);
}

TEST_P(GoldenCuda, GreedyContinuationsEqualTransformers) {
  for (const Prompt& prompt : prompts_) {
    const auto tokens = model_->Greedy(prompt, prompt.greedy.size());
    const auto logits_scale = static_cast<float>(
        NormOf(prompt.logits) / std::sqrt(static_cast<double>(prompt.logits.size())));
    for (size_t i = 0; i < tokens.size() && prompt.greedy_margin[i] > 2 * bound_ * logits_scale;
         ++i) {
      ASSERT_EQ(tokens[i], prompt.greedy[i]) << "step " << i << " after " << prompt.tokens.size();
    }
  }
}

TEST_P(GoldenCuda, LogitsDependOnNothingButTheSequence) {
  const std::vector<float> whole = model_->Logits(prompts_[0].tokens, kMaxLength);
  for (const int chunk : {1, 7, 64, 100}) {
    const std::vector<float> in_chunks = model_->Logits(prompts_[0].tokens, chunk, 2);
    EXPECT_TRUE(in_chunks == whole)
        << "in chunks of " << chunk << ": worst difference " << WorstOf(in_chunks, whole);
  }
  const auto together = model_->LogitsTogether(prompts_);
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const auto alone = model_->Logits(prompts_[i].tokens, kMaxLength);
    EXPECT_TRUE(together[i] == alone)
        << "in company: worst difference " << WorstOf(together[i], alone);
  }
  const auto from = static_cast<int>(prompts_[0].tokens.size()) - 9;
  const auto last = model_->LogitsFrom(prompts_[0].tokens, from);
  const std::span expected = std::span(whole).last(last.size());
  EXPECT_TRUE(std::equal(last.begin(), last.end(), expected.begin()))
      << "the last ones alone: worst difference " << WorstOf(last, expected);
}

// Where the GPU has no room for all experts, they come when they are needed.
TEST_P(GoldenCuda, PagesInTheHostsMemoryGiveTheBitsOfResidentExperts) {
  auto checkpoint = checkpoint::Checkpoint::Open(GetParam().string());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const auto formats = runtime::DefaultFormats(kernels::WeightFormat::kBf16);
  const std::vector<float> whole = model_->Logits(prompts_[0].tokens, kMaxLength);
  const std::vector<float> alone = model_->Logits(prompts_[1].tokens, 1, 2);
  const auto together = model_->LogitsTogether(prompts_);
  const weights::PagedSizes sizes = weights::PagedSizesOf(checkpoint->spec(), formats.weights);
  if (sizes.num_pages == 0) GTEST_SKIP() << "it has no experts";
  hardware::ThreadPool pool(std::vector<int>(1, 0));
  const auto gpu = MakeGpu(**kernels::ChooseKernels(), pool);
  for (const int num_buffers : {sizes.fewest_buffers, sizes.num_pages / 2 + 1, sizes.num_pages}) {
    memory::Ledger of_device{memory::Tier{.kind = memory::TierKind::kDevice}};
    weights::PagedWeights* store = nullptr;
    LoadedModel paged(*checkpoint, formats, **kernels::ChooseKernels(), 1,
                      strategy::kExpandFromTokens, MakeGpu, [&](weights::ModelWeights& weights) {
                        auto made =
                            weights::PagedWeights::OnDevice(weights, {.num_buffers = num_buffers},
                                                            *gpu->CreateCopyLane(), of_device);
                        CHECK(made.ok(), "{}", made.error().message);
                        store = made->get();
                        return *std::move(made);
                      });
    EXPECT_TRUE(paged.Logits(prompts_[0].tokens, kMaxLength) == whole) << num_buffers;
    EXPECT_TRUE(paged.Logits(prompts_[1].tokens, 1, 2) == alone) << num_buffers << ", one by one";
    EXPECT_TRUE(paged.LogitsTogether(prompts_) == together) << num_buffers << ", together";
    EXPECT_GT(store->statistics().num_read, 0);
    if (num_buffers == sizes.num_pages) {
      EXPECT_LE(store->statistics().num_read, sizes.num_pages);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GoldenCuda, testing::ValuesIn(Fixtures()),
                         [](const auto& fixture) { return fixture.param.filename().string(); });

}  // namespace
}  // namespace convene
