#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/cuda/device_memory_test.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/rows.h"
#include "kernels/pack.h"
#include "tensor/dtype.h"

namespace convene::kernels::cuda {
namespace {

using tensor::Bf16FromFloat;

std::vector<float> Floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Packs a matrix; intermediate > 0: its rows are those of gate, then as many of up.
std::vector<std::byte> PackWeights(const std::vector<float>& weights, int rows, int cols,
                                   PackedMatrix* matrix, int intermediate) {
  std::vector<std::byte> data(matrix->size_bytes());
  const StoredMatrix source{.data = reinterpret_cast<const std::byte*>(weights.data()),
                            .row_stride = cols,
                            .rows = rows,
                            .cols = cols};
  matrix->data = data.data();
  for (int group = 0; group * kLanes < matrix->rows; ++group) {
    RowSource sources[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      int row = group * kLanes + lane;
      if (intermediate > 0) {
        const GateUpRow at = GateUpRowAt(intermediate, row);
        row = at.row < intermediate ? at.row + (at.is_up ? intermediate : 0) : rows;
      }
      if (row < rows) sources[lane] = {&source, row};
    }
    EXPECT_TRUE(PackGroup(sources, *matrix, group, data.data()));
  }
  return data;
}

TEST(CudaUnpack, UnpacksRowsOfAPackedMatrix) {
  for (const int rows : {1, 16, 50, 64, 100, 129, 200}) {
    for (const int cols : {1, 64, 100, 128, 333}) {
      const int64_t stride = PaddedDepth(cols) + (rows == 100 ? 64 : 0);
      const int padded_rows = (rows + kWeightRows - 1) / kWeightRows * kWeightRows;
      const bool pads = rows != 50;
      const std::vector<float> weights = Floats(static_cast<size_t>(rows * cols), 10);
      PackedMatrix matrix{.format = WeightFormat::kBf16, .rows = rows, .cols = cols};
      const DeviceArray<std::byte> packed(PackWeights(weights, rows, cols, &matrix, 0));
      const DeviceArray<Bf16> to(
          std::vector<Bf16>(static_cast<size_t>(padded_rows * stride), 0x7fff));
      Unpack({.packed = packed.data(),
              .rows = rows,
              .cols = cols,
              .to = to.data(),
              .row_stride = stride,
              .pads_rows = pads},
             nullptr);
      const std::vector<Bf16> got = to.Host();
      for (int row = 0; row < padded_rows; ++row) {
        for (int col = 0; col < stride; ++col) {
          const Bf16 padding = row < rows || pads ? 0 : 0x7fff;
          ASSERT_EQ(got[row * stride + col],
                    row < rows && col < cols ? Bf16FromFloat(weights[row * cols + col]) : padding)
              << row << ", " << col << " of " << rows << ", " << cols;
        }
      }
    }
  }
}

TEST(CudaUnpack, UnpacksGateAndUpByTurns) {
  for (const int intermediate : {1, 8, 16, 20, 32, 33, 48, 100, 160}) {
    const int cols = 70;
    const int64_t stride = PaddedDepth(cols);
    const int rows = GatedRows(intermediate);
    const std::vector<float> weights = Floats(static_cast<size_t>(2 * intermediate * cols), 11);
    PackedMatrix matrix{
        .format = WeightFormat::kBf16, .rows = GateUpRows(intermediate), .cols = cols};
    const DeviceArray<std::byte> packed(
        PackWeights(weights, 2 * intermediate, cols, &matrix, intermediate));
    const DeviceArray<Bf16> to(std::vector<Bf16>(static_cast<size_t>(rows * stride), 0x7fff));
    Unpack({.packed = packed.data(),
            .rows = matrix.rows,
            .cols = cols,
            .is_gated = true,
            .to = to.data(),
            .row_stride = stride},
           nullptr);
    const std::vector<Bf16> got = to.Host();
    for (int row = 0; row < rows; ++row) {
      const int column = 8 * (row / 16) + row % 8;
      const int source = column + (row % 16 < 8 ? 0 : intermediate);
      for (int col = 0; col < stride; ++col) {
        ASSERT_EQ(got[row * stride + col], column < intermediate && col < cols
                                               ? Bf16FromFloat(weights[source * cols + col])
                                               : 0)
            << row << ", " << col << " of " << intermediate;
      }
    }
  }
}

}  // namespace
}  // namespace convene::kernels::cuda
