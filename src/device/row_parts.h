// Cuts a range of rows into parts, one after the other, so that the threads of a pool can group
// them at the same time. What the parts are never changes a result: each says how much it has of
// everything, and those behind it begin there.
#pragma once

#include <algorithm>
#include <cstdint>

#include "hardware/thread_pool.h"

namespace convene::device {

class RowParts {
 public:
  // `pool` may be null: one part, by the caller. Otherwise it is called where Run is.
  explicit RowParts(hardware::ThreadPool* pool) : pool_(pool) {}

  // Parts for so many pairs of row and expert. Two threads that are awake gain from 8,192 pairs on
  // (grouping_bench --threads 2 on Zen 4, 2026-11-24; docs/results/grouping.md).
  int NumberFor(int64_t num_pairs) const {
    if (pool_ == nullptr) return 1;
    return static_cast<int>(std::clamp<int64_t>(num_pairs / kPairsOfPart, 1, pool_->size()));
  }

  // Calls f(part, first, end) for each of `num_parts` parts of [0, count), at the same time.
  template <typename F>
  void Run(int64_t count, int num_parts, F&& f) const {
    if (num_parts == 1) return ForEach(count, 1, f);
    pool_->ParallelFor(num_parts, [&](int64_t part, int) {
      f(static_cast<int>(part), static_cast<int32_t>(count * part / num_parts),
        static_cast<int32_t>(count * (part + 1) / num_parts));
    });
  }

  // The same, one after the other.
  template <typename F>
  static void ForEach(int64_t count, int num_parts, F&& f) {
    for (int64_t part = 0; part < num_parts; ++part) {
      f(static_cast<int>(part), static_cast<int32_t>(count * part / num_parts),
        static_cast<int32_t>(count * (part + 1) / num_parts));
    }
  }

 private:
  static constexpr int64_t kPairsOfPart = 4096;

  hardware::ThreadPool* pool_;
};

}  // namespace convene::device
