#include "checkpoint/file_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace convene::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FileReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    for (size_t i = 0; i < content_.size(); ++i) content_[i] = static_cast<char>(i * 13 + i / 251);
    std::ofstream(path_, std::ios::binary) << content_;
  }
  void TearDown() override { fs::remove(path_); }

  std::span<std::byte> Staging(size_t size) {
    return std::span(staging_).first(size + FileReader::kStagingBytes);
  }

  const std::string path_ = fmt::format("{}/file_reader_test_{}", testing::TempDir(), getpid());
  alignas(4096) std::array<std::byte, 100'000 + FileReader::kStagingBytes> staging_;
  std::string content_ = std::string(100'000, '\0');
};

TEST_F(FileReaderTest, ReadsAnyPart) {
  const auto mapped = MappedFile::Open(path_);
  ASSERT_TRUE(mapped) << mapped.error().message;
  const auto reader = FileReader::Open(*mapped);
  ASSERT_TRUE(reader) << reader.error().message;
  for (const auto& [offset, size] : {std::pair<uint64_t, size_t>{0, 100'000},
                                     {1, 4096},
                                     {99'999, 1},
                                     {4097, 70'001},
                                     {100'000, 0}}) {
    std::vector<std::byte> target(size);
    const Status read = reader->ReadAt(offset, target);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_TRUE(std::ranges::equal(target, mapped->bytes().subspan(offset, size)));
    std::ranges::fill(target, std::byte{});
    const Status past = reader->ReadPastCache(offset, target, Staging(size));
    ASSERT_TRUE(past) << past.error().message;
    EXPECT_TRUE(std::ranges::equal(target, mapped->bytes().subspan(offset, size)));
  }
}

TEST_F(FileReaderTest, WhatWasJustReadIsInTheCache) {
  const auto mapped = MappedFile::Open(path_);
  ASSERT_TRUE(mapped) << mapped.error().message;
  ASSERT_TRUE(mapped->Populate(mapped->bytes()));
  EXPECT_EQ(CachedBytes(mapped->bytes().subspan(4000, 300)), 300u);
  EXPECT_EQ(CachedBytes(mapped->bytes()), mapped->bytes().size());
  EXPECT_EQ(CachedBytes({}), 0u);
}

TEST_F(FileReaderTest, AFileThatEndsTooEarlyIsAnError) {
  const auto mapped = MappedFile::Open(path_);
  ASSERT_TRUE(mapped) << mapped.error().message;
  const auto reader = FileReader::Open(*mapped);
  ASSERT_TRUE(reader) << reader.error().message;
  fs::resize_file(path_, 5000);
  std::vector<std::byte> target(3000);
  EXPECT_TRUE(reader->ReadAt(2000, target));
  EXPECT_TRUE(reader->ReadPastCache(2000, target, Staging(3000)));
  for (const Status& read :
       {reader->ReadAt(2001, target), reader->ReadPastCache(2001, target, Staging(3000))}) {
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().kind, ErrorKind::kDataLoss);
    EXPECT_THAT(read.error().message, HasSubstr(path_ + " was cut while it was read"));
  }
}

TEST_F(FileReaderTest, AnotherFileInItsPlaceIsNotTakenForIt) {
  const auto mapped = MappedFile::Open(path_);
  ASSERT_TRUE(mapped) << mapped.error().message;
  std::ofstream(path_ + "_new", std::ios::binary) << content_;
  fs::rename(path_ + "_new", path_);
  const auto replaced = FileReader::Open(*mapped);
  ASSERT_FALSE(replaced);
  EXPECT_THAT(replaced.error().message, HasSubstr("was replaced while it was read"));
  EXPECT_EQ(replaced.error().kind, ErrorKind::kDataLoss);
  fs::remove(path_);
  EXPECT_EQ(FileReader::Open(*mapped).error().kind, ErrorKind::kNotFound);
}

}  // namespace
}  // namespace convene::checkpoint
