// Pages are read as they lie in the file, by io_uring and by threads, past the page cache and
// through it; a disk that fails and a file that is cut are errors.
#include "memory/page_reader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "base/cached_share_test.h"
#include "hardware/huge_buffer.h"

namespace convene::memory {
namespace {

using testing::HasSubstr;

class PagesInAFile : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(testing::TempDir()) / fmt::format("pages_{}", getpid());
    std::mt19937 random(5);
    contents_.resize(5 * kDirectBlockBytes * 16 + 123);
    for (char& byte : contents_) byte = static_cast<char>(random());
    std::ofstream(path_, std::ios::binary) << contents_;
    // What is written from here on is later by more than clocks of file systems are coarse.
    std::filesystem::last_write_time(
        path_, std::filesystem::last_write_time(path_) - std::chrono::seconds(10));
    auto memory = hardware::HugeBuffer::Allocate(contents_.size() * 2, "a test");
    ASSERT_TRUE(memory);
    memory_ = *std::move(memory);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // Pages of several sizes, the last one to the file's very end.
  std::vector<PageRead> Reads() {
    std::vector<PageRead> reads;
    uint64_t at = 0;
    for (uint64_t offset = 0, i = 0; offset < contents_.size(); ++i) {
      const uint64_t size = std::min<uint64_t>(contents_.size() - offset, 1 + 7001 * i);
      reads.push_back({.offset = offset, .size_bytes = size, .target = memory_.data() + at});
      offset = DirectBytes(offset + size);
      at += DirectBytes(size);
    }
    return reads;
  }
  bool IsThere(const PageRead& read) const {
    return std::equal(read.target, read.target + read.size_bytes,
                      reinterpret_cast<const std::byte*>(contents_.data()) + read.offset);
  }

