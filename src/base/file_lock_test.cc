#include "base/file_lock.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include "base/eventually_test.h"

namespace convene {
namespace {

namespace fs = std::filesystem;

std::string PathOfTest() {
  return fs::path(testing::TempDir()) / fmt::format("file_lock_{}.lock", getpid());
}

TEST(FileLock, OneHasItAtATimeAndTheFileGoesWithIt) {
  const std::string path = PathOfTest();
  std::atomic<int> inside = 0;
  std::atomic<int> most_inside = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 50; ++turn) {
        const Result<FileLock> lock = FileLock::Take(path, {});
        ASSERT_TRUE(lock) << lock.error().message;
        const int now = ++inside;
        if (now > most_inside) most_inside = now;
        std::this_thread::yield();
        --inside;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(most_inside, 1);
  EXPECT_FALSE(fs::exists(path));
}

TEST(FileLock, WhoWaitsIsToldOnce) {
  const std::string path = PathOfTest();
  std::atomic<int> num_told = 0;
  std::atomic<bool> has_it = false;
  Result<FileLock> first = FileLock::Take(path, [&] { ++num_told; });
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(num_told, 0);
  std::optional<FileLock> held(*std::move(first));
  std::jthread second([&] {
    const Result<FileLock> lock = FileLock::Take(path, [&] { ++num_told; });
    has_it = lock.ok();
  });
  EXPECT_TRUE(Eventually([&] { return num_told == 1; }));
  EXPECT_FALSE(has_it);
  held.reset();
  second.join();
  EXPECT_TRUE(has_it);
  EXPECT_EQ(num_told, 1);
  EXPECT_FALSE(fs::exists(path));
}

TEST(FileLock, AFileThatCannotBeMadeIsNamed) {
  const Result<FileLock> lock = FileLock::Take("/nowhere/at/all.lock", {});
  ASSERT_FALSE(lock);
  EXPECT_NE(lock.error().message.find("/nowhere/at/all.lock"), std::string::npos);
}

}  // namespace
}  // namespace convene
