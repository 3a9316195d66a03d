#include "runtime/executor.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "hardware/affinity.h"

namespace convene::runtime {

using schedule::LaneKind;
using schedule::TaskId;

namespace {

// How long the background thread sleeps between looks at the exchanges while the calling thread
// computes on the same cores: each look costs it some microseconds of them, and messages of
// megabytes take longer than that (docs/results/overlap_spike.md). A thread that waits looks
// itself, at once.
constexpr auto kBackgroundPoll = std::chrono::microseconds(500);
constexpr int kEagerLooks = 200;
constexpr auto kWaitingPoll = std::chrono::microseconds(20);

// Between two looks of a thread that has nothing else to do.
class Pause {
 public:
  void Reset() { looks_ = 0; }
  void operator()() {
    if (++looks_ < kEagerLooks) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kWaitingPoll);
    }
  }

 private:
  int looks_ = 0;
};

}  // namespace

RankProgram::RankProgram(const schedule::Schedule& schedule, int rank) : schedule_(schedule) {
  std::map<LaneKind, std::vector<TaskId>> exchanges;
  for (TaskId id = 0; id < num_tasks(); ++id) {
    const schedule::Task& one = schedule.tasks[id];
    if (one.lane.rank != rank) continue;
    if (one.lane.kind == LaneKind::kCompute) {
      compute_.push_back(id);
    } else {
      CHECK(one.collective >= 0, "task {} is no exchange", id);
      exchanges[one.lane.kind].push_back(id);
    }
    for (const TaskId before : one.after) {
      CHECK(schedule.tasks[before].lane.rank == rank, "task {} waits for another rank", id);
    }
  }
  for (auto& [kind, tasks] : exchanges) exchanges_.push_back(std::move(tasks));
}

Executor::~Executor() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Executor::Run(const RankProgram& program, LaneWork& work, bool beside) {
  const auto num_tasks = static_cast<size_t>(program.num_tasks());
  if (done_.size() < num_tasks) done_ = std::vector<std::atomic<uint8_t>>(num_tasks);
  for (std::atomic<uint8_t>& done : done_) done.store(0, std::memory_order_relaxed);
  timeline_.tasks.assign(num_tasks, {});
  start_ = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    program_ = &program;
    work_ = &work;
    lanes_.clear();
    for (const auto& tasks : program.exchange_lanes()) lanes_.push_back({.tasks = &tasks});
    running_ = background_ && beside && !lanes_.empty();
  }
  if (running_) {
    if (!thread_.joinable()) thread_ = std::thread([this] { BackgroundLoop(); });
    wake_.notify_all();
  }
  for (const TaskId id : program.compute()) {
    Await(id);
    Begin(id);
    work.Compute(program.task(id));
    Finish(id);
    if (!lanes_.empty()) TryProgress();
  }
  AwaitExchanges();
  const std::lock_guard lock(mutex_);
  running_ = false;
}

bool Executor::IsReady(TaskId id) const {
  const std::vector<TaskId>& after = program_->task(id).after;
  return std::all_of(after.begin(), after.end(), [&](TaskId before) {
    return done_[before].load(std::memory_order_acquire) != 0;
  });
}

void Executor::Finish(TaskId id) {
  timeline_.tasks[id].end = Now();
  done_[id].store(1, std::memory_order_release);
}

void Executor::Await(TaskId id) {
  Pause pause;
  while (!IsReady(id)) {
    if (TryProgress()) {
      pause.Reset();
    } else {
      pause();
    }
  }
}

void Executor::AwaitExchanges() {
  Pause pause;
  const auto is_done = [](const ExchangeLane& lane) { return lane.next == lane.tasks->size(); };
  for (;;) {
    bool advanced = false;
    {
      const std::lock_guard lock(mutex_);
      if (std::all_of(lanes_.begin(), lanes_.end(), is_done)) return;
      advanced = Progress();
    }
    if (advanced) {
      pause.Reset();
    } else {
      pause();
    }
  }
}

bool Executor::TryProgress() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && Progress();
}

bool Executor::Progress() {
  bool changed = false;
  for (ExchangeLane& lane : lanes_) {
    while (lane.next < lane.tasks->size()) {
      const TaskId id = (*lane.tasks)[lane.next];
      if (lane.active == nullptr) {
        if (!IsReady(id)) break;
        Begin(id);
        lane.active = work_->Start(program_->task(id));
        num_active_.fetch_add(1, std::memory_order_relaxed);
      }
      if (lane.active != nullptr && !lane.active->Test()) break;
      lane.active.reset();
      num_active_.fetch_sub(1, std::memory_order_relaxed);
      Finish(id);
      ++lane.next;
      changed = true;
    }
  }
  return changed;
}

void Executor::BackgroundLoop() {
  // Any core of the rank, not only that of the thread that started this one.
  if (const Status placed = hardware::SetAffinity(cpus_); !placed) return;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return running_ || ending_; });
    if (ending_) return;
    Progress();
    lock.unlock();
    std::this_thread::sleep_for(kBackgroundPoll);
    lock.lock();
  }
}

}  // namespace convene::runtime
