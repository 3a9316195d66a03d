#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace convene::tensor {
namespace {

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(Bf16FromFloat(1.0f), 0x3f80);
  EXPECT_EQ(Bf16FromFloat(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie, stays even
  EXPECT_EQ(Bf16FromFloat(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // tie, goes to even
  EXPECT_EQ(Bf16FromFloat(std::bit_cast<float>(0x3f808001u)), 0x3f81);
}

TEST(Bf16, KeepsSpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(FloatFromBf16(Bf16FromFloat(infinity)), infinity);
  EXPECT_EQ(FloatFromBf16(Bf16FromFloat(std::numeric_limits<float>::max())), infinity);
  EXPECT_TRUE(std::isnan(FloatFromBf16(Bf16FromFloat(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Bf16, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float value = FloatFromBf16(static_cast<Bf16>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(Bf16FromFloat(value), bits);
  }
}

TEST(F16, DecodesNormalSubnormalAndSpecialValues) {
  EXPECT_EQ(FloatFromF16(0x3c00), 1.0f);
  EXPECT_EQ(FloatFromF16(0xc000), -2.0f);
  EXPECT_EQ(FloatFromF16(0x7bff), 65504.0f);
  EXPECT_EQ(FloatFromF16(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(FloatFromF16(0x8000), -0.0f);
  EXPECT_TRUE(std::isinf(FloatFromF16(0x7c00)));
  EXPECT_TRUE(std::isnan(FloatFromF16(0x7e00)));
}

TEST(Convert, ReadsUnalignedData) {
  alignas(8) std::byte raw[9] = {};
  const uint16_t values[2] = {0x3f80, 0xc000};
  __builtin_memcpy(raw + 1, values, 4);
  float out[2];
  ConvertToFloat(DType::kBf16, raw + 1, 2, out);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -2.0f);
}

}  // namespace
}  // namespace convene::tensor
