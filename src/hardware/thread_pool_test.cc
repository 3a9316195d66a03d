#include "hardware/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "hardware/affinity.h"

namespace convene::hardware {
namespace {

using ::testing::Each;

// `num_threads` threads on the CPUs this test may use, several to a CPU where those are too few.
std::vector<int> Cpus(int num_threads) {
  const std::vector<int> allowed = *CurrentAffinity();
  std::vector<int> cpus;
  for (int i = 0; i < num_threads; ++i) cpus.push_back(allowed[i % allowed.size()]);
  return cpus;
}

class ThreadPoolOfSize : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolOfSize, RunsTheFunctionOnceOnEachThread) {
  ThreadPool pool(Cpus(GetParam()));
  ASSERT_EQ(pool.size(), GetParam());
  EXPECT_EQ(pool.num_pinned(), GetParam());
  std::vector<int> calls(GetParam(), 0);
  std::vector<std::thread::id> ids(GetParam());
  pool.Run([&](int thread_idx) {
    ++calls[thread_idx];
    ids[thread_idx] = std::this_thread::get_id();
  });
  EXPECT_THAT(calls, Each(1));
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end()) << "a thread ran it twice";
}

TEST_P(ThreadPoolOfSize, VisitsEveryIndexOnceForAnyGrain) {
  ThreadPool pool(Cpus(GetParam()));
  for (const int64_t count : {0, 1, 2, 5, 64, 1000}) {
    for (const int64_t grain : {1, 3, 64, 5000}) {
      std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
      std::atomic<bool> thread_in_range = true;
      pool.ParallelFor(
          count,
          [&](int64_t index, int thread_idx) {
            ++visits[static_cast<size_t>(index)];
            if (thread_idx < 0 || thread_idx >= pool.size()) thread_in_range = false;
          },
          grain);
      for (const auto& visit : visits) ASSERT_EQ(visit, 1) << count << " by " << grain;
      EXPECT_TRUE(thread_in_range);
    }
  }
}

TEST_P(ThreadPoolOfSize, HandsOutIndicesInIncreasingOrder) {
  ThreadPool pool(Cpus(GetParam()));
  std::vector<std::vector<int64_t>> seen(GetParam());
  pool.ParallelFor(
      1000, [&](int64_t index, int thread_idx) { seen[thread_idx].push_back(index); }, 7);
  for (const auto& indices : seen) EXPECT_TRUE(std::is_sorted(indices.begin(), indices.end()));
}

TEST_P(ThreadPoolOfSize, ShowsEachCallTheWritesOfTheLast) {
  ThreadPool pool(Cpus(GetParam()));
  const int num_rounds = GetParam() <= 2 ? 100'000 : 5'000;
  // Plain integers on purpose: the sanitizer build sees a missing edge between the calls.
  std::vector<int> values(GetParam(), 0);
  int last_sum = 0;
  for (int round = 1; round <= num_rounds; ++round) {
    pool.Run([&](int thread_idx) { values[thread_idx] = last_sum + thread_idx + round; });
    last_sum = std::accumulate(values.begin(), values.end(), 0) % 1000;
    for (int i = 1; i < GetParam(); ++i) ASSERT_EQ(values[i], values[0] + i) << "round " << round;
  }
}

TEST_P(ThreadPoolOfSize, WakesThreadsThatHaveGoneToSleep) {
  ThreadPool pool(Cpus(GetParam()));
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(round % 4 == 0 ? 3 : 0));
    std::atomic<int> calls = 0;
    pool.Run([&](int thread_idx) {
      // Slow workers, so that the caller sleeps too.
      if (thread_idx > 0 && round % 5 == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++calls;
    });
    ASSERT_EQ(calls, GetParam());
  }
}

TEST_P(ThreadPoolOfSize, PinsEachThreadToItsCpu) {
  const std::vector<int> cpus = Cpus(GetParam());
  ThreadPool pool(cpus);
  std::vector<int> ran_on(GetParam(), -1);
  pool.Run([&](int thread_idx) { ran_on[thread_idx] = sched_getcpu(); });
  EXPECT_EQ(ran_on, cpus);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolOfSize, ::testing::Values(1, 2, 3, 4, 5));

