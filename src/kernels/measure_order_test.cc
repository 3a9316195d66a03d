#include "kernels/measure_order.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "hardware/affinity.h"
#include "hardware/huge_buffer.h"
#include "kernels/choose_kernels.h"
#include "kernels/streaming_choice.h"

namespace convene::kernels {
namespace {

std::atomic<int> num_panels_seen;
std::atomic<int> num_rows_without_end;

// Looks at the rows instead of multiplying them, which would take seconds.
void LookAtRows(const PanelGemm& gemm) {
  ++num_panels_seen;
  const int padded = gemm.weights.padded();
  for (int row = 0; row < gemm.num_rows; ++row) {
    const std::byte* at = gemm.rows + row * gemm.row_stride;
    const Int8RowEnd& end = *RowEnd(at, padded);
    bool is_of_values = std::abs(int64_t{end.sum}) <= int64_t{127} * padded;
    for (int block = 0; block < padded / kInt4Block; ++block) {
      is_of_values =
          is_of_values && std::abs(int64_t{BlockSums(at, padded)[block]}) <= 127 * kInt4Block;
    }
    if (!is_of_values) ++num_rows_without_end;
  }
}

constexpr size_t kWeightBytes = size_t{160} << 20;  // two and a half times those of a product

TEST(MeasureOrder, MultipliesRowsThatEndInSumsOfBytes) {
  hardware::ThreadPool pool(*hardware::CurrentAffinity());
  KernelSet kernels = **ChooseKernels();
  kernels.gemm = LookAtRows;
  const auto weights = *hardware::HugeBuffer::Allocate(kWeightBytes, "a test's weights");
  const Result<int> from = MeasureDenseFromRows(pool, kernels, /*budget_s=*/0, weights.bytes());
  ASSERT_TRUE(from) << from.error().message;
  EXPECT_GT(num_panels_seen, 0);
  EXPECT_EQ(num_rows_without_end, 0);
}

std::atomic<int64_t> order_ns;
int dense_is_faster_from = 0;  // rows; 0: never
std::atomic<const std::byte*> last_expert;

double NowOfOrders() { return 1e-9 * static_cast<double>(order_ns.load()); }

// Two threads that have all experts to share out get more than four panels at once, but for the
// last ones; of one expert they get four at most.
void TakeTimeByOrder(const PanelGemm& gemm) {
  const bool is_grouped = gemm.num_panels > 4;
  const bool is_slow =
      is_grouped == (dense_is_faster_from > 0 && gemm.num_rows >= dense_is_faster_from);
  order_ns += gemm.num_panels * (is_slow ? 2000 : 1000);
  const std::byte* last = last_expert;
  while (last < gemm.weights.data && !last_expert.compare_exchange_weak(last, gemm.weights.data)) {
  }
}

TEST(MeasureOrder, FindsFromHowManyRowsOnDenseIsFaster) {
  hardware::ThreadPool pool({0, 0});
  const StreamingChoice own_panels(kStreamingWays[3]);
  KernelSet kernels = **ChooseKernels();
  kernels.streaming = &own_panels;
  kernels.gemm = TakeTimeByOrder;
  const auto weights = *hardware::HugeBuffer::Allocate(kWeightBytes, "a test's weights");
  for (const int rows : {0, 1, 16, 256}) {
    dense_is_faster_from = rows;
    last_expert = weights.data();
    const Result<int> from =
        MeasureDenseFromRows(pool, kernels, /*budget_s=*/0, weights.bytes(), NowOfOrders);
    ASSERT_TRUE(from) << from.error().message;
    EXPECT_EQ(*from, rows);
    EXPECT_GE(last_expert - weights.data(), int64_t{100} << 20) << "it reads the same again";
  }
}

}  // namespace
}  // namespace convene::kernels
