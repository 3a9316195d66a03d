// Brings together what each rank knows of a step (when its tasks ran, the sizes that routing
// decided) on rank 0, on one clock. Nothing of it exists unless recording was asked for.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "comm/group.h"
#include "runtime/program_cache.h"
#include "runtime/recorded_step.h"

namespace convene::runtime {

class StepRecorder {
 public:
  // `group` may be null where there is one rank.
  explicit StepRecorder(comm::Group* group) : group_(group) {}

  void Begin() {
    values_.clear();
    sent_.clear();
  }
  void Set(const schedule::Size& size, double value) { values_.push_back({size, value}); }
  // Of the step's schedule. Not on the same thread as Set, but one thread at a time.
  void SetSent(const schedule::Task& task, uint64_t bytes) {
    sent_.push_back({&task, bytes});
    sent_since_bytes_ += static_cast<int64_t>(bytes);
  }

  // Before a step that will be gathered: what was counted until now is of steps that were not.
  void PassOver(const std::vector<std::vector<int64_t>>& expert_counts) {
    static_cast<void>(NewCounts(expert_counts));
  }

  // What the other ranks do not tell.
  struct Own {
    std::shared_ptr<const schedule::Schedule> schedule;
    const schedule::Timeline* timeline = nullptr;
    std::chrono::steady_clock::time_point start;
    // Since the beginning, by layer; rank's own rows.
    const std::vector<std::vector<int64_t>>* expert_counts = nullptr;
  };
  // *Collective*, after a step: on rank 0 the whole of it, on others nothing that means anything.
  RecordedStep Gather(const Own& own);

 private:
  struct SizeHash {
    size_t operator()(const schedule::Size& size) const;
  };
  // What a rank tells of a schedule's steps, in order.
  struct Form {
    std::vector<schedule::TaskId> tasks;
    std::vector<schedule::Size> sizes;
  };
  // Forms of a schedule, which is held with them: while it lives, no other one has its address.
  struct Known {
    std::shared_ptr<const schedule::Schedule> schedule;
    std::vector<Form> forms;  // by rank
  };
  // As many as there are programs of steps; others are made anew when they come again.
  static constexpr size_t kMostKnown = ProgramCache::kMostPrograms;

  int rank() const { return group_ != nullptr ? group_->rank() : 0; }
  int num_ranks() const { return group_ != nullptr ? group_->size() : 1; }
  const std::vector<Form>& FormsOf(const std::shared_ptr<const schedule::Schedule>& schedule);
  // That a rank tells of a step: of each task three, of each size one.
  static size_t NumNumbers(const Form& form) { return 3 * form.tasks.size() + form.sizes.size(); }
  std::vector<double> Message(const Form& form, const Own& own) const;
  std::vector<int64_t> NewCounts(const std::vector<std::vector<int64_t>>& expert_counts);
  void CompareClocks();

  comm::Group* group_;
  std::vector<std::pair<schedule::Size, double>> values_;  // of the step in work
  std::vector<std::pair<const schedule::Task*, uint64_t>> sent_;
  int64_t sent_since_bytes_ = 0;  // the last step that was gathered
  std::deque<Known> known_;       // the newest last
  std::vector<int64_t> counted_;  // expert_counts before, flat
  // By rank: what its clock shows when rank 0's shows 0. Nanoseconds; empty: not compared yet.
  std::vector<int64_t> offsets_;
};

}  // namespace convene::runtime
