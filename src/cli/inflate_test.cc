#include "cli/inflate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace convene::cli {
namespace {

using ::testing::HasSubstr;

// printf 'a,b\n1,2\n' | gzip -n
constexpr unsigned char kPacked[] = {0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03,
                                     0x4b, 0xd4, 0x49, 0xe2, 0x32, 0xd4, 0x31, 0xe2, 0x02, 0x00,
                                     0x7b, 0x07, 0x97, 0x0a, 0x08, 0x00, 0x00, 0x00};

std::string Packed() { return {reinterpret_cast<const char*>(kPacked), sizeof(kPacked)}; }

TEST(Inflate, GivesWhatGzipHasPacked) {
  EXPECT_TRUE(IsGzip(Packed()));
  EXPECT_FALSE(IsGzip("a,b\n"));
  const auto text = Inflate(Packed(), 100);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(*text, "a,b\n1,2\n");
}

TEST(Inflate, DamagedBytesAndTooManyAreErrors) {
  std::string cut = Packed();
  cut.resize(cut.size() - 5);
  EXPECT_THAT(Inflate(cut, 100).error().message, HasSubstr("damaged or ends too early"));
  std::string damaged = Packed();
  damaged[damaged.size() - 6] ^= 1;  // of the checksum
  EXPECT_THAT(Inflate(damaged, 100).error().message, HasSubstr("damaged"));
  EXPECT_THAT(Inflate(Packed(), 7).error().message, HasSubstr("more than 7 B"));
  EXPECT_FALSE(Inflate("\x1f\x8b", 100));
}

TEST(Inflate, BytesBehindTheEndAreAnError) {
  EXPECT_THAT(Inflate(Packed() + "more", 100).error().message,
              HasSubstr("4 B behind the end of what gzip has packed"));
  // Another piece is no part of the first one.
  EXPECT_FALSE(Inflate(Packed() + Packed(), 100));
}

}  // namespace
}  // namespace convene::cli
