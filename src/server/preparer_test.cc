#include "server/preparer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <mutex>
#include <string>
#include <vector>

namespace convene::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kLarge = size_t{2} << 20;  // for one of the threads alone
constexpr size_t kNoLimit = size_t{1} << 40;

class PreparerTest : public ::testing::Test {
 protected:
  // A body whose reading does not end before the latch is open, if there is one.
  Reading Body(const std::string& name, const std::string& client, size_t num_bytes,
               std::latch* opens = nullptr) {
    return {.client = client,
            .num_bytes = num_bytes,
            .work =
                [this, name, opens] {
                  if (opens != nullptr) opens->wait();
                  const std::scoped_lock lock(mutex_);
                  read_.push_back(name);
                  read_one_.notify_all();
                },
            .refuse =
                [this, name](Lack lack) {
                  refused_.push_back(name + (lack == Lack::kBytes ? " for its bytes" : ""));
                }};
  }

  std::vector<std::string> WaitForRead(size_t count) {
    std::unique_lock lock(mutex_);
    read_one_.wait(lock, [&] { return read_.size() >= count; });
    return read_;
  }

  std::vector<std::string> refused_;
  std::mutex mutex_;
  std::condition_variable read_one_;
  std::vector<std::string> read_;
};

TEST_F(PreparerTest, SmallBodiesDoNotWaitForLargeOnes) {
  std::latch opens(1);
  Preparer preparer(100, kNoLimit);
  ASSERT_TRUE(preparer.Start().ok());
  for (int i = 0; i < 3; ++i) preparer.Push(Body("large", "", kLarge, &opens));
  preparer.Push(Body("medium", "", Preparer::kMostBytes[1]));
  EXPECT_THAT(WaitForRead(1), ElementsAre("medium"));
  preparer.Push(Body("small", "", 10));
  EXPECT_THAT(WaitForRead(2), ElementsAre("medium", "small"));
  opens.count_down();
  WaitForRead(5);
}

TEST_F(PreparerTest, LargeBodiesOfAClientLeaveTheirTurnToAnother) {
  std::latch opens(1);
  Preparer preparer(100, kNoLimit);
  for (int i = 0; i < 3; ++i) preparer.Push(Body("a", "a", kLarge, &opens));
  preparer.Push(Body("b", "b", kLarge, &opens));
  ASSERT_TRUE(preparer.Start().ok());
  opens.count_down();
  EXPECT_THAT(WaitForRead(4), ElementsAre("a", "b", "a", "a"));
}

TEST_F(PreparerTest, WhoHasTheMostBytesWaitingIsRefused) {
  Preparer preparer(4, 100);             // whose threads do not run
  preparer.Push(Body("a1", "a", 1000));  // the only one
  preparer.Push(Body("a2", "a", 10));
  EXPECT_THAT(refused_, ElementsAre("a2 for its bytes"));
  preparer.Push(Body("b1", "b", 10));
  EXPECT_THAT(refused_, ElementsAre("a2 for its bytes", "a1 for its bytes"));
  preparer.Push(Body("b2", "b", 80));
  preparer.Push(Body("c1", "c", 5));
  EXPECT_THAT(refused_, ElementsAre("a2 for its bytes", "a1 for its bytes"));
  preparer.Push(Body("c2", "c", 5));
  preparer.Push(Body("c3", "c", 0));  // a fifth
  EXPECT_THAT(refused_, ElementsAre("a2 for its bytes", "a1 for its bytes", "b2"));
}

TEST_F(PreparerTest, StopsWithoutReadingWhatWaits) {
  Preparer preparer(4, 100);
  preparer.Push(Body("a", "a", 10));
  preparer.Stop();
  EXPECT_THAT(read_, IsEmpty());
}

}  // namespace
}  // namespace convene::server
