#include "kernels/streaming_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <vector>

namespace convene::kernels {
namespace {

TEST(StreamingChoice, EachNumberOfRowsStandsForThoseUpToTheNext) {
  StreamingChoice choice(kStreamingWays[0]);
  choice.Set(WeightFormat::kInt8, 2, kStreamingWays[1]);  // 4 rows
  for (const int rows : {0, 1, 3, 8, 16, 1000}) {
    EXPECT_EQ(choice.For(WeightFormat::kInt8, rows), kStreamingWays[0]) << rows;
  }
  for (const int rows : {4, 7}) {
    EXPECT_EQ(choice.For(WeightFormat::kInt8, rows), kStreamingWays[1]) << rows;
  }
  EXPECT_EQ(choice.For(WeightFormat::kBf16, 4), kStreamingWays[0]);
}

TEST(StreamingChoice, NumbersGiveTheSameChoice) {
  StreamingChoice choice = StreamingChoice::OfCpu();
  choice.Set(WeightFormat::kF32, 0, kStreamingWays[2]);
  choice.Set(WeightFormat::kInt4, kStreamingRows.size() - 1, kStreamingWays[4]);
  const auto again = StreamingChoice::FromNumbers(choice.numbers());
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->numbers(), choice.numbers());
  EXPECT_EQ(again->For(WeightFormat::kInt4, 32), kStreamingWays[4]);
}

TEST(StreamingChoice, NumbersOfSomethingElseAreNone) {
  const std::vector<int> good = StreamingChoice(kStreamingWays[0]).numbers();
  EXPECT_FALSE(StreamingChoice::FromNumbers({}).has_value());
  for (const int number : {StreamingChoice::kNumberOfFirstWay + int{kStreamingWays.size()},
                           StreamingChoice::kNumberOfFirstWay - 1, 0, -1, INT_MIN, INT_MAX}) {
    std::vector<int> numbers = good;
    numbers.back() = number;
    EXPECT_FALSE(StreamingChoice::FromNumbers(numbers).has_value()) << number;
  }
  std::vector<int> numbers = good;
  numbers.push_back(StreamingChoice::kNumberOfFirstWay);
  EXPECT_FALSE(StreamingChoice::FromNumbers(numbers).has_value());
}

TEST(StreamingChoice, AChoiceOfTheListBeforeIsNone) {
  // Of seven ways, numbered from 0 on.
  const std::vector<int> numbers(kStreamingFormats.size() * kStreamingRows.size(), 3);
  EXPECT_FALSE(StreamingChoice::FromNumbers(numbers).has_value());
}

TEST(StreamingChoice, EachKindOfCpuHasItsWays) {
  using hardware::Isa;
  struct Usual {
    CpuKind cpu;
    WeightFormat format;
    int rows;
    int way;  // of kStreamingWays
  };
  constexpr CpuKind kXeon{.family = 6, .isa = Isa::kAmx};
  constexpr CpuKind kXeonWithAvx2{.family = 6, .isa = Isa::kAvx2};
  constexpr CpuKind kZen3{.is_amd = true, .family = 0x19, .isa = Isa::kAvx2};
  constexpr CpuKind kZen4{.is_amd = true, .family = 0x19, .isa = Isa::kAvx512Bf16};
  constexpr CpuKind kZen5{.is_amd = true, .family = 0x1a, .isa = Isa::kAvx512Bf16};
  constexpr CpuKind kAfterZen5{.is_amd = true, .family = 0x1b, .isa = Isa::kAvx512Bf16};
  constexpr CpuKind kZen5WithAvx2{.is_amd = true, .family = 0x1a, .isa = Isa::kAvx2};
  constexpr CpuKind kUnknown{};
  const Usual table[] = {
      {kXeon, WeightFormat::kF32, 1, 3},          {kXeon, WeightFormat::kInt8, 1, 3},
      {kXeon, WeightFormat::kInt4, 32, 3},        {kXeonWithAvx2, WeightFormat::kBf16, 1, 0},
      {kXeonWithAvx2, WeightFormat::kBf16, 4, 3}, {kXeonWithAvx2, WeightFormat::kInt8, 1, 3},
      {kUnknown, WeightFormat::kBf16, 1, 0},      {kUnknown, WeightFormat::kInt4, 1, 3},
      {kZen3, WeightFormat::kF32, 1, 4},          {kZen3, WeightFormat::kInt8, 8, 3},
      {kZen3, WeightFormat::kInt4, 4, 5},         {kZen4, WeightFormat::kBf16, 8, 1},
      {kZen4, WeightFormat::kInt8, 4, 2},         {kZen4, WeightFormat::kInt4, 4, 3},
      {kZen5, WeightFormat::kBf16, 8, 3},         {kZen5, WeightFormat::kInt8, 1, 2},
      {kZen5, WeightFormat::kInt4, 1, 3},         {kAfterZen5, WeightFormat::kInt8, 1, 2},
      {kZen5WithAvx2, WeightFormat::kF32, 1, 2},  {kZen5WithAvx2, WeightFormat::kInt4, 4, 3},
  };
  for (const Usual& usual : table) {
    EXPECT_EQ(StreamingChoice::OfCpu(usual.cpu).For(usual.format, usual.rows),
              kStreamingWays[static_cast<size_t>(usual.way)])
        << (usual.cpu.is_amd ? "AMD" : "another vendor") << ", family " << usual.cpu.family << ", "
        << hardware::IsaName(usual.cpu.isa) << ": " << Name(usual.format) << ", " << usual.rows
        << " rows";
  }
}

TEST(StreamingChoice, OfThisCpuIsThatOfItsKind) {
  const CpuKind here{.is_amd = hardware::CpuIsAmd(),
                     .family = hardware::CpuFamily(),
                     .isa = hardware::IsaOfProcess()};
  EXPECT_EQ(StreamingChoice::OfCpu().numbers(), StreamingChoice::OfCpu(here).numbers());
}

}  // namespace
}  // namespace convene::kernels
