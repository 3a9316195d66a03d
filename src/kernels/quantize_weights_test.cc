#include "kernels/quantize_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "base/digest.h"
#include "kernels/activation_row.h"

namespace convene::kernels {
namespace {

// Sizes with ragged tails for vectors of any width; the distribution is of our own making, since
// those of the library differ.
std::vector<float> RandomRow(size_t cols) {
  std::mt19937 random(static_cast<uint32_t>(cols));
  std::vector<float> row(cols);
  for (float& value : row) value = static_cast<float>(random() % 20001) / 10000.0f - 1.0f;
  return row;
}

struct Int4Row {
  std::vector<uint8_t> values;
  std::vector<int8_t> scales;
  float scale;
};

Int4Row Quantized(const std::vector<float>& row, int group) {
  const size_t num_groups = (row.size() + group - 1) / group;
  Int4Row result{std::vector<uint8_t>(row.size()), std::vector<int8_t>(num_groups), 0};
  result.scale = QuantizeInt4Row(row, row, group, result.values.data(), result.scales.data());
  return result;
}

// These tests run once more for each instruction set that may be forced (src/CMakeLists.txt).
TEST(QuantizeWeights, Int4RowsHaveTheSameBitsOnEveryInstructionSet) {
  std::vector<uint8_t> all;
  for (const size_t cols : {1, 31, 64, 131, 1000}) {
    for (const int group : {32, 64, 128}) {
      const Int4Row row = Quantized(RandomRow(cols), group);
      all.insert(all.end(), row.values.begin(), row.values.end());
      for (const int8_t scale : row.scales) all.push_back(static_cast<uint8_t>(scale));
    }
  }
  EXPECT_EQ(DigestOf(std::as_bytes(std::span(all))), 9263264892450806037u);
}

TEST(QuantizeWeights, Int4IsWithinAStepOfTheWeight) {
  const std::vector<float> row = RandomRow(1000);
  const Int4Row quantized = Quantized(row, 32);
  for (size_t i = 0; i < row.size(); ++i) {
    const float step = static_cast<float>(quantized.scales[i / 32]) * quantized.scale;
    const float back = static_cast<float>(quantized.values[i] - kInt4Zero) * step;
    EXPECT_LE(std::abs(back - row[i]), 2 * std::abs(step)) << i;
  }
}

TEST(QuantizeWeights, RowsOfNothingBecomeZeros) {
  const Int4Row row = Quantized(std::vector<float>(65), 64);
  for (const uint8_t value : row.values) EXPECT_EQ(value, kInt4Zero);
}

}  // namespace
}  // namespace convene::kernels
