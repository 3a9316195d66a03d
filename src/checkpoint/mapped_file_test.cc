#include "checkpoint/mapped_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace convene::checkpoint {
namespace {

std::string WriteTemporary(const std::string& name, const std::string& content) {
  std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

TEST(MappedFile, ShowsTheBytesAlsoAfterHints) {
  std::string content(3 * 4096 + 17, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7);
  auto file = MappedFile::Open(WriteTemporary("mapped_file_test.bin", content));
  ASSERT_TRUE(file) << file.error().message;
  const MappedFile moved = *std::move(file);
  const auto text = [&] {
    return std::string(reinterpret_cast<const char*>(moved.bytes().data()), moved.bytes().size());
  };
  EXPECT_EQ(text(), content);
  WillNeed(moved.bytes().subspan(100, 5000));
  DontNeed(moved.bytes().subspan(1, 9000));
  DontNeed(moved.bytes().subspan(1, 20));
  WillNeed({});
  EXPECT_EQ(text(), content);
}

TEST(MappedFile, RefusesWhatIsNotAFileWithBytes) {
  EXPECT_EQ(MappedFile::Open("/no/such").error().message,
            "cannot open /no/such: No such file or directory");
  EXPECT_FALSE(MappedFile::Open(testing::TempDir()));
  EXPECT_FALSE(MappedFile::Open(WriteTemporary("empty.bin", "")));
  EXPECT_FALSE(MappedFile::Open("/dev/zero"));
}

}  // namespace
}  // namespace convene::checkpoint
