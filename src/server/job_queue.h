// Jobs that wait for the engine, in the order in which they will run: bounded, fair to clients, and
// by priority among those of a client. A job is overtaken a bounded number of times once it is its
// client's oldest, so that none waits for ever. Threads put jobs in, the engine's thread takes them
// out choice by choice: between two choices of a job those of other clients, and more urgent ones,
// have their turn.
#pragma once

#include <algorithm>
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
  std::optional<JobChoice> choice;  // to be submitted
  std::vector<JobId> cancelled;     // whose clients went away; also of jobs that it never got
  // Jobs of which no choice was taken, and none will be.
  std::vector<Job> expired;  // their deadline passed while they waited
  std::vector<Job> aborted;  // by Abort
  bool is_closed = false;    // nothing waits, and nothing will come
  bool is_aborted = false;   // what was taken must end now
};

// What the engine says of jobs that wait.
struct EngineRules {
  std::function<bool(const engine::Request&)> has_room = [](const auto&) { return true; };
  std::function<bool(const engine::Request&)> may_overtake = [](const auto&) { return false; };
};

class JobQueue {
 public:
  // So many choices of a client in a row may be taken before those of its oldest job because of
  // their priority; then one of that is taken, whatever its own.
  static constexpr int kMostOvertakes = 7;

  // At most `capacity` choices of jobs wait. Those that wait of jobs of which some were taken count
  // for their own client alone, and as half of the capacity at most, so that one job of many
  // choices does not shut out all others. A job that is the only one waits however many it has.
  explicit JobQueue(int capacity) : capacity_(capacity) {}

  // Where there is no room, the client with the most choices that wait gives up its newest jobs of
  // the lowest priority, but for those of which choices were taken, unless it is the job's own
  // client, who is refused then.
  Pushed Push(Job job);

  // The job's client is gone: it will not be taken, or the engine's thread hears of it.
  void Cancel(JobId id);

  // No more jobs. Those that wait will still be taken.
  void Close();
  // Nor those: the engine's thread is to end all, too.
  void Abort();

  // For the engine's thread: the next choice, if there is room for one and the engine has room for
  // it; otherwise one behind it that the engine lets overtake, if that leaves a place to the next.
  // Of a job those choices come first that do not repeat the prompt of the one before them; those
  // that do are not taken before PromptComputed. With `is_idle` it waits until there is something
  // to do, and takes a choice whatever its size.
  Work Take(int room, bool is_idle, const EngineRules& rules = {});

  // For the engine's thread: the prompt of a choice that was taken is in the cache, where others
  // find it, or never will be.
  void PromptComputed(JobId id, int choice_idx);

  // The engine has computed so many more tokens for the client, of whose jobs choices were taken;
  // negative: it did not have to compute them. Take counts those of prompts, and one of each
  // choice's answer.
  void Charge(const std::string& client, int64_t num_tokens);

  // A job of which choices were taken has ended; those that wait never will be.
  void Finish(JobId id, const std::string& client);

  int num_waiting() const;  // choices

 private:
  // A job with the choices that were not taken.
  struct Waiting {
    explicit Waiting(Job waiting);

    int num_choices() const { return static_cast<int>(order.size()) - num_taken; }
    int next() const { return order[num_taken]; }
    bool is_held() const { return prompt_of[next()] != next() && !is_computed[prompt_of[next()]]; }

    Job job;
    std::vector<int> order;         // in which choices are taken
    std::vector<int> prompt_of;     // by choice: the first one with its prompt, which may be itself
    std::vector<bool> is_computed;  // by choice: its prompt, if it was the first one with it
    int num_taken = 0;
  };
  using Jobs = std::vector<Waiting>;
  struct Client {
    Jobs waiting = {};      // oldest first, not empty
    int num_waiting = 0;    // choices
    int num_begun = 0;      // those of jobs of which others were taken
    int num_overtakes = 0;  // of the oldest, one after the other

    int num_droppable() const { return num_waiting - num_begun; }
    // As what waits when the client itself brings another job.
    int num_counted(int capacity) const {
      return num_droppable() + std::min(num_begun, (capacity + 1) / 2);
    }
  };
  using Clients = std::map<std::string, Client>;

  static Jobs::iterator NextOf(Client& client);
  std::optional<JobChoice> TakeNext(bool takes_any, int room, const EngineRules& rules);
  std::optional<JobChoice> TakeOvertaking(const EngineRules& rules);
  JobChoice TakeInTurn(Clients::iterator client, Jobs::iterator job);
  // What is left of the job, which is the client's; a client with no other is gone then.
  Job TakeOut(Clients::iterator client, Jobs::iterator job);
  std::vector<Job> TakeUntaken(const std::function<bool(const Job&)>& is_wanted);
  template <typename Use>
  void Find(JobId id, const Use& use);

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
