#include "kernels/measure_streaming.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "hardware/affinity.h"
#include "kernels/choose_kernels.h"

namespace convene::kernels {
namespace {

const KernelSet& BestKernels() {
  static const KernelSet& best = **ChooseKernels();
  return best;
}

std::array<std::atomic<int>, kStreamingFormats.size()> num_products;  // by WeightFormat
std::atomic<int> num_misaligned;

void CountProduct(const PanelGemm& gemm) {
  ++num_products[static_cast<size_t>(gemm.weights.format)];
  for (const std::byte* at : {gemm.weights.data, gemm.rows, static_cast<const std::byte*>(gemm.out),
                              static_cast<const std::byte*>(gemm.scratch)}) {
    if (reinterpret_cast<uintptr_t>(at) % 64 != 0) ++num_misaligned;
  }
  BestKernels().gemm(gemm);
}

// Of a whole expert these bytes hold int4 alone.
TEST(MeasureStreaming, ChoosesAWayThatThereIsForEverythingOfWhichItMultipliedSome) {
  hardware::ThreadPool pool(*hardware::CurrentAffinity());
  KernelSet kernels = BestKernels();
  kernels.gemm = CountProduct;
  const Result<StreamingChoice> choice =
      MeasureStreaming(pool, kernels, 0.001, (size_t{5} << 19) + 40);
  ASSERT_TRUE(choice) << choice.error().message;
  const auto again = StreamingChoice::FromNumbers(choice->numbers());
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->numbers(), choice->numbers());
  for (const WeightFormat format : kStreamingFormats) {
    EXPECT_GT(num_products[static_cast<size_t>(format)], 0) << Name(format);
  }
  EXPECT_EQ(num_misaligned, 0) << "lines are read and written whole";
}

}  // namespace
}  // namespace convene::kernels
