#include "comm/send_receive.h"

#include <gtest/gtest.h>

#include <cstring>

#include "comm/threads/thread_group.h"

namespace convene::comm {
namespace {

TEST(SendReceive, BringsOneRanksBytesToOneOther) {
  for (int num_ranks = 1; num_ranks <= 4; ++num_ranks) {
    RunOnThreads(num_ranks, [&](Group& group) {
      for (int from = 0; from < num_ranks; ++from) {
        for (int to = 0; to < num_ranks; ++to) {
          const int sent = 100 * from + to;
          int received = -1;
          const auto exchange =
              StartSendReceive(group, kControlQueue, from, to, std::as_bytes(std::span(&sent, 1)),
                               std::as_writable_bytes(std::span(&received, 1)), "a number");
          group.Wait(*exchange);
          EXPECT_EQ(received, group.rank() == to ? sent : -1);
        }
      }
    });
  }
}

}  // namespace
}  // namespace convene::comm
