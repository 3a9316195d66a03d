// Jobs that wait for the engine, in the order in which they will run: bounded, fair to clients, and
// by priority among those of a client. A job is overtaken a bounded number of times once it is its
// client's oldest, so that none waits for ever. Threads put jobs in, the engine's thread takes them
// out.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/fair_share.h"
#include "server/job.h"

namespace convene::server {

enum class Admission {
  kAccepted,
  kFull,    // as many choices wait as may, and this client has the most of them
  kClosed,  // the server takes no more
};

struct Pushed {
  Admission admission;
  std::vector<JobId> dropped = {};  // of a client with more that waits: no longer in the queue
};

// What the engine's thread is to do next.
struct Work {
  std::optional<Job> job;        // to be submitted
  std::vector<JobId> cancelled;  // whose clients went away; also of jobs that it never got
  std::vector<Job> expired;      // whose deadline passed while they waited
  bool is_closed = false;        // nothing waits, and nothing will come
  bool is_aborted = false;       // what still runs must end now
};

// What the engine says of jobs that wait.
struct EngineRules {
  std::function<bool(const Job& job)> has_room = [](const Job&) { return true; };
  std::function<bool(const Job& job)> may_overtake = [](const Job&) { return false; };
};

class JobQueue {
 public:
  // So many jobs of a client in a row may be taken before its oldest because of their priority;
  // then that is taken, whatever its own.
  static constexpr int kMostOvertakes = 7;

  // At most `capacity` choices of jobs wait; a job that is the only one waits however many it has.
  explicit JobQueue(int capacity) : capacity_(capacity) {}

  // Where there is no room, the client with the most choices that wait gives up its newest jobs of
  // the lowest priority, unless it is the job's own client, who is refused then.
  Pushed Push(Job job);

  // The job's client is gone: it will not be taken, or the engine's thread hears of it.
  void Cancel(JobId id);

  // No more jobs. Those that wait will still be taken.
  void Close();
  // Nor those: the engine's thread is to end all, too.
  void Abort();

  // For the engine's thread: the next job, if it has at most `room` choices and the engine has
  // room for it; otherwise one behind it that the engine lets overtake, and leaves a place to the
  // next. With `is_idle` it waits until there is something to do, and takes a job whatever its
  // size. After an abort every job is taken.
  Work Take(int room, bool is_idle, const EngineRules& rules = {});

  // The engine has computed so many more tokens for the client, who has a job that was taken;
  // negative: it did not have to compute them. Take counts those of prompts, and one of each
  // choice's answer.
  void Charge(const std::string& client, int64_t num_tokens);

  // A job that was taken has ended.
  void Finish(const std::string& client);

  int num_waiting() const;  // choices
  bool is_closed() const;

 private:
  struct Client {
    std::vector<Job> waiting = {};  // oldest first, not empty
    int num_waiting = 0;            // choices
    int num_overtakes = 0;          // of the oldest, one after the other
  };
  using Clients = std::map<std::string, Client>;

  Clients::iterator NextClient();
  static std::vector<Job>::iterator NextOf(Client& client);
  std::optional<Job> TakeNext(int room, bool takes_any, const EngineRules& rules);
  std::optional<Job> TakeOvertaking(int room, const EngineRules& rules);
  Job TakeInTurn(Clients::iterator client, std::vector<Job>::iterator job);
  // The job is the client's; a client with no other is gone then.
  Job TakeOut(Clients::iterator client, std::vector<Job>::iterator job);
  std::vector<Job> TakeExpired();

  const int capacity_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Clients clients_;
  FairShare share_;  // in tokens; of clients that have jobs here or in the engine
  std::vector<JobId> cancelled_;
  int num_waiting_ = 0;
  bool is_closed_ = false;
  bool is_aborted_ = false;
};

}  // namespace convene::server