  std::filesystem::path path_;
  std::string contents_;
  hardware::HugeBuffer memory_;
};

class PageReaderTest : public PagesInAFile,
                       public testing::WithParamInterface<std::pair<bool, bool>> {
 protected:
  std::unique_ptr<PageReader> Open(std::function<int64_t(uint64_t, int64_t)> change = {}) {
    auto reader = PageReader::Open(path_, {.depth = 4,
                                           .threads = 3,
                                           .request_bytes = 2 * kDirectBlockBytes,
                                           .use_io_uring = GetParam().first,
                                           .use_direct = GetParam().second,
                                           .change_result = std::move(change)});
    CHECK(reader.ok(), "{}", reader.error().message);
    return *std::move(reader);
  }
};

TEST_P(PageReaderTest, ReadsPagesAndTellsOfEachWhenItIsThere) {
  const auto reader = Open();
  const std::vector<PageRead> reads = Reads();
  std::vector<int> done(reads.size());
  std::vector<uint64_t> arrived(reads.size());
  const Status read = reader->Read(reads, [&](size_t i, uint64_t num_bytes) {
    EXPECT_GT(num_bytes, arrived[i]) << "more than before";
    arrived[i] = num_bytes;
    EXPECT_TRUE(
        IsThere({.offset = reads[i].offset, .size_bytes = num_bytes, .target = reads[i].target}))
        << i;
    if (num_bytes == reads[i].size_bytes) ++done[i];
  });
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_THAT(done, testing::Each(1));
  EXPECT_TRUE(reader->Read({}, {})) << "no pages";
  EXPECT_EQ(reader->file_bytes(), contents_.size());
}

TEST_P(PageReaderTest, IsFedWhileTheFirstReadsAreUnderWay) {
  const auto reader = Open();
  const std::vector<PageRead> reads = Reads();
  ASSERT_GT(reads.size(), 3u);
  for (const size_t num_first : {size_t{0}, size_t{2}}) {
    std::memset(memory_.data(), 0, memory_.size_bytes());
    size_t next = num_first;
    std::vector<bool> is_whole(reads.size());
    int num_asked_with_some_under_way = 0;
    const auto feed = [&]() -> std::optional<PageRead> {
      const auto num_whole = static_cast<size_t>(std::ranges::count(is_whole, true));
      if (num_whole < next) ++num_asked_with_some_under_way;
      if (next == reads.size()) return std::nullopt;
      return reads[next++];
    };
    const Status read = reader->Read(
        std::span(reads).first(num_first),
        [&](size_t i, uint64_t num_bytes) { is_whole[i] = num_bytes == reads[i].size_bytes; },
        {.next = feed, .bytes = 6 * kDirectBlockBytes});
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_THAT(is_whole, testing::Each(true));
    EXPECT_TRUE(std::ranges::all_of(reads, [&](const PageRead& one) { return IsThere(one); }));
    EXPECT_GT(num_asked_with_some_under_way, 0);
  }
}

TEST_P(PageReaderTest, SaysHowItReads) {
  const std::string how = Open()->Describe();
  EXPECT_THAT(how, HasSubstr(GetParam().first ? "io_uring" : "pread on 3 threads"));
  EXPECT_THAT(how, HasSubstr(GetParam().second ? "past the page cache"
                                               : "through the page cache, because"));
}

TEST_P(PageReaderTest, LeavesNoPagesInTheCache) {
  if (!DropFromCache(path_)) GTEST_SKIP() << "files are in memory here, whatever one asks";
  const Status read = Open()->Read(Reads(), {});
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_LT(CachedShare(path_), 0.2);
}

TEST_P(PageReaderTest, GoesOnAfterShortReadsAndInterruptions) {
  std::atomic<int> count = 0;
  const auto reader = Open([&](uint64_t, int64_t result) -> int64_t {
    const int turn = count++;
    if (turn % 3 == 0) return turn % 2 == 0 ? -EINTR : -EAGAIN;
    return turn % 3 == 1 ? std::min<int64_t>(result, kDirectBlockBytes + 17) : result;
  });
  const std::vector<PageRead> reads = Reads();
  const Status read = reader->Read(reads, {});
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(std::ranges::all_of(reads, [&](const PageRead& one) { return IsThere(one); }));
}

TEST_P(PageReaderTest, ReadsThatGiveNothingOfAWholeFileAreTriedAgain) {
  int num_short = 3;
  const auto reader =
      Open([&](uint64_t, int64_t result) -> int64_t { return num_short-- > 0 ? 17 : result; });
  const PageRead read{.offset = 0, .size_bytes = 5000, .target = memory_.data()};
  const Status done = reader->Read({&read, 1}, {});
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_TRUE(IsThere(read));
  num_short = 1000;
  const Status refused = reader->Read({&read, 1}, {});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("gave 17 of 5000 bytes at byte 0"));
}

TEST_P(PageReaderTest, ADiskThatRefusesForEverIsAnError) {
  bool refuses = true;
  const auto reader =
      Open([&](uint64_t, int64_t result) -> int64_t { return refuses ? -EAGAIN : result; });
  const std::vector<PageRead> reads = Reads();
  const Status refused = reader->Read(reads, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kDataLoss);
  EXPECT_THAT(refused.error().message, HasSubstr("Resource temporarily unavailable"));
  refuses = false;
  EXPECT_TRUE(reader->Read(reads, {}));
}

TEST_P(PageReaderTest, AFailingDiskIsAnErrorThatSaysWhereAndTheNextReadWorks) {
  bool fails = true;
  const auto reader = Open([&](uint64_t offset, int64_t result) -> int64_t {
    return fails && offset == 10 * kDirectBlockBytes ? -EIO : result;
  });
  const std::vector<PageRead> reads = {
      {.offset = 0, .size_bytes = 16 * kDirectBlockBytes, .target = memory_.data()}};
  int num_done = 0;
  const Status failed = reader->Read(reads, [&](size_t, uint64_t num_bytes) {
    if (num_bytes == reads.front().size_bytes) ++num_done;
  });
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message, HasSubstr("at byte 40960 of " + path_.string()));
  EXPECT_THAT(failed.error().message, HasSubstr("Input/output error"));
  EXPECT_EQ(num_done, 0);
  fails = false;
  EXPECT_TRUE(reader->Read(reads, {}));
  EXPECT_TRUE(IsThere(reads.front()));
}

