#include "server/job_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace convene::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Job MakeJob(JobId id, int num_choices = 1, const std::string& client = "", int64_t priority = 0) {
  Job job{.id = id, .client = client, .priority = priority};
  job.requests.resize(static_cast<size_t>(num_choices));
  return job;
}

std::vector<JobId> Ids(const std::vector<Job>& jobs) {
  std::vector<JobId> ids;
  for (const Job& job : jobs) ids.push_back(job.id);
  return ids;
}

TEST(JobQueue, IsBoundedInChoicesAndTakesAnyJobAlone) {
  JobQueue queue(4);
  EXPECT_EQ(queue.Push(MakeJob(1, 9)), Admission::kAccepted);  // the only one
  EXPECT_EQ(queue.Push(MakeJob(2)), Admission::kFull);
  EXPECT_THAT(Ids(queue.Take(3, true).jobs), ElementsAre(1));
  EXPECT_EQ(queue.Push(MakeJob(3, 3)), Admission::kAccepted);
  EXPECT_EQ(queue.Push(MakeJob(4, 2)), Admission::kFull);
  EXPECT_EQ(queue.Push(MakeJob(5)), Admission::kAccepted);
  EXPECT_EQ(queue.num_waiting(), 4);
}

TEST(JobQueue, WhatDoesNotFitIsNotOvertaken) {
  JobQueue queue(100);
  static_cast<void>(queue.Push(MakeJob(1)));
  static_cast<void>(queue.Push(MakeJob(2, 5)));
  static_cast<void>(queue.Push(MakeJob(3)));
  EXPECT_THAT(Ids(queue.Take(3, false).jobs), ElementsAre(1));
  EXPECT_THAT(Ids(queue.Take(3, false).jobs), IsEmpty());
  EXPECT_THAT(Ids(queue.Take(6, false).jobs), ElementsAre(2, 3));
}

TEST(JobQueue, GivesClientsTheSameShareAndHeedsPriorities) {
  JobQueue queue(100);
  for (JobId id = 1; id <= 4; ++id) static_cast<void>(queue.Push(MakeJob(id, 1, "busy")));
  static_cast<void>(queue.Push(MakeJob(5, 1, "other")));
  static_cast<void>(queue.Push(MakeJob(6, 1, "busy", -1)));
  EXPECT_THAT(Ids(queue.Take(3, false).jobs), ElementsAre(6, 5, 1));
  queue.Finish("other");
  static_cast<void>(queue.Push(MakeJob(7, 1, "other")));
  EXPECT_THAT(Ids(queue.Take(2, false).jobs), ElementsAre(7, 2));
}

TEST(JobQueue, AJobOfLowPriorityIsNotOvertakenForEver) {
  JobQueue queue(100);
  static_cast<void>(queue.Push(MakeJob(1, 1, "", 1000)));
  static_cast<void>(queue.Push(MakeJob(2, 1, "", 999)));
  std::vector<JobId> taken;
  // Urgent ones keep coming, faster than jobs are taken.
  for (JobId id = 10; id < 40; ++id) {
    static_cast<void>(queue.Push(MakeJob(id, 1, "", -5)));
    for (const JobId job : Ids(queue.Take(1, false).jobs)) taken.push_back(job);
  }
  ASSERT_EQ(taken.size(), 30u);
  EXPECT_EQ(taken[JobQueue::kMostOvertakes], 1u);
  EXPECT_EQ(taken[2 * JobQueue::kMostOvertakes + 1], 2u);
}

TEST(JobQueue, CancelledJobsAreNotTaken) {
  JobQueue queue(100);
  static_cast<void>(queue.Push(MakeJob(1)));
  static_cast<void>(queue.Push(MakeJob(2)));
  queue.Cancel(1);
  const Work work = queue.Take(5, true);
  EXPECT_THAT(Ids(work.jobs), ElementsAre(2));
  EXPECT_THAT(work.cancelled, ElementsAre(1));
  EXPECT_EQ(queue.num_waiting(), 0);
}

TEST(JobQueue, JobsWhoseTimeIsOverAreGivenBack) {
  JobQueue queue(100);
  Job late = MakeJob(1);
  late.deadline = Clock::now() - std::chrono::seconds(1);
  static_cast<void>(queue.Push(std::move(late)));
  static_cast<void>(queue.Push(MakeJob(2)));
  const Work work = queue.Take(5, true);
  EXPECT_THAT(Ids(work.expired), ElementsAre(1));
  EXPECT_THAT(Ids(work.jobs), ElementsAre(2));
}

TEST(JobQueue, ClosesAfterWhatWaitsAndAbortsWithIt) {
  JobQueue queue(100);
  static_cast<void>(queue.Push(MakeJob(1, 2)));
  queue.Close();
  EXPECT_EQ(queue.Push(MakeJob(2)), Admission::kClosed);
  EXPECT_FALSE(queue.Take(0, false).is_closed);
  const Work last = queue.Take(2, true);
  EXPECT_THAT(Ids(last.jobs), ElementsAre(1));
  EXPECT_TRUE(last.is_closed);

  JobQueue aborted(100);
  static_cast<void>(aborted.Push(MakeJob(1, 7)));
  aborted.Abort();
  const Work work = aborted.Take(0, false);
  EXPECT_TRUE(work.is_aborted);
  EXPECT_THAT(Ids(work.jobs), ElementsAre(1));
}

TEST(JobQueue, AnIdleEngineWaitsForWork) {
  JobQueue queue(100);
  std::vector<JobId> taken;
  std::jthread engine([&] {
    for (;;) {
      const Work work = queue.Take(10, true);
      for (const JobId id : Ids(work.jobs)) taken.push_back(id);
      if (work.is_closed) return;
    }
  });
  for (JobId id = 1; id <= 50; ++id) static_cast<void>(queue.Push(MakeJob(id)));
  queue.Close();
  engine.join();
  ASSERT_EQ(taken.size(), 50u);
  for (JobId id = 1; id <= 50; ++id) EXPECT_EQ(taken[id - 1], id);
}

}  // namespace
}  // namespace convene::server
