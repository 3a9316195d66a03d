#include "server/job_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <list>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace convene::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Job MakeQueuedJob(JobId id, int num_choices = 1, const std::string& client = "",
                  int64_t priority = 0) {
  Job job{.id = id, .client = client, .priority = priority};
  job.requests.resize(static_cast<size_t>(num_choices));
  for (int i = 1; i < num_choices; i += 2) job.requests[i].prompt = {1};  // no two alike in a row
  return job;
}

// The jobs of the choices that are taken while there is room, as the engine's thread does it.
std::vector<JobId> TakeAll(JobQueue& queue, int room) {
  std::vector<JobId> ids;
  while (const auto choice = queue.Take(room--, false).choice) ids.push_back(choice->job);
  return ids;
}

Admission Push(JobQueue& queue, Job job) { return queue.Push(std::move(job)).admission; }

TEST(JobQueue, IsBoundedInChoicesAndTakesAnyJobAlone) {
  JobQueue queue(4);
  EXPECT_EQ(Push(queue, MakeQueuedJob(1, 9)), Admission::kAccepted);  // the only one
  EXPECT_EQ(Push(queue, MakeQueuedJob(2)), Admission::kFull);
  EXPECT_EQ(TakeAll(queue, 3).size(), 3u);
  EXPECT_EQ(queue.num_waiting(), 6);  // what is left of it counts as half of the queue
  EXPECT_EQ(Push(queue, MakeQueuedJob(2, 9)), Admission::kFull);
  EXPECT_EQ(Push(queue, MakeQueuedJob(2, 2)), Admission::kAccepted);
  EXPECT_EQ(Push(queue, MakeQueuedJob(3)), Admission::kFull);
  EXPECT_EQ(TakeAll(queue, 9).size(), 8u);
  EXPECT_EQ(Push(queue, MakeQueuedJob(3, 3)), Admission::kAccepted);
  EXPECT_EQ(Push(queue, MakeQueuedJob(4, 2)), Admission::kFull);
  EXPECT_EQ(Push(queue, MakeQueuedJob(5)), Admission::kAccepted);
  EXPECT_EQ(queue.num_waiting(), 4);
}

TEST(JobQueue, ChoicesAreTakenOneByOneAndWhatDoesNotFitIsNotOvertaken) {
  JobQueue queue(100);
  static_cast<void>(queue.Push(MakeQueuedJob(1)));
  static_cast<void>(queue.Push(MakeQueuedJob(2, 5)));
  static_cast<void>(queue.Push(MakeQueuedJob(3)));
  EXPECT_THAT(TakeAll(queue, 3), ElementsAre(1, 2, 2));
  EXPECT_THAT(TakeAll(queue, 0), IsEmpty());
  const auto is_full = [](const engine::Request&) { return false; };
  EXPECT_FALSE(queue.Take(6, false, {.has_room = is_full}).choice);
  const auto choice = queue.Take(6, false).choice;
  EXPECT_EQ(choice->job, 2u);
  EXPECT_EQ(choice->idx, 2);
  EXPECT_EQ(choice->num_choices, 5);
  EXPECT_THAT(TakeAll(queue, 6), ElementsAre(2, 2, 3));
}

TEST(JobQueue, AnswersToAPromptWaitUntilItIsComputedAndOthersDoNot) {
  JobQueue queue(100);
  Job job = MakeQueuedJob(1, 6);
  for (int i = 0; i < 6; ++i) job.requests[i].prompt = {i / 3};  // two prompts, three times each
  static_cast<void>(queue.Push(std::move(job)));
  static_cast<void>(queue.Push(MakeQueuedJob(2)));
  EXPECT_EQ(queue.Take(9, false).choice->idx, 0);
  EXPECT_EQ(queue.Take(9, false).choice->idx, 3);  // the first of the second prompt
  EXPECT_THAT(TakeAll(queue, 9), ElementsAre(2));
  queue.PromptComputed(1, 3);
  EXPECT_THAT(TakeAll(queue, 9), IsEmpty());  // those of the first prompt are next
  queue.PromptComputed(1, 0);
  for (const int idx : {1, 2, 4, 5}) EXPECT_EQ(queue.Take(9, false).choice->idx, idx);
  EXPECT_EQ(queue.num_waiting(), 0);
}

