#include "schedule/hazards.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "schedule/task_table.h"

namespace convene::schedule {
namespace {

// How many tasks of each of its rank's lanes are done when a task begins, and it itself.
using Clock = std::array<int32_t, kNumLaneKinds>;

size_t LaneOf(const Task& task) { return static_cast<size_t>(task.lane.kind); }

// The last tasks that touched one thing.
struct Touched {
  TaskId write = -1;
  std::array<TaskId, kNumLaneKinds> reads;  // since then, the last of each lane; -1: none
  Touched() { reads.fill(-1); }
};

class Checker {
 public:
  explicit Checker(const Schedule& schedule) : schedule_(schedule) {
    int num_layers = 1;
    for (const Task& task : schedule.tasks) {
      num_frames_ = std::max(num_frames_, task.micro_batch + 1);
      num_layers = std::max(num_layers, task.layer + 1);
      num_chunks_ = std::max(num_chunks_, task.chunk + 1);
      has_copies_ = has_copies_ || TraitsOf(task.kind).is_copy;
    }
    num_parts_ =
        std::max({num_parts_, num_chunks_, has_copies_ ? num_layers * num_chunks_ : num_layers});
    clocks_.resize(schedule.tasks.size());
    newest_.resize(static_cast<size_t>(schedule.num_ranks));
    touched_.resize(static_cast<size_t>(schedule.num_ranks) * num_frames_ * kNumThings);
  }

  Status Check() {
    for (TaskId id = 0; id < std::ssize(schedule_.tasks); ++id) {
      SetClock(id);
      for (const Access& access : TraitsOf(schedule_.tasks[id].kind).accesses) {
        if (Status ordered = Visit(id, access); !ordered.ok()) return ordered;
      }
    }
    return {};
  }

 private:
  void SetClock(TaskId id) {
    const Task& task = schedule_.tasks[id];
    std::array<TaskId, kNumLaneKinds>& newest = newest_[task.lane.rank].of_lane;
    Clock& clock = clocks_[id];
    clock.fill(0);
    const auto join = [&](TaskId before) {
      for (size_t lane = 0; lane < clock.size(); ++lane) {
        clock[lane] = std::max(clock[lane], clocks_[before][lane]);
      }
    };
    if (newest[LaneOf(task)] >= 0) join(newest[LaneOf(task)]);
    for (const TaskId before : task.after) {
      if (schedule_.tasks[before].lane.rank == task.lane.rank) join(before);
    }
    ++clock[LaneOf(task)];
    newest[LaneOf(task)] = id;
  }

  // Precondition: `a` is listed before `b`.
  bool IsBefore(TaskId a, TaskId b) const {
    const size_t lane = LaneOf(schedule_.tasks[a]);
    return clocks_[b][lane] >= clocks_[a][lane];
  }

  // Which of the thing's parts is the task's own.
  int PartOf(const Task& task, Thing thing) const {
    switch (thing) {
      case Thing::kCache:
        // An encoder's layers use the first layer's part (runtime/step_operators.cc).
        return task.encoder ? 0 : task.layer;
      case Thing::kPrediction:
        return task.layer;
      case Thing::kDivision:
        // An encoder's experts stay.
        return task.encoder ? 0 : task.layer;
      case Thing::kLogits:
      case Thing::kLogitsIn:
        return 0;
      case Thing::kPages:
        return std::max(0, task.layer) % 2;
      case Thing::kPinned:
        return task.layer * num_chunks_ + task.chunk;
      case Thing::kHeldPages:
      case Thing::kHeldKv:
        return has_copies_ ? task.layer * num_chunks_ + std::max(0, task.chunk) : 0;
      default:
        return task.chunk;
    }
  }

  // All that the access reaches.
  Status Visit(TaskId id, const Access& access) {
    const Task& task = schedule_.tasks[id];
    // Of an encoder rank 0 alone gets rows.
    if (access.thing == Thing::kGathered && task.encoder && task.lane.rank != 0) return {};
    const bool is_shared = IsShared(access.thing);
    // A task of no micro-batch works on all of them.
    const int first_frame = is_shared ? 0 : std::max(0, task.micro_batch);
    const int end_frame = is_shared || task.micro_batch >= 0 ? first_frame + 1 : num_frames_;
    const int first_part =
        access.reach == Reach::kOne ? std::max(0, PartOf(task, access.thing)) : 0;
    const int end_part = access.reach == Reach::kOne         ? first_part + 1
                         : access.reach == Reach::kAllChunks ? num_chunks_
                                                             : num_parts_;
    for (int frame = first_frame; frame < end_frame; ++frame) {
      std::vector<Touched>& parts =
          touched_[(static_cast<size_t>(task.lane.rank) * num_frames_ + frame) * kNumThings +
                   static_cast<size_t>(access.thing)];
      if (parts.empty()) parts.resize(static_cast<size_t>(num_parts_));
      for (int part = first_part; part < end_part; ++part) {
        if (Status ordered = Touch(id, access.writes, parts[part]); !ordered.ok()) return ordered;
      }
    }
    return {};
  }

  Status Touch(TaskId id, bool writes, Touched& touched) const {
    const auto check = [&](TaskId before) -> Status {
      if (before < 0 || IsBefore(before, id)) return {};
      return Error{fmt::format("tasks {} (r{} {}) and {} (r{} {}) touch the same thing in no order",
                               before, schedule_.tasks[before].lane.rank,
                               Label(schedule_.tasks[before]), id, schedule_.tasks[id].lane.rank,
                               Label(schedule_.tasks[id]))};
    };
    if (Status ordered = check(touched.write); !ordered.ok()) return ordered;
    if (!writes) {
      touched.reads[LaneOf(schedule_.tasks[id])] = id;
      return {};
    }
    for (TaskId& read : touched.reads) {
      if (Status ordered = check(read); !ordered.ok()) return ordered;
      read = -1;
    }
    touched.write = id;
    return {};
  }

  struct Newest {
    std::array<TaskId, kNumLaneKinds> of_lane;
    Newest() { of_lane.fill(-1); }
  };

  const Schedule& schedule_;
  bool has_copies_ = false;
  int num_frames_ = 1;
  int num_parts_ = 2;  // most parts of a thing
  int num_chunks_ = 1;
  std::vector<Clock> clocks_;                  // by TaskId
  std::vector<Newest> newest_;                 // by rank
  std::vector<std::vector<Touched>> touched_;  // by (rank, frame, thing): by chunk or layer
};

}  // namespace

Status CheckHazards(const Schedule& schedule) { return Checker(schedule).Check(); }

}  // namespace convene::schedule
