#include "tensor/small_floats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace convene::tensor {
namespace {

TEST(SmallFloats, E4m3HasTheValuesOfItsDefinition) {
  EXPECT_EQ(FloatFromE4m3(0x00), 0.0f);
  EXPECT_TRUE(std::signbit(FloatFromE4m3(0x80)));
  EXPECT_EQ(FloatFromE4m3(0x01), 0x1p-9f);
  EXPECT_EQ(FloatFromE4m3(0x07), 7 * 0x1p-9f);
  EXPECT_EQ(FloatFromE4m3(0x08), 0x1p-6f);
  EXPECT_EQ(FloatFromE4m3(0x38), 1.0f);
  EXPECT_EQ(FloatFromE4m3(0x3c), 1.5f);
  EXPECT_EQ(FloatFromE4m3(0x7e), 448.0f);
  EXPECT_EQ(FloatFromE4m3(0xfe), -448.0f);
  EXPECT_TRUE(std::isnan(FloatFromE4m3(0x7f)));
  EXPECT_TRUE(std::isnan(FloatFromE4m3(0xff)));
}

TEST(SmallFloats, E4m3RoundsToTheNearestAndBack) {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = FloatFromE4m3(static_cast<uint8_t>(bits));
    if (std::isnan(value)) continue;
    EXPECT_EQ(E4m3FromFloat(value), bits);
    if ((bits & 0x7f) == 0x7e) continue;
    const float next = FloatFromE4m3(static_cast<uint8_t>(bits + 1));
    EXPECT_EQ(E4m3FromFloat(value + 0.49f * (next - value)), bits);
    EXPECT_EQ(E4m3FromFloat(value + 0.51f * (next - value)), bits + 1);
    EXPECT_EQ(E4m3FromFloat(value + 0.5f * (next - value)), (bits + 1) & ~1) << "ties to even";
  }
  EXPECT_EQ(E4m3FromFloat(1e9f), 0x7e);
  EXPECT_EQ(E4m3FromFloat(-std::numeric_limits<float>::infinity()), 0xfe);
  EXPECT_EQ(E4m3FromFloat(1e-30f), 0);
  EXPECT_TRUE(std::isnan(FloatFromE4m3(E4m3FromFloat(std::nanf("")))));
}

TEST(SmallFloats, E2m1RoundsToTheNearestAndBack) {
  for (uint8_t half = 0; half < 16; ++half) EXPECT_EQ(E2m1FromFloat(FloatFromE2m1(half)), half);
  EXPECT_EQ(FloatFromE2m1(7), 6.0f);
  EXPECT_EQ(FloatFromE2m1(9), -0.5f);
  EXPECT_EQ(FloatFromE2m1(E2m1FromFloat(2.6f)), 3.0f);
  EXPECT_EQ(FloatFromE2m1(E2m1FromFloat(2.5f)), 2.0f) << "ties to even";
  EXPECT_EQ(FloatFromE2m1(E2m1FromFloat(3.5f)), 4.0f) << "ties to even";
  EXPECT_EQ(FloatFromE2m1(E2m1FromFloat(-100)), -6.0f);
}

TEST(SmallFloats, ManyAreAsEachAlone) {
  std::vector<std::byte> bytes(40);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 71 % 120);
  for (const int64_t first : {0, 1, 6, 7}) {
    for (const int count : {0, 1, 2, 9, 10}) {
      std::vector<float> fp8(11, -9), fp4(11, -9);
      FloatsFromE4m3(bytes.data(), first, count, fp8.data());
      FloatsFromE2m1(bytes.data(), first, count, fp4.data());
      for (int i = 0; i < count; ++i) {
        EXPECT_EQ(fp8[i], FloatFromE4m3(static_cast<uint8_t>(bytes[first + i])));
        const int pair = static_cast<int>(bytes[(first + i) / 2]);
        EXPECT_EQ(fp4[i], FloatFromE2m1(
                              static_cast<uint8_t>((first + i) % 2 == 0 ? pair & 15 : pair >> 4)));
      }
      EXPECT_EQ(fp8[count], -9);
      EXPECT_EQ(fp4[count], -9);
    }
  }
}

TEST(SmallFloats, E8m0IsAPowerOfTwo) {
  EXPECT_EQ(FloatFromE8m0(127), 1.0f);
  EXPECT_EQ(FloatFromE8m0(0), 0x1p-127f);
  EXPECT_EQ(FloatFromE8m0(254), 0x1p127f);
  EXPECT_TRUE(std::isnan(FloatFromE8m0(255)));
}

TEST(BlockScales, TheLastBlockMayBePartial) {
  const float floats[] = {1, 2, 3, 4, 5, 6};
  const BlockScales blocks{.data = std::as_bytes(std::span(floats)),
                           .block_rows = 128,
                           .block_cols = 128,
                           .blocks_per_row = 3};
  EXPECT_EQ(blocks.At(127, 127), 1);
  EXPECT_EQ(blocks.At(0, 300), 3);
  EXPECT_EQ(blocks.At(128, 128), 5);
  const Bf16 halves[] = {Bf16FromFloat(1), Bf16FromFloat(2), Bf16FromFloat(3),
                         Bf16FromFloat(-0.5f)};
  BlockScales narrow = blocks;
  narrow.data = std::as_bytes(std::span(halves));
  narrow.dtype = DType::kBf16;
  EXPECT_EQ(narrow.At(127, 300), 3);
  EXPECT_EQ(narrow.At(128, 0), -0.5f);
  const uint16_t f16[] = {0x3c00, 0xc000};
  narrow.data = std::as_bytes(std::span(f16));
  narrow.dtype = DType::kF16;
  EXPECT_EQ(narrow.At(0, 0), 1);
  EXPECT_EQ(narrow.At(0, 128), -2);
  const uint8_t powers[] = {127, 128, 126, 129};
  const BlockScales exponents{.data = std::as_bytes(std::span(powers)),
                              .is_e8m0 = true,
                              .block_cols = 32,
                              .blocks_per_row = 2};
  EXPECT_EQ(exponents.At(0, 31), 1);
  EXPECT_EQ(exponents.At(0, 32), 2);
  EXPECT_EQ(exponents.At(1, 0), 0.5f);
}

}  // namespace
}  // namespace convene::tensor
