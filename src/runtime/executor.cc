#include "runtime/executor.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/start_thread.h"

namespace convene::runtime {

using schedule::LaneKind;
using schedule::TaskId;

namespace {

// How long the background thread sleeps between looks at the exchanges while the calling thread
// computes on the same cores: each look costs it some microseconds of them, and messages of
// megabytes take longer than that (docs/results/overlap_spike.md). A thread that waits looks
// itself, at once.
constexpr auto kBackgroundPoll = std::chrono::microseconds(500);
constexpr auto kEager = std::chrono::milliseconds(3);
constexpr auto kWaitingPoll = std::chrono::microseconds(20);

// Between two looks of a thread that has nothing else to do. Ranks wait for each other for parts of
// a millisecond at each exchange, and one that sleeps is late by the time that it takes to wake up,
// some 0.1 ms on a virtual machine: so it gives way to other threads at first, and sleeps when the
// wait is long.
class Pause {
 public:
  void Reset() { start_ = Clock::now(); }
  bool is_long() const { return Clock::now() - start_ >= kEager; }
  void operator()() {
    if (is_long()) {
      std::this_thread::sleep_for(kWaitingPoll);
    } else {
      std::this_thread::yield();
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

bool IsExchange(LaneKind lane) { return lane == LaneKind::kSend || lane == LaneKind::kReceive; }

bool IsAhead(LaneKind lane) { return lane == LaneKind::kLoad || lane == LaneKind::kStage; }

constexpr uint8_t BitOf(LaneKind lane) {
  return static_cast<uint8_t>(1u << static_cast<unsigned>(lane));
}
static_assert(schedule::kNumLaneKinds <= 8);

}  // namespace

RankProgram::RankProgram(const schedule::Schedule& schedule, int rank) : schedule_(schedule) {
  std::map<LaneKind, std::vector<TaskId>> exchanges;
  std::map<LaneKind, std::vector<TaskId>> others;
  for (TaskId id = 0; id < num_tasks(); ++id) {
    const schedule::Task& one = schedule.tasks[id];
    if (one.lane.rank != rank) continue;
    const LaneKind kind = one.lane.kind;
    if (kind == LaneKind::kCompute) {
      compute_.push_back(id);
    } else if (IsExchange(kind)) {
      CHECK(one.collective >= 0, "task {} is no exchange", id);
      exchanges[kind].push_back(id);
    } else {
      CHECK(one.collective < 0, "task {} is an exchange on lane {}", id, schedule::Name(kind));
      others[kind].push_back(id);
    }
    for (const TaskId before : one.after) {
      CHECK(schedule.tasks[before].lane.rank == rank, "task {} waits for another rank", id);
    }
  }
  for (auto& [kind, tasks] : exchanges) exchanges_.push_back(std::move(tasks));
  for (auto& [kind, tasks] : others) thread_lanes_.push_back({kind, std::move(tasks)});
  waiters_.resize(schedule.tasks.size(), 0);
  if (!thread_lanes_.empty()) FindWaiters(rank);
}

void RankProgram::FindWaiters(int rank) {
  for (const schedule::Task& waiting : schedule_.tasks) {
    if (waiting.lane.rank != rank) continue;
    for (const TaskId before : waiting.after) {
      if (schedule_.tasks[before].lane == waiting.lane) continue;
      waiters_[before] |= BitOf(waiting.lane.kind);
    }
  }
}

Status LaneWork::RunOnLane(const schedule::Task& task, hardware::ThreadPool*) {
  CHECK(false, "nothing runs on lane {}: {}", schedule::Name(task.lane.kind), Label(task));
}

Executor::~Executor() {
  DiscardPrefetched();
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Executor::Prefetch(const RankProgram& next, LaneWork& work) {
  if (prefetching_ && program_ == &next && work_ == &work) return;
  DiscardPrefetched();
  const auto num_tasks = static_cast<size_t>(next.num_tasks());
  if (done_.size() < num_tasks) done_ = std::vector<std::atomic<uint8_t>>(num_tasks);
  for (std::atomic<uint8_t>& done : done_) done.store(0, std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
  times_.tasks.assign(num_tasks, {});
  origin_ = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    program_ = &next;
    work_ = &work;
    status_ = {};
  }
  prefetching_ = true;
  StartLanes(/*ahead=*/true);
}

void Executor::DiscardPrefetched() {
  if (!prefetching_) return;
  prefetching_ = false;
  Stop();
  for (const auto& lane : program_->thread_lanes()) {
    lane_threads_[static_cast<size_t>(lane.kind)].Wait();
    for (const TaskId id : lane.tasks) {
      if (done_[id].load() != 0) work_->Discard(program_->task(id));
    }
  }
}

Status Executor::Run(const RankProgram& program, LaneWork& work, bool beside) {
  start_ = Clock::now();
  Prefetch(program, work);
  prefetching_ = false;
  {
    const std::lock_guard lock(mutex_);
    lanes_.clear();
    for (const auto& tasks : program.exchange_lanes()) lanes_.push_back({.tasks = &tasks});
    running_ = background_ && beside && !lanes_.empty();
  }
  if (running_) {
    if (const Status started = StartBackground(); !started) FailWith(started.error());
    wake_.notify_all();
  }
  StartLanes(/*ahead=*/false);
  for (const TaskId id : program.compute()) {
    if (!Await(id)) break;
    Begin(id);
    work.Compute(program.task(id));
    Finish(id);
    if (!lanes_.empty()) TryProgress();
  }
  AwaitExchanges();
  for (const auto& lane : program.thread_lanes()) {
    lane_threads_[static_cast<size_t>(lane.kind)].Wait();
  }
  const double ahead = std::chrono::duration<double>(start_ - origin_).count();
  for (schedule::TaskTime& time : times_.tasks) {
    if (time.end >= time.start) time = {time.start - ahead, time.end - ahead};
  }
  std::swap(timeline_, times_);
  const std::lock_guard lock(mutex_);
  running_ = false;
  return status_;
}

void Executor::StartLanes(bool ahead) {
  for (const auto& lane : program_->thread_lanes()) {
    if (IsAhead(lane.kind) != ahead) continue;
    const bool with_pool = lane.kind == LaneKind::kHost && !cpus_.host.empty();
    const Status started = lane_threads_[static_cast<size_t>(lane.kind)].Start(
        with_pool ? cpus_.host : cpus_.compute, with_pool,
        [this, &lane](hardware::ThreadPool* pool) { RunLane(lane, pool); });
    if (!started) FailWith(started.error());
  }
}

Status Executor::StartBackground() {
  if (!background_ || thread_.joinable()) return {};
  Result<std::jthread> thread =
      StartThread("the thread that exchanges beside computation", [this] { BackgroundLoop(); });
  if (!thread) return thread.error();
  thread_ = *std::move(thread);
  return {};
}

TaskId Executor::MissingFor(TaskId id) const {
  for (const TaskId before : program_->task(id).after) {
    if (done_[before].load() == 0) return before;
  }
  return -1;
}

void Executor::Finish(TaskId id) {
  times_.tasks[id].end = Now();
  const uint8_t waiters = program_->waiters(id);
  if (waiters == 0) {
    done_[id].store(1, std::memory_order_release);
    return;
  }
  done_[id].store(1);  // before a look at who sleeps (Sleeper)
  for (size_t lane = 0; lane < sleepers_.size(); ++lane) {
    if ((waiters >> lane & 1u) != 0) sleepers_[lane].Wake(id);
  }
}

bool Executor::Await(TaskId id) {
  Pause pause;
  while (MissingFor(id) >= 0) {
    if (has_failed()) return false;
    if (!lanes_.empty() && TryProgress()) {
      pause.Reset();
    } else if (lanes_.empty() && pause.is_long()) {
      return Sleep(LaneKind::kCompute, id);
    } else {
      pause();
    }
  }
  return !has_failed();
}

bool Executor::Sleep(LaneKind lane, TaskId id) {
  for (TaskId missing = MissingFor(id); missing >= 0 && !has_failed(); missing = MissingFor(id)) {
    sleepers_[static_cast<size_t>(lane)].Sleep(
        missing, [&] { return done_[missing].load() != 0 || has_failed(); });
  }
  return !has_failed();
}

void Executor::RunLane(const RankProgram::ThreadLane& lane, hardware::ThreadPool* pool) {
  if (pool != nullptr && !pool->started()) return FailWith(pool->started().error());
  constexpr uint8_t kExchanges = BitOf(LaneKind::kSend) | BitOf(LaneKind::kReceive);
  for (const TaskId id : lane.tasks) {
    if (!Sleep(lane.kind, id)) return;
    Begin(id);
    if (const Status status = work_->RunOnLane(program_->task(id), pool); !status) {
      return Fail(id, status.error());
    }
    Finish(id);
    if ((program_->waiters(id) & kExchanges) == 0) continue;
    // The background thread would see it at its next look.
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock.owns_lock() && running_) Progress();
  }
}

void Executor::Fail(TaskId id, const Error& error) {
  times_.tasks[id] = {};
  FailWith(error.At(Label(program_->task(id))));
}

void Executor::FailWith(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = error;
  }
  Stop();
}

void Executor::Stop() {
  failed_.store(true);
  for (Sleeper& sleeper : sleepers_) sleeper.WakeForAny();
}

void Executor::AwaitExchanges() {
  Pause pause;
  if (lanes_.empty()) return;
  const auto is_done = [&](const ExchangeLane& lane) {
    return lane.active == nullptr && (lane.next == lane.tasks->size() || has_failed());
  };
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
        if (has_failed() || MissingFor(id) >= 0) break;
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
  SpreadOver(cpus_.compute);
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
