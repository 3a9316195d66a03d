#include "base/read_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace convene {
namespace {

TEST(ReadFile, ReturnsEveryByte) {
  const std::string path = fmt::format("{}/read_file_test_{}.bin", testing::TempDir(), getpid());
  std::string content(200000, 'x');
  content[100000] = '\0';
  std::ofstream(path, std::ios::binary) << content;
  const auto bytes = ReadFile(path, 1 << 20);
  std::filesystem::remove(path);
  ASSERT_TRUE(bytes);
  EXPECT_EQ(*bytes, content);
}

TEST(ReadFile, NamesTheMissingFile) {
  const auto bytes = ReadFile("/no/such/file", 10);
  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().message, "cannot open /no/such/file: No such file or directory");
}

TEST(ReadFile, RefusesDirectories) { EXPECT_FALSE(ReadFile("/", 10)); }

TEST(ReadFile, RefusesMoreThanTheLimit) { EXPECT_FALSE(ReadFile("/dev/zero", 1 << 20)); }

}  // namespace
}  // namespace convene