TEST_P(PageReaderTest, AFileThatIsCutIsAnErrorAndNoSignal) {
  const auto reader = Open();
  std::filesystem::resize_file(path_, 3 * kDirectBlockBytes + 5);
  const std::vector<PageRead> reads = Reads();
  const Status read = reader->Read(reads, {});
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().kind, ErrorKind::kDataLoss);
  EXPECT_THAT(read.error().message, HasSubstr("was cut while it was read"));
}

TEST_P(PageReaderTest, KnowsThatItsFileWasWrittenTo) {
  const auto reader = Open();
  EXPECT_TRUE(reader->CheckUnchanged());
  // Another file in its place is not the one that is read.
  std::filesystem::rename(path_, path_.string() + ".old");
  std::ofstream(path_, std::ios::binary) << "new";
  EXPECT_TRUE(reader->CheckUnchanged());
  std::filesystem::rename(path_.string() + ".old", path_);
  std::fstream(path_, std::ios::in | std::ios::out | std::ios::binary) << "written";
  const Status written = reader->CheckUnchanged();
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().kind, ErrorKind::kDataLoss);
  EXPECT_THAT(written.error().message, HasSubstr("was written to while it was in use"));
  std::filesystem::resize_file(path_, 100);
  EXPECT_THAT(reader->CheckUnchanged().error().message, HasSubstr("was cut while it was in use"));
}

INSTANTIATE_TEST_SUITE_P(Ways, PageReaderTest,
                         testing::Values(std::pair(true, true), std::pair(true, false),
                                         std::pair(false, true), std::pair(false, false)),
                         [](const auto& way) {
                           return fmt::format("{}{}", way.param.first ? "Uring" : "Threads",
                                              way.param.second ? "Direct" : "Cached");
                         });

// Gives nothing for a while, then what it was asked for.
class StalledQueue final : public DiskQueue {
 public:
  StalledQueue(int descriptor, int num_waits) : descriptor_(descriptor), num_waits_(num_waits) {}
  int depth() const override { return 2; }
  std::string name() const override { return "a slow disk"; }
  void Begin(const QueuedTransfer& read) override { waiting_.push_back(read); }
  std::optional<FinishedTransfer> Wait(double /*patience_s*/) override {
    if (num_waits_-- > 0) return std::nullopt;
    const QueuedTransfer read = waiting_.back();
    waiting_.pop_back();
    return FinishedTransfer{.tag = read.tag,
                            .result = pread(descriptor_, read.target, read.size_bytes,
                                            static_cast<off_t>(read.offset))};
  }

 private:
  int descriptor_;
  int num_waits_;
  std::vector<QueuedTransfer> waiting_;
};

TEST_F(PagesInAFile, WaitsForADiskThatHasBecomeSlowAndSaysSo) {
  std::vector<std::string> lines;
  auto reader = PageReader::Open(
      path_, {.request_bytes = kDirectBlockBytes,
              .patience_s = 10,
              .told = [&](const std::string& line) { lines.push_back(line); },
              .make_queue = [](int file) { return std::make_unique<StalledQueue>(file, 3); }});
  ASSERT_TRUE(reader);
  const std::vector<PageRead> reads = Reads();
  ASSERT_TRUE((*reader)->Read(reads, {}));
  EXPECT_TRUE(std::ranges::all_of(reads, [&](const PageRead& one) { return IsThere(one); }));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_THAT(lines[0], HasSubstr("answered nothing for 10 s"));
  EXPECT_THAT(lines[1], HasSubstr("for 20 s"));
  EXPECT_THAT(lines[2], HasSubstr("for 40 s"));
}

TEST(PageReader, RefusesWhatIsNoFile) {
  EXPECT_FALSE(PageReader::Open("/nowhere/pages").ok());
  const auto directory = PageReader::Open(testing::TempDir());
  ASSERT_FALSE(directory.ok());
  EXPECT_THAT(directory.error().message, HasSubstr("a directory"));
}

}  // namespace
}  // namespace convene::memory
