#include "tests/comm/group_checks.h"

#include <gtest/gtest.h>

#include <atomic>

#include "comm/solo/solo_group.h"
#include "comm/threads/thread_group.h"

namespace convene::comm {
namespace {

TEST(SoloGroup, DoesAllThatGroupsDo) { CheckGroup(*MakeSoloGroup()); }

class ThreadGroups : public testing::TestWithParam<int> {};

TEST_P(ThreadGroups, DoAllThatGroupsDo) {
  std::atomic<int> num_ranks = 0;
  RunOnThreads(GetParam(), [&](Group& group) {
    EXPECT_EQ(group.size(), GetParam());
    CheckGroup(group);
    ++num_ranks;
  });
  EXPECT_EQ(num_ranks, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadGroups, testing::Values(1, 2, 3, 4, 7));

TEST(ThreadGroup, AnExchangeIsNotCompleteBeforeTheOtherSideHasCome) {
  const auto groups = MakeThreadGroups(2);
  const std::vector<std::byte> out(8, std::byte{1});
  std::vector<std::byte> in(8);
  const std::vector<std::span<const std::byte>> to_1 = {{}, out}, from_1 = {out, {}};
  const std::vector<std::span<std::byte>> nothing(2), into_0 = {in, {}}, into_1 = {{}, in};
  auto sending = groups[0]->StartAllToAll(0, to_1, nothing, "one way");
  EXPECT_FALSE(sending->Test());
  auto receiving =
      groups[1]->StartAllToAll(0, std::vector<std::span<const std::byte>>(2), into_0, "one way");
  EXPECT_FALSE(sending->Test());
  EXPECT_TRUE(receiving->Test());
  EXPECT_TRUE(sending->Test());
  EXPECT_EQ(in, out);
}

TEST(ThreadGroupDeathTest, RanksThatDisagreeAboutASizeEndTheProgramWithTheExchangesName) {
  const auto groups = MakeThreadGroups(2);
  const std::vector<std::byte> out(8);
  std::vector<std::byte> in(9);
  const std::vector<std::span<const std::byte>> send = {{}, out}, no_send(2);
  const std::vector<std::span<std::byte>> receive = {in, {}}, no_receive(2);
  EXPECT_DEATH(
      {
        const auto sending = groups[0]->StartAllToAll(0, send, no_receive, "dispatch of layer 3");
        groups[1]->StartAllToAll(0, no_send, receive, "dispatch of layer 3");
      },
      "dispatch of layer 3.*rank 0 to rank 1: 8 or 9 bytes");
}

TEST(ThreadGroupDeathTest, ARankThatExpectsNothingBesideWhatItSendsDisagreesToo) {
  const auto groups = MakeThreadGroups(2);
  const std::vector<std::byte> out(8);
  std::vector<std::byte> in(8);
  const std::vector<std::span<const std::byte>> to_1 = {{}, out}, to_0 = {out, {}};
  const std::vector<std::span<std::byte>> from_1 = {{}, in}, nothing(2);
  EXPECT_DEATH(
      {
        const auto both_ways = groups[0]->StartAllToAll(0, to_1, from_1, "dispatch of layer 3");
        groups[1]->StartAllToAll(0, to_0, nothing, "dispatch of layer 3");
      },
      "dispatch of layer 3.*rank 0 to rank 1: 8 or 0 bytes");
}

TEST(ThreadGroupDeathTest, RanksThatMeetInDifferentExchangesEndTheProgram) {
  const auto groups = MakeThreadGroups(2);
  const std::vector<std::byte> out(8);
  std::vector<std::byte> in(8);
  const std::vector<std::span<const std::byte>> send = {{}, out}, no_send(2);
  const std::vector<std::span<std::byte>> receive = {in, {}}, no_receive(2);
  EXPECT_DEATH(
      {
        const auto sending = groups[0]->StartAllToAll(0, send, no_receive, "counts of layer 3");
        groups[1]->StartAllToAll(0, no_send, receive, "dispatch of layer 3");
      },
      "rank 1 to rank 0: `counts of layer 3` or `dispatch of layer 3`");
}

// Whichever of the two comes first.
TEST(ThreadGroupDeathTest, ARankThatHasSomethingForOneThatEntersWithNothingEndsTheProgram) {
  const std::vector<std::byte> out(8);
  const std::vector<std::span<const std::byte>> send = {{}, out}, no_send(2);
  const std::vector<std::span<std::byte>> no_receive(2);
  for (const bool sender_is_first : {true, false}) {
    const auto groups = MakeThreadGroups(2);
    const auto enter = [&] {
      // The first exchange of the name has nothing on both sides.
      for (const auto& group : groups) {
        group->StartAllToAll(0, no_send, no_receive, "dispatch of layer 3");
      }
      std::unique_ptr<Exchange> sending;
      const auto start = [&] {
        sending = groups[0]->StartAllToAll(0, send, no_receive, "dispatch of layer 3");
      };
      if (sender_is_first) start();
      groups[1]->StartAllToAll(0, no_send, no_receive, "dispatch of layer 3");
      if (!sender_is_first) start();
    };
    EXPECT_DEATH(enter(),
                 "in `dispatch of layer 3` rank 0 has something to exchange with rank 1, which has "
                 "nothing");
  }
}

}  // namespace
}  // namespace convene::comm
