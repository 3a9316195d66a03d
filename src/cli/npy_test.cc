#include "cli/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/read_file.h"
#include "cli/token_file.h"

namespace convene::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Npy(const std::string& header, const std::string& data) {
  std::string bytes = "\x93NUMPY";
  bytes += {'\x01', '\x00', static_cast<char>(header.size()), '\x00'};
  return bytes + header + data;
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

const char kInt64Header[] = "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }\n";
const char kInt32Header[] = "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }\n";

TEST(ParseNpyTokens, ReadsBothIntegerTypes) {
  const auto wide = ParseNpyTokens(Npy(kInt64Header, Bytes<int64_t>({7, 0, 2147483647})));
  ASSERT_TRUE(wide) << wide.error().message;
  EXPECT_THAT(*wide, ElementsAre(7, 0, 2147483647));
  const auto narrow = ParseNpyTokens(Npy(kInt32Header, Bytes<int32_t>({7, -1, 3})));
  ASSERT_TRUE(narrow);
  EXPECT_THAT(*narrow, ElementsAre(7, -1, 3));
}

TEST(ParseNpyTokens, RefusesWhatDoesNotFitItsHeader) {
  const std::string good = Npy(kInt64Header, Bytes<int64_t>({1, 2, 3}));
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(ParseNpyTokens(std::string_view(good).substr(0, size))) << size;
  }
  EXPECT_FALSE(ParseNpyTokens(good + "x"));
  for (const char* header :
       {"{'descr': '<f4', 'shape': (3,), }", "{'descr': '<i8', 'shape': (3, 1), }",
        "{'descr': '<i8', 'shape': (), }", "{'descr': '<i8', 'shape': 3}", "{'descr': '<i8'}", "",
        "{'descr': '<i8', 'shape': (99999999999999999999,), }", "{'descr': '<i8', 'shape': (3,"}) {
    EXPECT_FALSE(ParseNpyTokens(Npy(header, Bytes<int64_t>({1, 2, 3})))) << header;
  }
  const auto large = ParseNpyTokens(Npy(kInt64Header, Bytes<int64_t>({1, int64_t{1} << 40, 3})));
  ASSERT_FALSE(large);
  EXPECT_THAT(large.error().message, HasSubstr("at index 1"));
}

TEST(NpyWriter, WritesWhatNumpyReads) {
  const std::string path = testing::TempDir() + "/npy_writer_test.npy";
  Result<NpyWriter> writer = NpyWriter::Create(path, 2, 3);
  ASSERT_TRUE(writer);
  ASSERT_TRUE(writer->WriteRow(std::vector<float>{1, 2, 3}));
  ASSERT_TRUE(writer->WriteRow(std::vector<float>{4, 5, 6}));
  ASSERT_TRUE(writer->Close());
  const Result<std::string> bytes = ReadFile(path, 1000);
  std::filesystem::remove(path);
  ASSERT_TRUE(bytes);
  EXPECT_EQ(bytes->size(), 128u + 24u);  // numpy pads the header to a multiple of 64
  EXPECT_THAT(*bytes, HasSubstr("'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)"));
  EXPECT_EQ((*bytes)[127], '\n');
  EXPECT_EQ(bytes->substr(128), Bytes<float>({1, 2, 3, 4, 5, 6}));
}

TEST(NpyWriter, SaysThatTheDiskIsFull) {
  Result<NpyWriter> writer = NpyWriter::Create("/dev/full", 1, 1);
  ASSERT_TRUE(writer);
  Status status = writer->WriteRow(std::vector<float>{1});
  if (status) status = writer->Close();
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("No space left"));
}

TEST(ParseTokenText, ReadsNumbersHoweverSeparated) {
  const auto tokens = ParseTokenText("[1, 2,3]\n 40\t5\r\n");
  ASSERT_TRUE(tokens);
  EXPECT_THAT(*tokens, ElementsAre(1, 2, 3, 40, 5));
  EXPECT_TRUE(ParseTokenText("")->empty());
}

TEST(ParseTokenText, RefusesAnythingElseWithItsPlace) {
  for (const char* text : {"1 x", "1 -2", "1 2.5", "1 99999999999", "1 3a", "1 \x01"}) {
    const auto tokens = ParseTokenText(text);
    ASSERT_FALSE(tokens) << text;
    EXPECT_THAT(tokens.error().message, HasSubstr("number 2")) << text;
  }
}

TEST(NpyWriter, LeavesNoHalfOfAFile) {
  const std::string path = testing::TempDir() + fmt::format("npy_half_{}", getpid());
  const std::vector<float> row = {1, 2};
  {
    auto writer = NpyWriter::Create(path, 2, 2);
    ASSERT_TRUE(writer) << writer.error().message;
    ASSERT_TRUE(writer->WriteRow(row));
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  auto full = NpyWriter::Create("/dev/full", 1, 2);
  ASSERT_TRUE(full) << full.error().message;
  EXPECT_TRUE(full->WriteRow(row));
  EXPECT_FALSE(full->Close());
  EXPECT_TRUE(std::filesystem::exists("/dev/full"));
}

}  // namespace
}  // namespace convene::cli