TEST(JobQueue, AJobOfManyChoicesTakesTurnsAndHoldsUpNobodyUrgent) {
  JobQueue queue(100);
  static_cast<void>(queue.Push(MakeQueuedJob(1, 50, "a")));
  EXPECT_THAT(TakeAll(queue, 2), ElementsAre(1, 1));
  static_cast<void>(queue.Push(MakeQueuedJob(2, 3, "b")));
  EXPECT_THAT(TakeAll(queue, 4), ElementsAre(2, 1, 2, 1));
  static_cast<void>(queue.Push(MakeQueuedJob(3, 1, "a", -1)));
  EXPECT_THAT(TakeAll(queue, 3), ElementsAre(2, 3, 1));
}

TEST(JobQueue, WhatWasBegunIsNotGivenUpAndDoesNotCountForOthers) {
  JobQueue queue(4);
  static_cast<void>(queue.Push(MakeQueuedJob(1, 9, "busy")));
  EXPECT_THAT(TakeAll(queue, 1), ElementsAre(1));
  EXPECT_EQ(Push(queue, MakeQueuedJob(2, 3, "busy")), Admission::kFull);
  const Pushed other = queue.Push(MakeQueuedJob(3, 4, "other"));
  EXPECT_EQ(other.admission, Admission::kAccepted);
  EXPECT_THAT(other.dropped, IsEmpty());
  EXPECT_EQ(Push(queue, MakeQueuedJob(4, 1, "other")), Admission::kFull);
  EXPECT_EQ(queue.num_waiting(), 12);
  // It ends before it was taken whole.
  queue.Finish(1, "busy");
  EXPECT_EQ(queue.num_waiting(), 4);
  EXPECT_THAT(TakeAll(queue, 9), ElementsAre(3, 3, 3, 3));
}

TEST(JobQueue, WhatTheEngineReadsBesideOthersOvertakesAndLeavesAPlace) {
  JobQueue queue(100);
  static_cast<void>(queue.Push(MakeQueuedJob(1)));
  static_cast<void>(queue.Push(MakeQueuedJob(2)));
  Job third = MakeQueuedJob(3);
  third.requests[0].max_tokens = 3;
  static_cast<void>(queue.Push(std::move(third)));
  const EngineRules rules = {
      .has_room = [](const engine::Request&) { return false; },
      .may_overtake = [](const engine::Request& request) { return request.max_tokens == 3; }};
  EXPECT_FALSE(queue.Take(1, false, rules).choice);
  EXPECT_EQ(queue.Take(2, false, rules).choice->job, 3u);
  EXPECT_FALSE(queue.Take(2, false, rules).choice);
  EXPECT_THAT(TakeAll(queue, 2), ElementsAre(1, 2));
}

TEST(JobQueue, TakesTurnsOfClientsAndHeedsPrioritiesOfEach) {
  JobQueue queue(100);
  for (JobId id = 1; id <= 4; ++id) static_cast<void>(queue.Push(MakeQueuedJob(id, 1, "busy")));
  static_cast<void>(queue.Push(MakeQueuedJob(5, 1, "other", 7)));
  static_cast<void>(queue.Push(MakeQueuedJob(6, 1, "busy", -1)));
  EXPECT_THAT(TakeAll(queue, 3), ElementsAre(6, 5, 1));
  queue.Finish(5, "other");
  static_cast<void>(queue.Push(MakeQueuedJob(7, 1, "other")));
  EXPECT_THAT(TakeAll(queue, 2), ElementsAre(7, 2));
}

TEST(JobQueue, AClientWhoFillsTheQueueGivesUpItsNewestOfTheLowestPriority) {
  JobQueue queue(4);
  for (JobId id = 1; id <= 3; ++id) {
    static_cast<void>(queue.Push(MakeQueuedJob(id, 1, "busy", id == 1 ? 5 : 0)));
  }
  EXPECT_EQ(Push(queue, MakeQueuedJob(4, 1, "busy")), Admission::kAccepted);
  EXPECT_EQ(Push(queue, MakeQueuedJob(5, 1, "busy", -9)), Admission::kFull);  // its own are as good
  const Pushed first = queue.Push(MakeQueuedJob(6, 1, "other"));
  EXPECT_EQ(first.admission, Admission::kAccepted);
  EXPECT_THAT(first.dropped, ElementsAre(1));
  EXPECT_THAT(queue.Push(MakeQueuedJob(7, 1, "other")).dropped, ElementsAre(4));
  // Now both have their share.
  EXPECT_EQ(Push(queue, MakeQueuedJob(8, 1, "other")), Admission::kFull);
  EXPECT_EQ(Push(queue, MakeQueuedJob(9, 1, "busy")), Admission::kFull);
  EXPECT_EQ(queue.num_waiting(), 4);
  EXPECT_THAT(TakeAll(queue, 9), ElementsAre(2, 6, 3, 7));
}

