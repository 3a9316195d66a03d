#include "cli/turn_history.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace convene::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TurnHistoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) / fmt::format("turn_history_test_{}", getpid());
    fs::remove_all(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string path() const { return directory_ / "below" / "chat_history"; }
  TurnHistory Load() const { return *TurnHistory::Load(path()); }

  fs::path directory_;
};

TEST_F(TurnHistoryTest, IsThereAgainInTheNextSession) {
  TurnHistory first = Load();
  EXPECT_THAT(first.turns(), ElementsAre());
  const std::string many_lines = "def f():\n\treturn \"\\n\"\n";
  for (const std::string& turn :
       {std::string("Hello"), many_lines, many_lines, std::string("héllo")}) {
    EXPECT_TRUE(first.Add(turn));
  }
  EXPECT_THAT(Load().turns(), ElementsAre("Hello", many_lines, "héllo"));
}

TEST_F(TurnHistoryTest, TakesTurnsOfTwoSessionsAtOnce) {
  TurnHistory one = Load();
  TurnHistory other = Load();
  EXPECT_TRUE(one.Add("one"));
  EXPECT_TRUE(other.Add("other"));
  EXPECT_TRUE(one.Add("one again"));
  EXPECT_THAT(Load().turns(), ElementsAre("one", "other", "one again"));
}

TEST_F(TurnHistoryTest, BelongsToItsOwnerAlone) {
  TurnHistory history = Load();
  EXPECT_TRUE(history.Add("a secret"));
  struct stat status = {};
  ASSERT_EQ(stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(TurnHistoryTest, PassesOverWhatIsNoTurn) {
  fs::create_directories(fs::path(path()).parent_path());
  std::ofstream(path()) << "\"one\"\nnonsense\n{\"a\": 1}\n\n\"two\"\n\"cut o";
  EXPECT_THAT(Load().turns(), ElementsAre("one", "two"));
}

TEST_F(TurnHistoryTest, IsCutToTheLatestTurnsWhenItHasGrownLong) {
  fs::create_directories(fs::path(path()).parent_path());
  {
    std::ofstream file(path());
    for (int i = 0; i < 2500; ++i) file << fmt::format("\"turn {}\"\n", i);
  }
  for (const int time : {1, 2}) {
    const TurnHistory history = Load();
    ASSERT_EQ(history.turns().size(), 1000u) << time;
    EXPECT_EQ(history.turns().front(), "turn 1500");
    EXPECT_EQ(history.turns().back(), "turn 2499");
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(fs::path(path()).parent_path()), {}), 1);
}

TEST_F(TurnHistoryTest, SaysWhyItCannotBeKept) {
  fs::create_directories(fs::path(path()).parent_path());
  fs::create_directory(path());
  EXPECT_THAT(TurnHistory::Load(path()).error().message, HasSubstr("chat_history"));
  const fs::path file = directory_ / "file";
  std::ofstream(file) << "";
  Result<TurnHistory> history = TurnHistory::Load(file / "chat_history");
  ASSERT_TRUE(history);
  EXPECT_THAT(history->Add("x").error().message, HasSubstr("cannot write"));
}

}  // namespace
}  // namespace convene::cli
