#include "kernels/measure_order.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "hardware/affinity.h"
#include "kernels/choose_kernels.h"

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

TEST(MeasureOrder, MultipliesRowsThatEndInSumsOfBytes) {
  hardware::ThreadPool pool(*hardware::CurrentAffinity());
  KernelSet kernels = **ChooseKernels();
  kernels.gemm = LookAtRows;
  const Result<int> from = MeasureDenseFromRows(pool, kernels, /*budget_s=*/0);
  ASSERT_TRUE(from) << from.error().message;
  EXPECT_GT(num_panels_seen, 0);
  EXPECT_EQ(num_rows_without_end, 0);
}

}  // namespace
}  // namespace convene::kernels
