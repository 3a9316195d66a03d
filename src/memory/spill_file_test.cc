#include "memory/spill_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "memory/ledger.h"
#include "memory/page_reader.h"

namespace convene::memory {
namespace {

constexpr uint64_t kBlock = 3 * kDirectBlockBytes;
constexpr int kBlocks = 70;  // more than requests that are under way

class SpillFileTest : public testing::Test {
 protected:
  SpillFileTest() : memory_(*ledger_.Allocate(Use::kKvCache, kBlocks * kBlock)) {
    for (int block = 0; block < kBlocks; ++block) {
      // In another order than in memory.
      const auto place = static_cast<uint64_t>(block * 37 % kBlocks);
      transfers_.push_back({place * kBlock, kBlock, memory_.data() + block * kBlock});
    }
  }
  ~SpillFileTest() override { std::filesystem::remove_all(above_); }

  std::unique_ptr<SpillFile> Make(SpillFile::Options options) {
    auto file = SpillFile::Create(directory_, kBlocks * kBlock, std::move(options));
    CHECK(file.ok(), "{}", file.error().message);
    return *std::move(file);
  }
  void Fill() {
    for (uint64_t i = 0; i < kBlocks * kBlock; ++i) memory_.data()[i] = Byte(i);
  }
  bool IsFilled() const {
    for (uint64_t i = 0; i < kBlocks * kBlock; ++i) {
      if (memory_.data()[i] != Byte(i)) return false;
    }
    return true;
  }
  static std::byte Byte(uint64_t i) { return static_cast<std::byte>(i * i / 977 % 251); }

  // Tests run beside each other in processes of their own.
  const std::string above_ = fmt::format("{}/spill_file_{}", testing::TempDir(), getpid());
  const std::string directory_ = above_ + "/below";
  Ledger ledger_;
  Reservation memory_;
  std::vector<SpillTransfer> transfers_;
};

TEST_F(SpillFileTest, WhatWasWrittenIsReadAgainAndNothingStaysInTheDirectory) {
  for (const bool use_io_uring : {true, false}) {
    for (const bool use_direct : {true, false}) {
      const auto file = Make({.request_bytes = 2 * kDirectBlockBytes,
                              .use_io_uring = use_io_uring,
                              .use_direct = use_direct});
      EXPECT_TRUE(std::filesystem::is_empty(directory_));
      Fill();
      ASSERT_TRUE(file->Write(transfers_).ok());
      std::memset(memory_.data(), 0, kBlocks * kBlock);
      ASSERT_TRUE(file->Read(transfers_).ok());
      EXPECT_TRUE(IsFilled());
      EXPECT_TRUE(file->Read({}).ok());
    }
  }
}

TEST_F(SpillFileTest, SaysHowItReadsAndWritesAndTellsWhereThatIsNotTheFastWay) {
  std::vector<std::string> told;
  const auto tell = [&](const std::string& line) { told.push_back(line); };
  const std::string fast = Make({.told = tell})->Describe();
  EXPECT_EQ(told.empty(), fast == "io_uring, 32 requests at a time, past the page cache") << fast;
  told.clear();
  const auto slow = Make({.threads = 3, .use_io_uring = false, .use_direct = false, .told = tell});
  EXPECT_NE(slow->Describe().find("on 3 threads"), std::string::npos) << slow->Describe();
  EXPECT_NE(slow->Describe().find("through the page cache, because"), std::string::npos);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told.front().find(directory_), std::string::npos) << told.front();
}

TEST_F(SpillFileTest, PartsOfARequestAreGoneOnWith) {
  const auto file = Make({.change_result = [](uint64_t, bool, int64_t result) -> int64_t {
    return result > 5000 ? 5000 : result;  // of which a block is whole
  }});
  Fill();
  ASSERT_TRUE(file->Write(transfers_).ok());
  std::memset(memory_.data(), 0, kBlocks * kBlock);
  ASSERT_TRUE(file->Read(transfers_).ok());
  EXPECT_TRUE(IsFilled());
}

TEST_F(SpillFileTest, ADiskThatFailsIsAnErrorThatSaysWhere) {
  bool fails_writes = true;
  int64_t given = -EIO;
  const auto file =
      Make({.change_result = [&](uint64_t offset, bool is_write, int64_t result) -> int64_t {
        return offset == 5 * kBlock && is_write == fails_writes ? given : result;
      }});
  const Status written = file->Write(transfers_);
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().kind, ErrorKind::kDataLoss);
  EXPECT_NE(
      written.error().message.find("cannot write 12288 bytes at byte 61440 of the spill file"),
      std::string::npos)
      << written.error().message;
  fails_writes = false;
  given = 0;
  const Status read = file->Read(transfers_);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().kind, ErrorKind::kDataLoss);
  EXPECT_NE(read.error().message.find("gave none of them"), std::string::npos)
      << read.error().message;
  fails_writes = true;
  EXPECT_TRUE(file->Read(transfers_).ok());
}

TEST_F(SpillFileTest, ADiskThatRefusesForEverIsAnError) {
  int num_refusals = 5;
  const auto file = Make({.change_result = [&](uint64_t, bool, int64_t result) -> int64_t {
    return num_refusals-- > 0 ? -EAGAIN : result;
  }});
  EXPECT_TRUE(file->Write(transfers_).ok());
  num_refusals = 1 << 20;
  const Status read = file->Read(transfers_);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().kind, ErrorKind::kDataLoss);
  EXPECT_NE(read.error().message.find("Resource temporarily unavailable"), std::string::npos)
      << read.error().message;
}

TEST_F(SpillFileTest, WhereThereCanBeNoDirectoryAnotherPlaceIsNamed) {
  std::filesystem::create_directories(above_);
  std::ofstream(above_ + "/file") << "no directory";
  const auto file = SpillFile::Create(above_ + "/file/below", kBlock, {});
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.error().message.find("--spill-dir names another place"), std::string::npos)
      << file.error().message;
}

TEST_F(SpillFileTest, ADiskThatIsTooSmallIsSaidBeforehand) {
  const uint64_t too_much = SpillFile::FreeBytes(directory_) + (uint64_t{1} << 40);
  const auto file = SpillFile::Create(directory_, too_much / kBlock * kBlock, {});
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().kind, ErrorKind::kResourceExhausted);
  // What there is, and not what trying left of it, which took nothing from others meanwhile.
  EXPECT_EQ(file.error().message.find("has 0 B left"), std::string::npos) << file.error().message;
  EXPECT_NE(file.error().message.find("--spill-dir"), std::string::npos) << file.error().message;
  EXPECT_GT(SpillFile::FreeBytes(directory_ + "/not/there"), 0u);
  EXPECT_TRUE(SpillFile::ShareDisk(directory_, directory_ + "/not/there"));
  EXPECT_FALSE(SpillFile::ShareDisk(directory_, "/proc"));
  if (std::filesystem::is_directory("/dev/shm")) {
    EXPECT_TRUE(SpillFile::IsInMemory("/dev/shm/not/there"));
  }
  const auto nowhere = SpillFile::Create("/proc/no_directory", kBlock, {});
  ASSERT_FALSE(nowhere.ok());
  EXPECT_NE(nowhere.error().message.find("/proc/no_directory"), std::string::npos);
}

}  // namespace
}  // namespace convene::memory
