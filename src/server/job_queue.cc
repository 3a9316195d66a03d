#include "server/job_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace convene::server {
namespace {

int NumChoices(const Job& job) { return static_cast<int>(job.requests.size()); }

}  // namespace

Admission JobQueue::Push(Job job) {
  const std::scoped_lock lock(mutex_);
  if (is_closed_) return Admission::kClosed;
  if (num_waiting_ > 0 && num_waiting_ + NumChoices(job) > capacity_) return Admission::kFull;
  num_waiting_ += NumChoices(job);
  waiting_.push_back(std::move(job));
  changed_.notify_one();
  return Admission::kAccepted;
}

void JobQueue::Cancel(JobId id) {
  const std::scoped_lock lock(mutex_);
  const auto found = std::ranges::find(waiting_, id, &Job::id);
  if (found != waiting_.end()) {
    num_waiting_ -= NumChoices(*found);
    waiting_.erase(found);
  }
  cancelled_.push_back(id);
  changed_.notify_one();
}

void JobQueue::Close() {
  const std::scoped_lock lock(mutex_);
  is_closed_ = true;
  changed_.notify_one();
}

void JobQueue::Abort() {
  const std::scoped_lock lock(mutex_);
  is_closed_ = true;
  is_aborted_ = true;
  changed_.notify_one();
}

Work JobQueue::Take(int room, bool is_idle) {
  std::unique_lock lock(mutex_);
  if (is_idle) {
    changed_.wait(lock, [&] { return !waiting_.empty() || !cancelled_.empty() || is_closed_; });
  }
  Work work;
  work.cancelled = std::exchange(cancelled_, {});
  work.is_aborted = is_aborted_;
  if (is_aborted_) room = 1 << 30;  // all of them, to be told
  const Clock::time_point now = Clock::now();
  for (auto job = waiting_.begin(); job != waiting_.end();) {
    if (!job->deadline || *job->deadline > now) {
      ++job;
      continue;
    }
    num_waiting_ -= NumChoices(*job);
    work.expired.push_back(std::move(*job));
    job = waiting_.erase(job);
  }
  while (!waiting_.empty()) {
    const auto next = Next();
    const bool fits = NumChoices(*next) <= room || (is_idle && work.jobs.empty());
    if (!fits) break;  // nobody behind it overtakes it for ever
    room -= NumChoices(*next);
    num_waiting_ -= NumChoices(*next);
    ++num_running_[next->client];
    if (next == waiting_.begin()) {
      num_overtakes_ = 0;
    } else if (next->priority < waiting_.front().priority) {
      ++num_overtakes_;
    }
    work.jobs.push_back(std::move(*next));
    waiting_.erase(next);
  }
  work.is_closed = is_closed_ && waiting_.empty();
  return work;
}

// By priority, then of the client with the fewest jobs that run, then the oldest; or the oldest of
// all, where it was overtaken often enough.
std::vector<Job>::iterator JobQueue::Next() {
  if (num_overtakes_ >= kMostOvertakes) return waiting_.begin();
  const auto rank = [&](const Job& job) {
    const auto running = num_running_.find(job.client);
    return std::tuple(job.priority, running == num_running_.end() ? 0 : running->second);
  };
  return std::ranges::min_element(waiting_, {}, rank);
}

void JobQueue::Finish(const std::string& client) {
  const std::scoped_lock lock(mutex_);
  const auto running = num_running_.find(client);
  if (running != num_running_.end() && --running->second == 0) num_running_.erase(running);
}

int JobQueue::num_waiting() const {
  const std::scoped_lock lock(mutex_);
  return num_waiting_;
}

bool JobQueue::is_closed() const {
  const std::scoped_lock lock(mutex_);
  return is_closed_;
}

}  // namespace convene::server
