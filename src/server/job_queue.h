// Jobs that wait for the engine, in the order in which they will run: bounded, by priority, and
// fair to clients. A job is overtaken a bounded number of times once it is the oldest, so that none
// waits for ever. Threads put jobs in, the engine's thread takes them out.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/job.h"

namespace convene::server {

enum class Admission {
  kAccepted,
  kFull,    // as many choices wait as may
  kClosed,  // the server takes no more
};

// What the engine's thread is to do next.
struct Work {
  std::vector<Job> jobs;         // to be submitted
  std::vector<JobId> cancelled;  // whose clients went away; also of jobs that it never got
  std::vector<Job> expired;      // whose deadline passed while they waited
  bool is_closed = false;        // nothing waits, and nothing will come
  bool is_aborted = false;       // what still runs must end now
};

class JobQueue {
 public:
  // So many jobs in a row may be taken before the oldest because of their priority; then it is
  // taken, whatever its own.
  static constexpr int kMostOvertakes = 7;

  // At most `capacity` choices of jobs wait; a job that is the only one waits however many it has.
  explicit JobQueue(int capacity) : capacity_(capacity) {}

  Admission Push(Job job);

  // The job's client is gone: it will not be taken, or the engine's thread hears of it.
  void Cancel(JobId id);

  // No more jobs. Those that wait will still be taken.
  void Close();
  // Nor those: the engine's thread is to end all, too.
  void Abort();

  // For the engine's thread: jobs for at most `room` more choices (a job that fits in no `room` at
  // all is taken alone when `is_idle`). With `is_idle` it waits until there is something to do.
  Work Take(int room, bool is_idle);

  // A job that was taken has ended.
  void Finish(const std::string& client);

  int num_waiting() const;  // choices
  bool is_closed() const;

 private:
  std::vector<Job>::iterator Next();

  const int capacity_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Job> waiting_;  // in order of arrival
  std::vector<JobId> cancelled_;
  std::map<std::string, int> num_running_;  // jobs taken and not finished, by client
  int num_waiting_ = 0;
  int num_overtakes_ = 0;  // of the oldest, one after the other
  bool is_closed_ = false;
  bool is_aborted_ = false;
};

}  // namespace convene::server
