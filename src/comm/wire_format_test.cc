#include "comm/wire_format.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/digest.h"
#include "base/enumerators_test.h"
#include "tensor/small_floats.h"

namespace convene::comm {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::byte> Encoded(WireFormat format, const std::vector<float>& row) {
  // Dirty, to see that padding is written and nothing behind it.
  std::vector<std::byte> wire(RowBytes(format, row.size()) + 4, std::byte{0xab});
  EncodeRow(format, row, wire.data());
  return wire;
}

std::vector<float> ThereAndBack(WireFormat format, const std::vector<float>& row) {
  std::vector<float> back(row.size());
  DecodeRow(format, Encoded(format, row).data(), back);
  return back;
}

std::vector<float> RandomRow(size_t cols, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> row(cols);
  for (float& value : row) value = normal(random);
  return row;
}

TEST(WireFormat, RowsArePaddedToFourBytesWithZeros) {
  EXPECT_EQ(RowBytes(WireFormat::kF32, 3), 12);
  EXPECT_EQ(RowBytes(WireFormat::kBf16, 3), 8);
  EXPECT_EQ(RowBytes(WireFormat::kE4m3, 5), 12);
  EXPECT_EQ(RowBytes(WireFormat::kE4m3, 2048), 2052);
  for (const WireFormat format : kEvery<WireFormat>) {
    for (size_t cols = 0; cols <= 9; ++cols) {
      const std::vector<std::byte> wire = Encoded(format, std::vector<float>(cols, 1.0f));
      const size_t used = format == WireFormat::kF32    ? 4 * cols
                          : format == WireFormat::kBf16 ? 2 * cols
                                                        : 4 + cols;
      const size_t bytes = RowBytes(format, cols);
      for (size_t i = used; i < bytes; ++i) EXPECT_EQ(wire[i], std::byte{0});
      for (size_t i = bytes; i < wire.size(); ++i) EXPECT_EQ(wire[i], std::byte{0xab});
    }
  }
}

// These tests run once more for each instruction set that may be forced (src/CMakeLists.txt).
TEST(WireFormat, RowsHaveTheSameBitsOnEveryInstructionSet) {
  // Not the library's distribution, which differs between libraries.
  std::mt19937 random(7);
  std::vector<float> row(1003);
  for (float& value : row) value = static_cast<float>(random() % 20001) / 1000.0f - 10.0f;
  std::vector<std::byte> all;
  for (const WireFormat format : kEvery<WireFormat>) {
    const std::vector<std::byte> wire = Encoded(format, row);
    all.insert(all.end(), wire.begin(), wire.end());
    const std::vector<float> back = ThereAndBack(format, row);
    const auto bytes = std::as_bytes(std::span(back));
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  EXPECT_EQ(DigestOf(all), 3828671156742687669u);
}

TEST(WireFormat, Float32ArrivesBitForBit) {
  std::vector<float> row = RandomRow(1001, 1);
  row[3] = kInfinity;
  row[4] = -0.0f;
  row[5] = 1e-42f;
  const std::vector<float> back = ThereAndBack(WireFormat::kF32, row);
  EXPECT_EQ(std::memcmp(back.data(), row.data(), row.size() * 4), 0);
}

TEST(WireFormat, Bf16RoundsToTheNearestAndTiesToEven) {
  std::vector<float> row = RandomRow(4099, 2);
  // 1 + 2^-8 is halfway between 1 and 1 + 2^-7; the next halves go up.
  row.insert(row.end(), {1 + 0x1p-8f, 1 + 0x3p-8f, -1 - 0x1p-8f, 0, -0.0f, 1e-40f, 3.4e38f,
                         kInfinity, -kInfinity});
  const std::vector<float> back = ThereAndBack(WireFormat::kBf16, row);
  for (size_t i = 0; i < row.size(); ++i) {
    const float expected = tensor::FloatFromBf16(tensor::Bf16FromFloat(row[i]));
    EXPECT_EQ(std::bit_cast<uint32_t>(back[i]), std::bit_cast<uint32_t>(expected)) << row[i];
  }
  EXPECT_EQ(back[4099], 1.0f);
  EXPECT_EQ(back[4100], 1 + 0x1p-6f);
  EXPECT_TRUE(std::isnan(ThereAndBack(WireFormat::kBf16, {kNan})[0]));
}

TEST(WireFormat, Fp8RoundsEachNumberOfTheScaledRowAsTheReferenceDoes) {
  for (const size_t cols : {1, 7, 64, 2048, 8191}) {
    const std::vector<float> row = RandomRow(cols, static_cast<uint32_t>(cols));
    float largest = 0;
    for (const float value : row) largest = std::max(largest, std::abs(value));
    const std::vector<std::byte> wire = Encoded(WireFormat::kE4m3, row);
    float scale;
    std::memcpy(&scale, wire.data(), 4);
    EXPECT_EQ(scale, largest / 448.0f);
    for (size_t i = 0; i < cols; ++i) {
      EXPECT_EQ(static_cast<uint8_t>(wire[4 + i]), tensor::E4m3FromFloat(row[i] * (1.0f / scale)));
    }
  }
}

TEST(WireFormat, Fp8KeepsEveryCodeThatItHas) {
  std::vector<float> row;
  for (int code = 0; code < 256; ++code)
    if ((code & 0x7f) != 0x7f) row.push_back(tensor::FloatFromE4m3(static_cast<uint8_t>(code)));
  const std::vector<float> back = ThereAndBack(WireFormat::kE4m3, row);  // the scale is 1
  EXPECT_EQ(std::memcmp(back.data(), row.data(), row.size() * 4), 0);
}

TEST(WireFormat, Fp8TiesGoToEvenAlsoBelowTheNormalNumbers) {
  // With 448 in the row the scale is 1. Steps: 2^-9 below 2^-6, 2^-3 from 1 on.
  const std::vector<float> back = ThereAndBack(
      WireFormat::kE4m3, {448, 0x1p-10f, 0x3p-10f, 0x5p-10f, 0x1.fp-7f, 1 + 0x1p-4f, 1 + 0x3p-4f});
  EXPECT_EQ(back, (std::vector<float>{448, 0, 0x1p-8f, 0x1p-8f, 0x1p-6f, 1, 1.25f}));
}

TEST(WireFormat, Fp8ErrorIsAtMostASixteenthOfANumberOrAStepBelowTheNormalOnes) {
  const std::vector<float> row = RandomRow(8192, 3);
  const std::vector<float> back = ThereAndBack(WireFormat::kE4m3, row);
  float largest = 0;
  for (const float value : row) largest = std::max(largest, std::abs(value));
  const float half_step = largest / 448 * 0x1p-10f;
  for (size_t i = 0; i < row.size(); ++i) {
    const float bound = std::max(std::abs(row[i]) / 16, half_step) * (1 + 0x1p-20f);
    EXPECT_LE(std::abs(back[i] - row[i]), bound);
  }
}

TEST(WireFormat, Fp8RowsOfZerosAndOfTinyNumbersStayFinite) {
  const std::vector<float> zeros = ThereAndBack(WireFormat::kE4m3, {0, -0.0f, 0, 0, 0});
  for (const float value : zeros) EXPECT_EQ(value, 0);
  EXPECT_TRUE(std::signbit(zeros[1]));
  const std::vector<float> tiny = ThereAndBack(WireFormat::kE4m3, {1e-38f, 1e-45f, -1e-40f});
  EXPECT_NEAR(tiny[0], 1e-38f, 1e-39f);
  EXPECT_EQ(tiny[1], 0);
  EXPECT_LE(std::abs(tiny[2]), 2e-40f);
  const std::vector<float> huge = ThereAndBack(WireFormat::kE4m3, {3.4e38f, -3.4e38f, 1e36f});
  EXPECT_NEAR(huge[0] / 3.4e38f, 1, 1e-6);
  EXPECT_NEAR(huge[1] / -3.4e38f, 1, 1e-6);
}

TEST(WireFormat, InFp8WhatIsNotFiniteBecomesNanAndLeavesTheRestOfItsRowAlone) {
  const std::vector<float> clean = ThereAndBack(WireFormat::kE4m3, {1, 0, -0.5f, 0, 0.01f});
  const std::vector<float> back =
      ThereAndBack(WireFormat::kE4m3, {1, kInfinity, -0.5f, kNan, 0.01f, -kInfinity});
  for (const int i : {0, 2, 4}) EXPECT_EQ(back[i], clean[i]);
  for (const int i : {1, 3, 5}) EXPECT_TRUE(std::isnan(back[i]));
}

TEST(WireFormat, RowsOfBf16TravelAsTheirFloatsWould) {
  for (const size_t cols : {0, 1, 33, 2048}) {
    std::vector<tensor::Bf16> row;
    std::vector<float> as_float;
    for (const float value : RandomRow(cols, 4)) {
      row.push_back(tensor::Bf16FromFloat(value));
      as_float.push_back(tensor::FloatFromBf16(row.back()));
    }
    for (const WireFormat format : kEvery<WireFormat>) {
      std::vector<std::byte> wire(RowBytes(format, cols));
      EncodeRow(format, std::span<const tensor::Bf16>(row), wire.data());
      const std::vector<std::byte> from_float = Encoded(format, as_float);
      EXPECT_TRUE(std::equal(wire.begin(), wire.end(), from_float.begin()));

      std::vector<tensor::Bf16> back(cols);
      DecodeRow(format, wire.data(), std::span<tensor::Bf16>(back));
      const std::vector<float> expected = ThereAndBack(format, as_float);
      for (size_t i = 0; i < cols; ++i) EXPECT_EQ(back[i], tensor::Bf16FromFloat(expected[i]));
    }
  }
}

}  // namespace
}  // namespace convene::comm
