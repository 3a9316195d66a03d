#include "base/read_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/open_file.h"

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
  EXPECT_EQ(bytes.error().kind, ErrorKind::kNotFound);
}

TEST(ReadFile, RefusesDirectories) {
  EXPECT_FALSE(ReadFile("/", 10));
  EXPECT_FALSE(ReadFileOrStream("/", 10));
}

class FifoTest : public testing::Test {
 protected:
  FifoTest() : path_(testing::TempDir() + fmt::format("fifo_{}", getpid())) {
    std::filesystem::remove(path_);
    CHECK(mkfifo(path_.c_str(), 0600) == 0);
  }
  ~FifoTest() override { std::filesystem::remove(path_); }
  std::string path_;
};

TEST(ReadFile, SaysThatASocketIsOne) {
  const std::string path = testing::TempDir() + fmt::format("socket_{}", getpid());
  CHECK(mknod(path.c_str(), S_IFSOCK | 0600, 0) == 0);
  const auto refused = ReadFile(path, 10);
  std::filesystem::remove(path);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "cannot open " + path + ": it is a socket, or a device that is not there");
}

TEST_F(FifoTest, OnlyAReaderOfStreamsTakesOneAndNobodyWaitsForAWriterForEver) {
  const auto refused = ReadFile(path_, 10);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, path_ + " is a FIFO, and must be a regular file");
  const auto unwritten = ReadFileOrStream(path_, 10);
  ASSERT_FALSE(unwritten);
  EXPECT_EQ(unwritten.error().message,
            "nobody writes to " + path_ + ", which is a FIFO; start its writer, or give a file");
  EXPECT_FALSE(OpenToWrite(path_));
}

TEST_F(FifoTest, IsReadToItsEndHoweverSlowlyItIsWritten) {
  std::jthread writer([&] {
    std::ofstream fifo(path_);
    for (const char* part : {"one ", "two ", "three"}) {
      fifo << part << std::flush;
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
  });
  const auto bytes = ReadFileOrStream(path_, 100);
  ASSERT_TRUE(bytes) << bytes.error().message;
  EXPECT_EQ(*bytes, "one two three");
}

TEST(ReadFileOrStream, ReadsAPipeByItsDescriptor) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "piped", 5), 5);
  close(ends[1]);
  const auto bytes = ReadFileOrStream(fmt::format("/dev/fd/{}", ends[0]), 100);
  close(ends[0]);
  ASSERT_TRUE(bytes) << bytes.error().message;
  EXPECT_EQ(*bytes, "piped");
}

TEST(ReadFileOrStream, RefusesMoreThanTheLimit) {
  EXPECT_FALSE(ReadFileOrStream("/dev/zero", 1 << 20));
}

TEST(ReadFile, RefusesMoreThanTheLimit) { EXPECT_FALSE(ReadFile("/dev/zero", 1 << 20)); }

}  // namespace
}  // namespace convene
