#include "checkpoint/mapped_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/cached_share_test.h"

namespace convene::checkpoint {
namespace {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content, const std::string& suffix = "")
      : path_(fmt::format("{}/mapped_file_test_{}{}", testing::TempDir(), getpid(), suffix)) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Pages of files that this process has mapped and touched.
uint64_t MappedBytes() {
  std::ifstream status("/proc/self/status");
  uint64_t kib = 0;
  for (std::string word; status >> word;) {
    if (word == "RssFile:") status >> kib;
  }
  return kib << 10;
}

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
  Evict(moved.bytes().subspan(1, 9000));
  Evict(moved.bytes().subspan(1, 20));
  WillNeed({});
  AskForHugePages(moved.bytes().subspan(5, 9000));
  AskForHugePages({});
  EXPECT_TRUE(moved.Populate(moved.bytes().subspan(4000, 300)));
  EXPECT_TRUE(moved.Populate({}));
  CollapseToHugePages(moved.bytes());  // granted or not
  EXPECT_EQ(text(), content);
}

TEST(MappedFile, WhatIsEvictedIsNotInThePageCache) {
  const TemporaryFile temporary(std::string(64 * 4096, 'x'));
  if (!DropFromCache(temporary.path()))
    GTEST_SKIP() << "files are in memory here, whatever one asks";
  const auto file = MappedFile::Open(temporary.path());
  ASSERT_TRUE(file) << file.error().message;
  size_t count = 0;
  for (const std::byte byte : file->bytes()) count += byte == std::byte{'x'};
  EXPECT_EQ(count, file->bytes().size());
  EXPECT_EQ(CachedShare(temporary.path()), 1);
  Evict(file->bytes());
  EXPECT_LT(CachedShare(temporary.path()), 0.2);
}

TEST(MappedFile, WhatIsDroppedIsNoLongerInThisProcessNorIsWhatCameWithIt) {
  constexpr size_t kBytes = size_t{32} << 20;
  const TemporaryFile temporary(std::string(kBytes, 'x'));
  const auto file = MappedFile::Open(temporary.path());
  ASSERT_TRUE(file) << file.error().message;
  const uint64_t before = MappedBytes();
  // Byte by byte, each between others that were dropped before.
  size_t count = 0;
  for (const size_t first : {size_t{0}, size_t{5000}}) {
    for (size_t at = first; at < kBytes; at += 20000) {
      count += file->bytes()[at] == std::byte{'x'};
      DontNeed(file->bytes().subspan(at, 1));
    }
  }
  EXPECT_GT(count, 0u);
  EXPECT_LT(MappedBytes(), before + (uint64_t{4} << 20));
}

TEST(MappedFile, LeavesMemoryOfOthersAlone) {
  std::vector<std::byte> mine(size_t{1} << 20, std::byte{7});
  DontNeed(mine);
  Evict(mine);
  EXPECT_EQ(std::ranges::count(mine, std::byte{7}), std::ssize(mine));
}

TEST(MappedFile, StateIsThatOfTheFileWhateverItIsMountedOn) {
  const TemporaryFile temporary("some bytes");
  const auto file = MappedFile::Open(temporary.path());
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->state(), MappedFile::Open(temporary.path())->state());
  EXPECT_EQ(file->state().find("device"), std::string::npos);
  EXPECT_NE(file->identity().find(file->state()), std::string::npos);
  std::ofstream(temporary.path(), std::ios::app) << "more";
  EXPECT_NE(file->state(), MappedFile::Open(temporary.path())->state());
}

TEST(MappedFile, RefusesWhatIsNotAFileWithBytes) {
  EXPECT_EQ(MappedFile::Open("/no/such").error().message,
            "cannot open /no/such: No such file or directory");
  EXPECT_FALSE(MappedFile::Open(testing::TempDir()));
  EXPECT_FALSE(MappedFile::Open(TemporaryFile("").path()));
  EXPECT_FALSE(MappedFile::Open("/dev/zero"));
}

TEST(MappedFile, ThatIsCutEndsTheProcessWithAMessage) {
  const TemporaryFile temporary(std::string(3 * 4096, 'x'));
  const TemporaryFile other(std::string(5000, 'y'), "_other");
  const auto ended = [&](auto touch) {
    auto first = MappedFile::Open(other.path());
    auto file = MappedFile::Open(temporary.path());
    ASSERT_TRUE(file && first);
    std::filesystem::resize_file(temporary.path(), 100);
    touch(*file);
  };
  const auto read = [](const MappedFile& file) {
    volatile std::byte sink = file.bytes()[8000];
    static_cast<void>(sink);
  };
  const std::string message = temporary.path() + " was cut, or its disk failed";
  EXPECT_EXIT(ended(read), testing::ExitedWithCode(1), message);
  std::filesystem::resize_file(temporary.path(), 3 * 4096);
  EXPECT_EXIT(ended([&](const MappedFile& file) { std::jthread([&] { read(file); }); }),
              testing::ExitedWithCode(1), message);
}

TEST(MappedFile, ThatIsCutIsAnErrorWhereItIsPopulated) {
  const TemporaryFile temporary(std::string(3 * 4096, 'x'));
  const auto file = MappedFile::Open(temporary.path());
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_TRUE(file->Populate(file->bytes()));
  std::filesystem::resize_file(temporary.path(), 4096);
  EXPECT_TRUE(file->Populate(file->bytes().first(4096)));
  const Status cut = file->Populate(file->bytes());
  ASSERT_FALSE(cut) << "this kernel is older than Linux 5.14";
  EXPECT_EQ(cut.error().kind, ErrorKind::kDataLoss);
  EXPECT_NE(cut.error().message.find(temporary.path() + " was cut"), std::string::npos);
}

TEST(MappedFile, ABusErrorElsewhereStaysOne) {
  const TemporaryFile temporary(std::string(4096, 'x'));
  const auto raise_elsewhere = [&] {
    auto file = MappedFile::Open(temporary.path());
    raise(SIGBUS);
  };
  EXPECT_EXIT(raise_elsewhere(), testing::KilledBySignal(SIGBUS), "");
}

TEST(MappedFile, TellsWhetherItWasWrittenTo) {
  const TemporaryFile temporary(std::string(4096, 'x'));
  const auto file = MappedFile::Open(temporary.path());
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->CheckUnchanged());
  // Another file in its place leaves what is mapped as it was.
  std::filesystem::rename(temporary.path(), temporary.path() + "_moved");
  std::ofstream(temporary.path()) << "another file";
  EXPECT_TRUE(file->CheckUnchanged());
  std::filesystem::rename(temporary.path() + "_moved", temporary.path());
  EXPECT_TRUE(file->CheckUnchanged());
  std::ofstream(temporary.path(), std::ios::app) << "more";
  const Status changed = file->CheckUnchanged();
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().message.find(temporary.path() + " was written to while it was read"),
            0u);
}

}  // namespace
}  // namespace convene::checkpoint
