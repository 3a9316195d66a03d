#include "base/message.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

namespace convene {
namespace {

TEST(Message, AnErrorIsOneLineThatCannotDriveATerminal) {
  testing::internal::CaptureStderr();
  PrintError("the template says: \x1b[2J\nand more");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "convene: the template says: ?[2J and more\n");
}

TEST(Message, ANoteKeepsItsLines) {
  testing::internal::CaptureStderr();
  PrintNote("{} tokens\nin {} s\n", 5, 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "5 tokens\nin 2 s\n");
}

TEST(Message, ProgressIsALineOfItsOwnWhereThereIsNoTerminal) {
  testing::internal::CaptureStderr();
  {
    ProgressLine line(std::chrono::seconds(0));
    EXPECT_TRUE(line.IsDue());
    line.Show("loading: 10 %");
    line.Show("loading: 20 %");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "loading: 10 %\nloading: 20 %\n");
}

TEST(Message, ProgressWaitsForItsInterval) {
  EXPECT_FALSE(ProgressLine(std::chrono::hours(1)).IsDue());
}

// The whole process dies where a message throws.
TEST(MessageDeathTest, AFullDiskBehindStandardErrorIsIgnored) {
  EXPECT_EXIT(
      {
        if (std::freopen("/dev/full", "w", stderr) == nullptr) _exit(3);
        PrintError("nobody reads this");
        PrintNote("nor {}\n", "this");
        _exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(MessageDeathTest, SilencedNotesLeaveErrors) {
  EXPECT_EXIT(
      {
        SilenceNotes();
        PrintNote("a note\n");
        PrintError("an error");
        _exit(0);
      },
      testing::ExitedWithCode(0), "^convene: an error\n$");
}

}  // namespace
}  // namespace convene
