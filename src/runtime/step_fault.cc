#include "runtime/step_fault.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace convene::runtime {

StepFault::StepFault(int rank, int num_ranks)
    : rank_(rank), statuses_(num_ranks > 1 ? static_cast<size_t>(num_ranks) : 0) {}

void StepFault::BeginStep() {
  if (!std::exchange(follows_change_, false)) has_failed_.store(false);
  std::ranges::fill(statuses_, 0);
}

void StepFault::BeginChange() {
  has_failed_.store(false);
  follows_change_ = true;
}

void StepFault::Fail(const schedule::Task& task, const Error& error) {
  const std::lock_guard lock(mutex_);
  if (has_failed()) return;
  error_ = error;
  const std::string where =
      task.layer < 0 ? ""
                     : fmt::format(" of {}layer {}", task.encoder ? "encoder " : "", task.layer);
  error_.message = fmt::format("{}{} failed: {}", schedule::Name(task.kind), where, error.message);
  has_failed_.store(true, std::memory_order_release);
}

Status StepFault::status() const {
  if (!has_failed()) return {};
  const std::lock_guard lock(mutex_);
  return error_;
}

std::span<uint32_t> StepFault::Tell() {
  statuses_[static_cast<size_t>(rank_)] = has_failed();
  return statuses_;
}

bool StepFault::AnyHasFailed() const {
  return std::ranges::any_of(statuses_, [](uint32_t status) { return status != 0; });
}

}  // namespace convene::runtime
