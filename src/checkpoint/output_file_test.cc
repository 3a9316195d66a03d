#include "checkpoint/output_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/read_file.h"
#include "checkpoint/output_directory.h"

namespace convene::checkpoint {
namespace {

namespace fs = std::filesystem;

class OutputFileTest : public testing::Test {
 protected:
  OutputFileTest() : root_(fs::path(testing::TempDir()) / fmt::format("output_file_{}", getpid())) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~OutputFileTest() override { fs::remove_all(root_); }

  std::string Temporary(const std::string& name) const { return (root_ / name).string(); }

  fs::path root_;
};

TEST_F(OutputFileTest, HoldsThePartsWhereTheyWereWritten) {
  const std::string path = Temporary("parts");
  auto file = OutputFile::Create(path, 6);
  ASSERT_TRUE(file) << file.error().message;
  const std::string tail = "def";
  const std::string head = "abc";
  EXPECT_TRUE(file->WriteAt(3, std::as_bytes(std::span(tail))));
  EXPECT_TRUE(file->WriteAt(0, std::as_bytes(std::span(head))));
  EXPECT_TRUE(file->Finish());
  EXPECT_EQ(*ReadFile(path, 100), "abcdef");
}

TEST_F(OutputFileTest, DoesNotOverwrite) {
  const std::string path = Temporary("twice");
  ASSERT_TRUE(OutputFile::Create(path, 1));
  EXPECT_FALSE(OutputFile::Create(path, 1));
  EXPECT_FALSE(OutputFile::Create("/no/such/directory/file", 1));
}

// Stands for a full disk: the system refuses to let the file grow.
TEST_F(OutputFileTest, ReportsThatTheFileCannotGrow) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit = {.rlim_cur = 1 << 16, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto reserved = OutputFile::Create(Temporary("reserved"), 1 << 20);
  const std::string path = Temporary("grown");
  const auto file = OutputFile::Create(path, 0);
  const std::string bytes((1 << 16) + 1, 'x');
  const Status written =
      file ? file->WriteAt(0, std::as_bytes(std::span(bytes))) : Status(file.error());
  const Status whole = WriteWholeFile(Temporary("cut"), bytes);
  setrlimit(RLIMIT_FSIZE, &before);

  ASSERT_FALSE(reserved);
  EXPECT_NE(reserved.error().message.find("cannot reserve 1.00 MiB"), std::string::npos);
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().message.find("cannot write " + path), std::string::npos);
  EXPECT_FALSE(whole);
  for (const char* name : {"reserved", "cut", "cut.tmp"}) {
    EXPECT_FALSE(fs::exists(Temporary(name))) << name;
  }
}

TEST_F(OutputFileTest, WholeFilesLeaveNothingBeside) {
  const std::string path = Temporary("whole");
  std::ofstream(path + ".tmp") << "of a run that was killed";
  ASSERT_TRUE(WriteWholeFile(path, "content"));
  EXPECT_EQ(*ReadFile(path, 100), "content");
  EXPECT_FALSE(fs::exists(path + ".tmp"));
  EXPECT_TRUE(WriteWholeFile(path, ""));
  EXPECT_EQ(*ReadFile(path, 100), "");
}

TEST_F(OutputFileTest, ADirectoryThatIsNotKeptLeavesNothing) {
  {
    auto directory = OutputDirectory::Prepare(Temporary("made"));
    ASSERT_TRUE(directory) << directory.error().message;
    fs::create_directory(directory->Add("below"));
    std::ofstream(directory->Add("below/file")) << "content";
  }
  EXPECT_FALSE(fs::exists(Temporary("made")));
}

}  // namespace
}  // namespace convene::checkpoint
