// Asks for another plan when requests have become other ones than those that the plan in force was
// chosen for: on a thread of its own, between two epochs. The engine's thread begins to use the new
// plan between two steps. Which plan is best is not decided here.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/result.h"
#include "server/load_shape.h"

namespace convene::server {

struct NewPlan {
  std::function<void()> use = {};  // on the engine's thread, between two steps
  std::string words = {};          // for people
  // As ServedModel has them.
  std::string fingerprint = {};
  std::string plan_json = {};
};

// The plan for such requests, if it is another one than that in force; all that it may give compute
// the same bits. Error: the plan in force stays, and why. On a thread of its own, one call at a
// time; the next call comes after the plan of the one before is in use.
using FindPlan = std::function<Result<NewPlan>(const LoadShape& shape)>;
// On the same thread: told that the plan in force stays, although requests are such ones now.
using TellStays = std::function<void(const LoadShape& shape, const Error& why)>;

class Replanner {
 public:
  using Clock = std::chrono::steady_clock;

  // `planned_for`: what the plan in force was chosen for.
  Replanner(FindPlan find, TellStays stays, Clock::duration epoch, const LoadShape& planned_for)
      : find_(std::move(find)),
        stays_(std::move(stays)),
        epoch_(epoch),
        planned_for_(planned_for) {}
  ~Replanner() { Stop(); }
  Replanner(const Replanner&) = delete;
  Replanner& operator=(const Replanner&) = delete;

  // Errors: no thread can be started.
  Status Start();
  void Stop();

  // All of these on the engine's thread. Where an epoch has ended, asks whether its requests were
  // others.
  void AddPrompt(int64_t num_tokens) { counts_.AddPrompt(num_tokens); }
  void AddStep(int num_running, int64_t num_generated, int64_t num_ended);
  // A plan that was found since and is to be used before the next step.
  std::optional<NewPlan> TakeNew();

 private:
  void Run();

  const FindPlan find_;
  const TellStays stays_;
  const Clock::duration epoch_;
  // The engine thread's alone.
  EpochCounts counts_;
  Clock::time_point epoch_start_ = Clock::now();
  LoadShape planned_for_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopped_ = false;
  bool is_busy_ = false;            // from a question to TakeNew of its answer
  std::optional<LoadShape> asked_;  // that the thread has not begun with
  std::optional<NewPlan> found_;

  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace convene::server
