#include "device/exchange_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace convene::device {
namespace {

TEST(ExchangeMemory, CountsWhatItWouldHandOut) {
  ExchangeMemory counted;
  EXPECT_TRUE(counted.Take(100).empty());
  EXPECT_TRUE(counted.TakeFloats(3).empty());
  counted.Take(0);
  EXPECT_EQ(counted.used_bytes(), 128 + 64);

  std::vector<std::byte> storage(192);
  ExchangeMemory memory(storage);
  const std::span<std::byte> first = memory.Take(100);
  const std::span<float> second = memory.TakeFloats(3);
  EXPECT_TRUE(memory.Take(0).empty());
  EXPECT_EQ(first.data(), storage.data());
  EXPECT_EQ(first.size(), 100);
  EXPECT_EQ(reinterpret_cast<std::byte*>(second.data()), storage.data() + 128);
  EXPECT_EQ(second.size(), 3);
  EXPECT_EQ(memory.left_bytes(), 0);
}

TEST(ExchangeMemoryDeathTest, HandsOutNoMoreThanWasPlanned) {
  std::vector<std::byte> storage(64);
  ExchangeMemory memory(storage);
  EXPECT_DEATH(memory.Take(65), "planned");
}

}  // namespace
}  // namespace convene::device
