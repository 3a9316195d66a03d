#include "server/replanner.h"

#include <utility>

#include "base/start_thread.h"

namespace convene::server {

Status Replanner::Start() {
  Result<std::jthread> thread =
      StartThread("the thread that looks for other plans", [this] { Run(); });
  if (!thread) return thread.error();
  thread_ = *std::move(thread);
  return {};
}

void Replanner::Stop() {
  {
    const std::scoped_lock lock(mutex_);
    is_stopped_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Replanner::AddStep(int num_running, int64_t num_generated, int64_t num_ended) {
  counts_.AddStep(num_running, num_generated, num_ended);
  const Clock::time_point now = Clock::now();
  if (now - epoch_start_ < epoch_) return;
  const std::optional<LoadShape> shape = counts_.Shape();
  if (!shape) return;  // the epoch lasts until there were enough
  epoch_start_ = now;
  counts_ = {};
  if (!DifferMuch(*shape, planned_for_)) return;
  const std::scoped_lock lock(mutex_);
  if (is_busy_) return;  // the next epoch asks again
  planned_for_ = *shape;
  asked_ = shape;
  is_busy_ = true;
  changed_.notify_one();
}

std::optional<NewPlan> Replanner::TakeNew() {
  const std::scoped_lock lock(mutex_);
  if (!found_) return std::nullopt;
  is_busy_ = false;
  return std::exchange(found_, std::nullopt);
}

void Replanner::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return asked_ || is_stopped_; });
    if (is_stopped_) return;
    const LoadShape shape = *std::exchange(asked_, std::nullopt);
    lock.unlock();
    Result<NewPlan> found = find_(shape);
    if (!found) stays_(shape, found.error());
    lock.lock();
    is_busy_ = found.ok();
    if (found) found_ = *std::move(found);
  }
}

}  // namespace convene::server