TEST(ThreadPool, GivesTheConstructingThreadItsMaskBack) {
  const std::vector<int> before = *CurrentAffinity();
  {
    ThreadPool pool({before.back()});
    EXPECT_EQ(*CurrentAffinity(), std::vector<int>{before.back()});
  }
  EXPECT_EQ(*CurrentAffinity(), before);
}

TEST(ThreadPool, RunsUnpinnedOnACpuThatDoesNotExist) {
  ThreadPool pool({CurrentAffinity()->front(), 60'000});
  EXPECT_EQ(pool.num_pinned(), 1);
  std::atomic<int> calls = 0;
  pool.Run([&](int) { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST(ThreadPool, AcceptsAConstFunctionAndAMutableOne) {
  ThreadPool pool(Cpus(2));
  std::atomic<int> calls = 0;
  const auto constant = [&](int) { ++calls; };
  pool.Run(constant);
  struct Counter {
    std::atomic<int> count = 0;
    void operator()(int) { ++count; }
  } counter;
  pool.Run(counter);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(counter.count, 2);
}

// A stack that no memory is left for is the refusal that a test can bring about as any user.
TEST(ThreadPoolDeathTest, HasFewerThreadsAndSaysWhyWhenTheSystemRefusesOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto use_pool = [] {
    pthread_attr_t attributes;
    CHECK(pthread_getattr_default_np(&attributes) == 0 &&
          pthread_attr_setstacksize(&attributes, size_t{1} << 46) == 0 &&
          pthread_setattr_default_np(&attributes) == 0);
    ThreadPool pool({0, 0, 0});
    std::atomic<int> sum = 0;
    pool.ParallelFor(100, [&](int64_t i, int) { sum += static_cast<int>(i); });
    const bool works = pool.size() == 1 && sum == 4950 && !pool.started();
    std::fputs(pool.started() ? "started" : pool.started().error().message.c_str(), stderr);
    std::exit(works ? 7 : 8);
  };
  EXPECT_EXIT(use_pool(), testing::ExitedWithCode(7),
              "cannot start thread 2 of 3: .*use fewer threads");
}

TEST(ThreadPoolDeathTest, RefusesASecondCallerAtTheSameTime) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The first caller stays in its call until the second one comes.
  const auto call_beside = [](auto first, auto second) {
    ThreadPool pool(Cpus(2));
    std::atomic<bool> is_inside = false;
    const std::jthread other([&] {
      first(pool, [&] {
        is_inside = true;
        for (;;) std::this_thread::yield();
      });
    });
    while (!is_inside) std::this_thread::yield();
    second(pool);
  };
  const auto run = [](ThreadPool& pool, auto f) { pool.Run([&](int) { f(); }); };
  const auto alone = [](ThreadPool& pool, auto f) {  // of one grain: the workers sleep
    pool.ParallelFor(1, [&](int64_t, int) { f(); });
  };
  const auto for_all = [](ThreadPool& pool) { pool.ParallelFor(100, [](int64_t, int) {}); };
  const auto for_one = [](ThreadPool& pool) { pool.ParallelFor(1, [](int64_t, int) {}); };
  EXPECT_DEATH(call_beside(run, for_all), "one caller at a time");
  EXPECT_DEATH(call_beside(run, for_one), "one caller at a time");
  EXPECT_DEATH(call_beside(alone, for_all), "one caller at a time");
}

TEST(ThreadPool, TwoThreadsWithAPoolEachComputeAtTheSameTime) {
  std::atomic<int> inside = 0;
  const auto meet = [&] {
    ThreadPool pool(Cpus(2));
    pool.Run([&](int) {
      ++inside;
      while (inside < 4) std::this_thread::yield();
    });
  };
  const std::jthread other(meet);
  meet();
  EXPECT_EQ(inside, 4);
}

TEST(ThreadPoolDeathTest, RefusesNestedCallsAndAnEmptyPool) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(ThreadPool({}), "at least one thread");
  EXPECT_DEATH(
      {
        ThreadPool pool(Cpus(2));
        pool.Run([&](int) { pool.Run([](int) {}); });
      },
      "calls do not nest");
  EXPECT_DEATH(
      {
        ThreadPool pool(Cpus(2));
        pool.Run([&](int) { pool.ParallelFor(1, [](int64_t, int) {}); });
      },
      "calls do not nest");
}

}  // namespace
}  // namespace convene::hardware
