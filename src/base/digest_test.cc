#include "base/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string_view>
#include <vector>

namespace convene {
namespace {

std::vector<std::byte> Random(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Digest, EveryBitCounts) {
  for (const size_t size : {1, 7, 16, 63, 64, 65, 200}) {
    std::vector<std::byte> bytes = Random(size, 1);
    std::set<uint64_t> seen = {DigestOf(bytes)};
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      EXPECT_TRUE(seen.insert(DigestOf(bytes)).second) << "bit " << bit << " of " << size;
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    }
    EXPECT_EQ(*seen.find(DigestOf(bytes)), DigestOf(bytes));
  }
}

// As weights that are nearly all the same, and padding.
TEST(Digest, EveryBitOfZerosAndOnesCounts) {
  for (const int value : {0, 0xff}) {
    std::vector<std::byte> bytes(256, static_cast<std::byte>(value));
    std::set<uint64_t> seen = {DigestOf(bytes)};
    for (size_t first = 0; first < 8 * bytes.size(); ++first) {
      bytes[first / 8] ^= static_cast<std::byte>(1 << first % 8);
      EXPECT_TRUE(seen.insert(DigestOf(bytes)).second) << first;
      for (size_t second = first + 1; second < 8 * bytes.size(); second += 61) {
        bytes[second / 8] ^= static_cast<std::byte>(1 << second % 8);
        EXPECT_TRUE(seen.insert(DigestOf(bytes)).second) << first << " and " << second;
        bytes[second / 8] ^= static_cast<std::byte>(1 << second % 8);
      }
      bytes[first / 8] ^= static_cast<std::byte>(1 << first % 8);
    }
  }
}

TEST(Digest, OrderAndLengthCount) {
  const std::vector<std::byte> bytes = Random(4096, 2);
  std::set<uint64_t> seen;
  for (size_t size = 0; size <= bytes.size(); ++size) {
    EXPECT_TRUE(seen.insert(DigestOf(std::span(bytes).first(size))).second) << size;
  }
  const std::vector<std::byte> zeros(300);
  for (size_t size = 1; size <= zeros.size(); ++size) {
    EXPECT_TRUE(seen.insert(DigestOf(std::span(zeros).first(size))).second) << size;
  }
  // Pieces of any size that change places.
  for (const size_t piece : {1, 8, 16, 32, 64, 128}) {
    std::vector<std::byte> swapped = bytes;
    std::swap_ranges(swapped.begin(), swapped.begin() + static_cast<int>(piece),
                     swapped.begin() + static_cast<int>(5 * piece));
    EXPECT_TRUE(seen.insert(DigestOf(swapped)).second) << piece;
  }
}

TEST(Digest, DoesNotDependOnAlignment) {
  const std::vector<std::byte> bytes = Random(1000, 3);
  for (size_t shift = 0; shift < 64; ++shift) {
    std::vector<std::byte> moved(shift);
    moved.insert(moved.end(), bytes.begin(), bytes.end());
    EXPECT_EQ(DigestOf(std::span(moved).subspan(shift)), DigestOf(bytes));
  }
}

// Digests are kept in files.
TEST(Digest, IsTheSameInAllVersions) {
  const auto of = [](std::string_view text) { return DigestOf(std::as_bytes(std::span(text))); };
  EXPECT_EQ(of(""), 0xfc49f3ea02b1ae2e);
  EXPECT_EQ(of("convene"), 0x8fc123a761c3419f);
  EXPECT_EQ(DigestOf(std::vector<std::byte>(1000, std::byte{7})), 0xa814dfe2a74c0f76);
}

}  // namespace
}  // namespace convene