// Clients who send again at once, on an engine whose steps give each choice a token.
class Load {
 public:
  explicit Load(int max_choices) : max_choices_(max_choices) {}

  void Add(const std::string& client, int num_jobs, int num_choices, int num_tokens,
           int64_t priority = 0) {
    for (int i = 0; i < num_jobs; ++i) Send({client, num_choices, num_tokens, priority});
  }

  // The tokens of each client in so many steps.
  std::map<std::string, int64_t> Run(int num_steps) {
    std::map<std::string, int64_t> tokens;
    for (int i = 0; i < num_steps; ++i) {
      while (const auto choice = queue_.Take(max_choices_ - num_running_, false).choice) {
        running_.push_back({choice->job, 0});
        ++num_running_;
      }
      for (auto choice = running_.begin(); choice != running_.end();) {
        auto& [job, done] = *choice;
        Sent& sent = sent_.at(job);
        ++tokens[sent.client];
        if (done > 0) queue_.Charge(sent.client, 1);
        if (++done < sent.num_tokens) {
          ++choice;
          continue;
        }
        --num_running_;
        if (++sent.num_ended == sent.num_choices) {
          queue_.Finish(job, sent.client);
          Send({sent.client, sent.num_choices, sent.num_tokens, sent.priority});
        }
        choice = running_.erase(choice);
      }
    }
    return tokens;
  }

 private:
  struct Sent {
    std::string client;
    int num_choices;
    int num_tokens;
    int64_t priority;
    int num_ended = 0;
  };

  void Send(const Sent& job) {
    sent_.emplace(++last_id_, job);
    ASSERT_EQ(Push(queue_, MakeQueuedJob(last_id_, job.num_choices, job.client, job.priority)),
              Admission::kAccepted);
  }

  int max_choices_;
  JobQueue queue_{1000};
  std::map<JobId, Sent> sent_;
  JobId last_id_ = 0;
  std::list<std::pair<JobId, int>> running_;  // choices, with their tokens
  int num_running_ = 0;
};

TEST(JobQueue, SharesTokensWhateverTheSizesNumbersAndPrioritiesOfJobs) {
  const auto expect_even = [](Load& load) {
    std::map<std::string, int64_t> tokens = load.Run(4000);
    const double share = static_cast<double>(tokens["a"]) / static_cast<double>(tokens["b"]);
    EXPECT_GT(share, 0.95);
    EXPECT_LT(share, 1.05);
  };
  Load many_choices(4);
  many_choices.Add("a", 4, 4, 20);
  many_choices.Add("b", 4, 1, 20);
  expect_even(many_choices);
  Load many_jobs(4);
  many_jobs.Add("a", 40, 1, 20);
  many_jobs.Add("b", 4, 1, 20);
  expect_even(many_jobs);
  Load long_answers(4);
  long_answers.Add("a", 8, 1, 200);
  long_answers.Add("b", 8, 1, 10);
  expect_even(long_answers);
  Load urgent(4);
  urgent.Add("a", 8, 1, 20, -1);
  urgent.Add("b", 8, 1, 20);
  expect_even(urgent);
}

TEST(JobQueue, AClientWhoComesLateIsOwedNothing) {
  Load load(4);
  load.Add("a", 8, 1, 20);
  EXPECT_EQ(load.Run(1000)["a"], 4000);
  load.Add("b", 8, 1, 20);
  std::map<std::string, int64_t> tokens = load.Run(1000);
  EXPECT_NEAR(static_cast<double>(tokens["a"]), 2000, 100);
}

TEST(JobQueue, AJobOfLowPriorityIsNotOvertakenForEver) {
  JobQueue queue(100);
  static_cast<void>(queue.Push(MakeQueuedJob(1, 1, "", 1000)));
  static_cast<void>(queue.Push(MakeQueuedJob(2, 1, "", 999)));
  std::vector<JobId> taken;
  // Urgent ones keep coming, faster than jobs are taken.
  for (JobId id = 10; id < 40; ++id) {
    static_cast<void>(queue.Push(MakeQueuedJob(id, 1, "", -5)));
    for (const JobId job : TakeAll(queue, 1)) taken.push_back(job);
  }
  ASSERT_EQ(taken.size(), 30u);
  EXPECT_EQ(taken[JobQueue::kMostOvertakes], 1u);
  EXPECT_EQ(taken[2 * JobQueue::kMostOvertakes + 1], 2u);
}

