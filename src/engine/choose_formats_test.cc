#include "engine/choose_formats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene::engine {
namespace {

using kernels::ActivationFormat;
using kernels::KvFormat;
using kernels::WeightFormat;
using ::testing::HasSubstr;

// Memory for weights of at most so many bits.
auto RoomForBits(int most_bits) {
  return [most_bits](const runtime::Formats& formats) -> Result<MemoryPlan> {
    const WeightFormat weights = formats.weights.matrices;
    const int bits = weights == WeightFormat::kInt4   ? 4
                     : weights == WeightFormat::kInt8 ? 8
                     : weights == WeightFormat::kBf16 ? 16
                                                      : 32;
    if (bits > most_bits) return Error{"too little memory"};
    MemoryPlan plan;
    plan.bytes[memory::Use::kWeights] = static_cast<uint64_t>(bits);
    return plan;
  };
}

TEST(ChooseFormats, AutoTakesTheMostPreciseThatFitsAndSaysSo) {
  const auto bf16 = ChooseFormats({}, RoomForBits(100));
  ASSERT_TRUE(bf16);
  EXPECT_EQ(bf16->formats.weights.matrices, WeightFormat::kBf16);
  EXPECT_EQ(bf16->formats.activations, ActivationFormat::kBf16);
  EXPECT_THAT(bf16->reason, HasSubstr("bf16"));

  const auto int8 = ChooseFormats({}, RoomForBits(15));
  ASSERT_TRUE(int8);
  EXPECT_EQ(int8->formats.weights.matrices, WeightFormat::kInt8);
  EXPECT_EQ(int8->formats.activations, ActivationFormat::kInt8);
  EXPECT_THAT(int8->reason, HasSubstr("bf16 would not"));

  const auto int4 = ChooseFormats({}, RoomForBits(7));
  ASSERT_TRUE(int4);
  EXPECT_EQ(int4->formats.weights.matrices, WeightFormat::kInt4);
  EXPECT_EQ(int4->memory.weights_bytes(), 4u);
  EXPECT_THAT(int4->reason, HasSubstr("bf16 would not, int8 would not"));
}

TEST(ChooseFormats, NothingFitsIsTheMemorysError) {
  const auto nothing = ChooseFormats({}, RoomForBits(3));
  ASSERT_FALSE(nothing);
  EXPECT_THAT(nothing.error().message, HasSubstr("too little memory"));
}

TEST(ChooseFormats, AWishIsNeverReplaced) {
  const auto f32 = ChooseFormats({.weights = WeightFormat::kF32}, RoomForBits(32));
  ASSERT_TRUE(f32);
  EXPECT_EQ(f32->formats.kv, KvFormat::kF32);
  EXPECT_EQ(f32->reason, "");
  EXPECT_FALSE(ChooseFormats({.weights = WeightFormat::kF32}, RoomForBits(16)));
}

TEST(ChooseFormats, Int8ActivationsLeaveAutoTheIntegers) {
  const auto formats = ChooseFormats({.activations = ActivationFormat::kInt8}, RoomForBits(100));
  ASSERT_TRUE(formats);
  EXPECT_EQ(formats->formats.weights.matrices, WeightFormat::kInt8);
}

TEST(ResolveFormats, RefusesWhatDoesNotGoTogether) {
  EXPECT_FALSE(ResolveFormats({.activations = ActivationFormat::kInt8}, WeightFormat::kBf16));
  EXPECT_FALSE(ResolveFormats({.activations = ActivationFormat::kInt8}, WeightFormat::kF32));
  EXPECT_FALSE(ResolveFormats({.activations = ActivationFormat::kBf16}, WeightFormat::kF32));
  EXPECT_FALSE(ResolveFormats({.kv = KvFormat::kInt8}, WeightFormat::kF32));
  EXPECT_FALSE(ResolveFormats({.kv = KvFormat::kF32}, WeightFormat::kInt8));
  EXPECT_FALSE(ResolveFormats({.int4_group = 48}, WeightFormat::kInt4));
  EXPECT_TRUE(ResolveFormats({.activations = ActivationFormat::kBf16, .kv = KvFormat::kInt8},
                             WeightFormat::kInt4));
}

}  // namespace
}  // namespace convene::engine
