#include "runtime/record_sizes.h"

#include <algorithm>

namespace convene::runtime {

using enum schedule::SizeKind;

void RecordRows(const device::Frame& frame, int rank, int micro_batch, bool encoder,
                StepRecorder& recorder) {
  const device::OwnRows own = frame.own();
  const device::StepRows& rows = frame.rows;
  double keys = 0;
  for (int row = 0; row < rows.num_rows(); ++row) {
    const device::SequenceStep& sequence = rows.step()[rows.sequence(row)];
    // An encoder's tokens see their whole input.
    keys += encoder ? static_cast<double>(sequence.tokens.size()) : rows.position(row) + 1;
  }
  const auto wanted = std::ranges::count_if(
      rows.wanted(), [&](int row) { return row >= own.first && row < own.first + own.count; });
  const auto set = [&](schedule::SizeKind kind, double value) {
    recorder.Set({.kind = kind, .from = rank, .micro_batch = micro_batch}, value);
  };
  set(kRows, own.count);
  set(kTokens, rows.num_rows());
  set(kKeys, keys);
  set(kWanted, static_cast<double>(wanted));
}

void RecordTask(const device::Frame& frame, const schedule::Task& task, int num_ranks,
                StepRecorder& recorder) {
  const device::ExpertRows& rows = frame.expert_rows;
  const int rank = task.lane.rank;
  const auto set = [&](schedule::SizeKind kind, int chunk, int to, double value) {
    recorder.Set({kind, task.layer, chunk, rank, to, task.micro_batch}, value);
  };
  if (task.kind == schedule::TaskKind::kRoute) {
    for (int to = 0; to < num_ranks; ++to) {
      for (int chunk = 0; to != rank && chunk < rows.num_chunks(); ++chunk) {
        set(kSent, chunk, to, static_cast<double>(rows.sent_rows(to, chunk)));
      }
    }
  } else if (task.kind == schedule::TaskKind::kExperts) {
    const std::vector<int32_t>& first = rows.selected().first_slot;
    int experts = 0;
    for (size_t i = 1; i < first.size(); ++i) experts += first[i] > first[i - 1];
    set(kSlots, task.chunk, -1, first.back() - first.front());
    set(kExperts, task.chunk, -1, experts);
  } else if (task.kind == schedule::TaskKind::kReduce) {
    for (int to = 0; to < num_ranks; ++to) {
      if (to == rank) continue;
      set(kReturned, task.chunk, to, static_cast<double>(rows.returned_rows(to, task.chunk)));
    }
  }
}

}  // namespace convene::runtime
