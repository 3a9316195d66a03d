// What has failed of the step in work: on this rank the error of its first task, and which ranks
// have failed, as far as they have told each other. What tasks do then is step_runner.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "base/result.h"
#include "schedule/schedule.h"

namespace convene::runtime {

// Tasks fail, and ask, on several threads; all else is the calling thread's.
class StepFault {
 public:
  StepFault(int rank, int num_ranks);

  void BeginStep();
  // Of a change of the experts' division: what fails of it is the next step's fault, too.
  void BeginChange();
  // No step follows it.
  void EndChange() { follows_change_ = false; }

  // The first one counts; its message names the task.
  void Fail(const schedule::Task& task, const Error& error);
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  // Of this rank.
  Status status() const;

  // Statuses by rank to be exchanged, 1: it has failed, with this rank's as it is now. There are
  // several ranks.
  std::span<uint32_t> Tell();
  // That the last such exchange told of.
  bool AnyHasFailed() const;

 private:
  int rank_;
  bool follows_change_ = false;
  std::atomic<bool> has_failed_{false};
  mutable std::mutex mutex_;
  Error error_;                     // with mutex_, if has_failed_
  std::vector<uint32_t> statuses_;  // none: there is one rank
};

}  // namespace convene::runtime
