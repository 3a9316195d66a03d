#include "kernels/streaming_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  std::vector<int> numbers = StreamingChoice(kStreamingWays[0]).numbers();
  EXPECT_FALSE(StreamingChoice::FromNumbers({}).has_value());
  numbers.back() = std::ssize(kStreamingWays);
  EXPECT_FALSE(StreamingChoice::FromNumbers(numbers).has_value());
  numbers.back() = -1;
  EXPECT_FALSE(StreamingChoice::FromNumbers(numbers).has_value());
  numbers.push_back(0);
  EXPECT_FALSE(StreamingChoice::FromNumbers(numbers).has_value());
}

}  // namespace
}  // namespace convene::kernels
