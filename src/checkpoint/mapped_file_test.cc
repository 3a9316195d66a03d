#include "checkpoint/mapped_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace convene::checkpoint {
namespace {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content)
      : path_(fmt::format("{}/mapped_file_test_{}", testing::TempDir(), getpid())) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(MappedFile, ShowsTheBytesAlsoAfterHints) {
  std::string content(3 * 4096 + 17, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7);
  const TemporaryFile temporary(content);
  auto file = MappedFile::Open(temporary.path());
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
  EXPECT_FALSE(MappedFile::Open(TemporaryFile("").path()));
  EXPECT_FALSE(MappedFile::Open("/dev/zero"));
}

}  // namespace
}  // namespace convene::checkpoint
