// A disk that becomes slow is noticed once, and again only after it was fast in between.
#include "memory/read_pace.h"

#include <gtest/gtest.h>

namespace convene::memory {
namespace {

constexpr uint64_t kMebibyte = uint64_t{1} << 20;

TEST(ReadPace, TellsOnceThatADiskHasBecomeSlow) {
  ReadPace pace;
  const auto window = [&](double seconds) { return pace.Add(ReadPace::kWindowBytes, seconds); };
  EXPECT_FALSE(window(0.1));
  EXPECT_FALSE(window(0.3)) << "a third is not much slower";
  const auto slower = window(1.0);
  ASSERT_TRUE(slower);
  EXPECT_DOUBLE_EQ(slower->bytes_per_second, 256.0 * kMebibyte);
  EXPECT_DOUBLE_EQ(slower->best_bytes_per_second, 2560.0 * kMebibyte);
  EXPECT_FALSE(window(1.0)) << "that was said";
  EXPECT_FALSE(window(0.15)) << "it has recovered";
  EXPECT_TRUE(window(2.0));
}

TEST(ReadPace, JudgesNoFewBytes) {
  ReadPace pace;
  EXPECT_FALSE(pace.Add(ReadPace::kWindowBytes, 0.1));
  // Single pages have the disk's latency in them.
  EXPECT_FALSE(pace.Add(kMebibyte, 1.0));
  EXPECT_FALSE(pace.Add(0, 0));
  EXPECT_TRUE(pace.Add(ReadPace::kWindowBytes, 0.1)) << "all of it together is slow";
}

}  // namespace
}  // namespace convene::memory
