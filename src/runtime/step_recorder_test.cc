#include "runtime/step_recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "comm/threads/thread_group.h"
#include "runtime/program_cache.h"

namespace convene::runtime {
namespace {

using schedule::LaneKind;
using schedule::SizeKind;
using schedule::TaskKind;

// Of two ranks: each routes, and sends to the other.
std::shared_ptr<schedule::Schedule> Schedule() {
  auto shared = std::make_shared<schedule::Schedule>(schedule::Schedule{.num_ranks = 2});
  schedule::Schedule& schedule = *shared;
  for (int rank = 0; rank < 2; ++rank) {
    const schedule::Size rows{.kind = SizeKind::kRows, .from = rank};
    const schedule::Size sent{SizeKind::kSent, 0, 0, rank, 1 - rank};
    schedule.tasks.push_back({.kind = TaskKind::kRoute,
                              .lane = {rank, LaneKind::kCompute},
                              .layer = 0,
                              .work = {.flops = {{8, rows}}, .memory_bytes = {{2, rows}}}});
    schedule.tasks.push_back({.kind = TaskKind::kDispatch,
                              .lane = {rank, LaneKind::kSend},
                              .layer = 0,
                              .collective = 0,
                              .work = {.link_bytes = {{4, sent}}}});
  }
  return shared;
}

double ValueOf(const RecordedStep& step, const schedule::Size& size) {
  for (const auto& [known, value] : step.sizes) {
    if (known == size) return value;
  }
  return -1;
}

// What a rank records of a step that it began so many milliseconds after the epoch.
RecordedStep Record(StepRecorder& recorder,
                    const std::shared_ptr<const schedule::Schedule>& schedule, int rank,
                    int begun_ms, int64_t tokens) {
  schedule::Timeline timeline;
  timeline.tasks.resize(schedule->tasks.size());
  timeline.tasks[2 * rank] = {0.001, 0.002};
  timeline.tasks[2 * rank + 1] = {0.002, 0.003 + rank};
  recorder.Begin();
  recorder.Set({.kind = SizeKind::kRows, .from = rank}, 5 + rank);
  recorder.Set({SizeKind::kSent, 0, 0, rank, 1 - rank}, 2 + rank);
  const std::vector<std::vector<int64_t>> counts = {{}, {tokens, 2 * tokens}};
  const std::chrono::steady_clock::time_point start{std::chrono::milliseconds(begun_ms)};
  return recorder.Gather(
      {.schedule = schedule, .timeline = &timeline, .start = start, .expert_counts = &counts});
}

TEST(StepRecorder, RankZeroHasTheStepOfAllRanksOnOneClock) {
  const auto schedule = Schedule();
  comm::RunOnThreads(2, [&](comm::Group& group) {
    StepRecorder recorder(&group);
    const int rank = group.rank();
    // Rank 1 begins 10 ms before rank 0.
    const RecordedStep step = Record(recorder, schedule, rank, 1000 - 10 * rank, 3);
    if (rank != 0) return;
    EXPECT_NEAR(step.start, 0.990, 1e-9);
    ASSERT_EQ(step.timeline.tasks.size(), 4);
    EXPECT_NEAR(step.timeline.tasks[0].start, 0.011, 1e-9);
    EXPECT_NEAR(step.timeline.tasks[1].end, 0.013, 1e-9);
    EXPECT_NEAR(step.timeline.tasks[2].start, 0.001, 1e-9);
    EXPECT_NEAR(step.timeline.tasks[3].end, 1.003, 1e-9);
    EXPECT_EQ(step.sizes.size(), 4);  // each once
    EXPECT_EQ(ValueOf(step, {.kind = SizeKind::kRows, .from = 1}), 6);
    EXPECT_EQ(ValueOf(step, {SizeKind::kSent, 0, 0, 1, 0}), 3);
    EXPECT_EQ(step.expert_tokens, (std::vector<std::vector<int64_t>>{{}, {6, 12}}));
  });
}

// What is read of a disk is told like everything else: no other amount need name the same size.
TEST(StepRecorder, TellsSizesThatOnlyBytesOfADiskName) {
  const auto schedule = Schedule();
  schedule->num_ranks = 1;
  schedule->tasks.resize(2);
  const schedule::Size cached{.kind = SizeKind::kCached, .layer = 3, .from = 0};
  schedule->tasks[1] = {.kind = TaskKind::kReadKv,
                        .lane = {0, LaneKind::kLoad},
                        .layer = 3,
                        .work = {.disk_bytes = {{4, cached}}}};
  StepRecorder recorder(nullptr);
  const schedule::Timeline timeline{.tasks = {{0, 1}, {0, 1}}};
  recorder.Begin();
  recorder.Set(cached, 128);
  const std::vector<std::vector<int64_t>> counts;
  const RecordedStep step = recorder.Gather(
      {.schedule = schedule, .timeline = &timeline, .start = {}, .expert_counts = &counts});
  EXPECT_EQ(ValueOf(step, cached), 128);
}

TEST(StepRecorder, ExpertsTokensAreThoseOfTheStep) {
  const auto schedule = Schedule();
  comm::RunOnThreads(2, [&](comm::Group& group) {
    StepRecorder recorder(&group);
    Record(recorder, schedule, group.rank(), 0, 3);
    const RecordedStep step = Record(recorder, schedule, group.rank(), 50, 4);
    if (group.rank() != 0) return;
    EXPECT_EQ(step.expert_tokens[1], (std::vector<int64_t>{2, 4}));
    EXPECT_NEAR(step.start, 0.05, 1e-9);
  });
}

TEST(StepRecorder, StepsThatAreNotGatheredCountInBytesAlone) {
  const auto schedule = Schedule();
  comm::RunOnThreads(2, [&](comm::Group& group) {
    StepRecorder recorder(&group);
    const int rank = group.rank();
    const schedule::Task& dispatch = schedule->tasks[2 * rank + 1];
    Record(recorder, schedule, rank, 0, 3);
    for (int i = 0; i < 5; ++i) {
      recorder.Begin();
      recorder.SetSent(dispatch, 100 + static_cast<uint64_t>(rank));
    }
    recorder.PassOver({{}, {10, 20}});
    const RecordedStep step = Record(recorder, schedule, rank, 50, 11);
    if (rank != 0) return;
    EXPECT_EQ(step.expert_tokens[1], (std::vector<int64_t>{2, 4}));
    EXPECT_EQ(step.sent_before_bytes, 5 * 201);
    EXPECT_EQ(std::accumulate(step.sent_bytes.begin(), step.sent_bytes.end(), int64_t{0}), 0);
  });
}

TEST(StepRecorder, OneRankNeedsNoGroup) {
  const auto schedule = Schedule();
  schedule->num_ranks = 1;
  schedule->tasks.resize(2);
  schedule->tasks[1].work = {};
  StepRecorder recorder(nullptr);
  const RecordedStep step = Record(recorder, schedule, 0, 7, 1);
  EXPECT_NEAR(step.start, 0.007, 1e-9);
  EXPECT_EQ(step.timeline.tasks[1].end, 0.003);
  EXPECT_EQ(ValueOf(step, {.kind = SizeKind::kRows, .from = 0}), 5);
}

// The address of a schedule that is gone is soon that of another one.
TEST(StepRecorder, TellsSchedulesApartThatCameOneAfterTheOtherInOnePlace) {
  StepRecorder recorder(nullptr);
  for (int i = 0; i < 50; ++i) {
    auto schedule = Schedule();
    schedule->num_ranks = 1;
    schedule->tasks.resize(2);
    schedule->tasks[1].work = {};
    const schedule::Size keys{.kind = SizeKind::kKeys, .from = 0};
    if (i % 2 == 1) schedule->tasks[1].work.flops = {{1, keys}};
    const RecordedStep step = Record(recorder, schedule, 0, 7, 1);
    EXPECT_EQ(step.schedule, schedule);
    EXPECT_EQ(step.sizes.size(), i % 2 == 1 ? 2 : 1) << i;
  }
}

TEST(StepRecorder, HoldsAsManySchedulesAsThereAreProgramsOfSteps) {
  StepRecorder recorder(nullptr);
  std::vector<std::weak_ptr<schedule::Schedule>> seen;
  for (int i = 0; i < 100; ++i) {
    const auto schedule = Schedule();
    schedule->num_ranks = 1;
    schedule->tasks.resize(2);
    schedule->tasks[1].work = {};
    Record(recorder, schedule, 0, 7, 1);
    seen.push_back(schedule);
  }
  const auto held =
      std::count_if(seen.begin(), seen.end(), [](const auto& s) { return !s.expired(); });
  EXPECT_EQ(held, ProgramCache::kMostPrograms);
}

}  // namespace
}  // namespace convene::runtime