TEST(JobQueue, CancelledJobsAreNotTaken) {
  JobQueue queue(100);
  static_cast<void>(queue.Push(MakeQueuedJob(1)));
  static_cast<void>(queue.Push(MakeQueuedJob(2)));
  queue.Cancel(1);
  const Work work = queue.Take(5, true);
  EXPECT_EQ(work.choice->job, 2u);
  EXPECT_THAT(work.cancelled, ElementsAre(1));
  EXPECT_EQ(queue.num_waiting(), 0);
}

// The engine's thread says once more that what was taken of it has ended.
TEST(JobQueue, AJobThatIsCancelledAfterItBeganLeavesOnce) {
  JobQueue queue(100);
  static_cast<void>(queue.Push(MakeQueuedJob(1, 3, "a")));
  EXPECT_THAT(TakeAll(queue, 1), ElementsAre(1));
  queue.Cancel(1);
  EXPECT_EQ(queue.num_waiting(), 0);
  queue.Charge("a", 5);  // it is still there
  EXPECT_THAT(queue.Take(9, false).cancelled, ElementsAre(1));
  queue.Finish(1, "a");
  static_cast<void>(queue.Push(MakeQueuedJob(2, 1, "a")));
  EXPECT_THAT(TakeAll(queue, 9), ElementsAre(2));
}

TEST(JobQueue, JobsWhoseTimeIsOverAreGivenBack) {
  JobQueue queue(100);
  Job late = MakeQueuedJob(1);
  late.deadline = Clock::now() - std::chrono::seconds(1);
  static_cast<void>(queue.Push(std::move(late)));
  static_cast<void>(queue.Push(MakeQueuedJob(2)));
  const Work work = queue.Take(5, true);
  ASSERT_EQ(work.expired.size(), 1u);
  EXPECT_EQ(work.expired[0].id, 1u);
  EXPECT_EQ(work.choice->job, 2u);
}

TEST(JobQueue, ClosesAfterWhatWaitsAndAbortsWithIt) {
  JobQueue queue(100);
  static_cast<void>(queue.Push(MakeQueuedJob(1, 2)));
  queue.Close();
  EXPECT_EQ(Push(queue, MakeQueuedJob(2)), Admission::kClosed);
  EXPECT_FALSE(queue.Take(0, false).is_closed);
  EXPECT_FALSE(queue.Take(2, true).is_closed);
  const Work last = queue.Take(2, true);
  EXPECT_EQ(last.choice->job, 1u);
  EXPECT_TRUE(last.is_closed);

  JobQueue aborted(100);
  static_cast<void>(aborted.Push(MakeQueuedJob(1, 7)));
  EXPECT_THAT(TakeAll(aborted, 1), ElementsAre(1));
  static_cast<void>(aborted.Push(MakeQueuedJob(2, 7)));
  aborted.Abort();
  const Work work = aborted.Take(3, false);
  EXPECT_TRUE(work.is_aborted);
  EXPECT_FALSE(work.choice);
  ASSERT_EQ(work.aborted.size(), 1u);  // what was begun the engine's thread ends
  EXPECT_EQ(work.aborted[0].id, 2u);
  EXPECT_FALSE(work.is_closed);
  aborted.Finish(1, "");
  EXPECT_TRUE(aborted.Take(3, true).is_closed);
}

TEST(JobQueue, AnIdleEngineWaitsForWork) {
  JobQueue queue(100);
  std::vector<JobId> taken;
  std::jthread engine([&] {
    for (;;) {
      const Work work = queue.Take(10, true);
      if (work.choice) taken.push_back(work.choice->job);
      if (work.is_closed) return;
    }
  });
  for (JobId id = 1; id <= 50; ++id) static_cast<void>(queue.Push(MakeQueuedJob(id)));
  queue.Close();
  engine.join();
  ASSERT_EQ(taken.size(), 50u);
  for (JobId id = 1; id <= 50; ++id) EXPECT_EQ(taken[id - 1], id);
}

}  // namespace
}  // namespace convene::server
