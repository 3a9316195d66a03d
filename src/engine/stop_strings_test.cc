#include "engine/stop_strings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace convene::engine {
namespace {

// What is shown of `text` cut into pieces of `piece_bytes`.
std::string Shown(const std::vector<std::string>& stops, std::string_view text, size_t piece_bytes,
                  bool* stopped = nullptr) {
  StopStrings filter(stops);
  std::string shown;
  for (size_t at = 0; at < text.size(); at += piece_bytes) {
    shown += filter.Push(text.substr(at, piece_bytes));
    for (const std::string& stop : stops) EXPECT_EQ(shown.find(stop), std::string::npos);
  }
  if (stopped != nullptr) *stopped = filter.stopped();
  return shown + filter.Finish();
}

TEST(StopStrings, WithoutStopsEverythingIsShownAtOnce) {
  StopStrings filter({});
  EXPECT_EQ(filter.Push("Once upon"), "Once upon");
  EXPECT_EQ(filter.Finish(), "");
}

TEST(StopStrings, EndBeforeTheStopString) {
  StopStrings filter({"\n\n"});
  EXPECT_EQ(filter.Push("one\ntwo\n\nthree"), "one\ntwo");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.Push("four"), "");
  EXPECT_EQ(filter.Finish(), "");
}

TEST(StopStrings, HoldBackWhatMayBecomeAStopString) {
  StopStrings filter({"</answer>"});
  EXPECT_EQ(filter.Push("42</ans"), "42");
  EXPECT_EQ(filter.Push("were"), "</answere");
  EXPECT_EQ(filter.Push("</answer"), "");
  EXPECT_EQ(filter.Push(">!"), "");
  EXPECT_TRUE(filter.stopped());
}

TEST(StopStrings, ShowWhatWasHeldBackWhenTheAnswerEnds) {
  StopStrings filter({"STOP"});
  EXPECT_EQ(filter.Push("no ST"), "no ");
  EXPECT_EQ(filter.Finish(), "ST");
}

TEST(StopStrings, TheOneThatEndsFirstWinsThenTheLonger) {
  EXPECT_EQ(Shown({"abcd", "bc"}, "xabcdy", 6), "xa");
  EXPECT_EQ(Shown({"c", "abc"}, "xabcdy", 6), "x");
}

TEST(StopStrings, SelfOverlappingPrefixesAreHeldBackFarEnough) {
  EXPECT_EQ(Shown({"aab"}, "aaab", 1), "a");
  EXPECT_EQ(Shown({"abab!"}, "ababab!", 1), "ab");
}

TEST(StopStrings, ResultDoesNotDependOnHowTheTextIsCut) {
  std::mt19937 random(1);
  const auto letters = [&](int max_size) {
    std::string text(1 + random() % max_size, ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  int num_stopped = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> stops;
    for (unsigned i = 0; i < random() % 4; ++i) stops.push_back(letters(6));
    const std::string text = letters(40);
    bool stopped = false;
    const std::string whole = Shown(stops, text, text.size(), &stopped);
    num_stopped += stopped;
    for (size_t piece_bytes = 1; piece_bytes < text.size(); ++piece_bytes) {
      ASSERT_EQ(Shown(stops, text, piece_bytes), whole) << text;
    }
    EXPECT_TRUE(stopped || whole == text) << text;
  }
  EXPECT_GT(num_stopped, 200);
}

TEST(StopStringsDeathTest, AnEmptyOneIsABug) {
  EXPECT_DEATH(StopStrings({""}), testing::HasSubstr("empty stop string"));
}

}  // namespace
}  // namespace convene::engine
