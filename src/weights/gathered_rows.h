// Rows of matrices that are stored transposed, a part of them at a time: brought together in a
// buffer, since each of them has an element in every stored row, and so in nearly every page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hardware/thread_pool.h"
#include "kernels/pack.h"
#include "weights/pack_jobs.h"

namespace convene::weights {

// Whether what the job reads is such a matrix, or in part.
bool ReadsTransposed(const PackJob& job);

class GatheredRows {
 public:
  // Of a buffer for kLanes packed rows of the job.
  static uint64_t GroupBytes(const PackJob& job);

  // Of packed rows [first, first + count) of the job, to `buffer`, which is as large as their
  // groups. Keeps references to both.
  GatheredRows(const PackJob& job, int first, int count, std::span<std::byte> buffer);

  // Reads all stored rows once, about `piece_bytes` of them per thread at a time, whose pages are
  // dropped behind it.
  void Gather(uint64_t piece_bytes, hardware::ThreadPool& pool) const;

  // What packed row first + i is.
  const kernels::RowSource* sources() const { return sources_.data(); }

 private:
  static strategy::Part ColsOf(const kernels::StoredMatrix& matrix, int first, int count);
  int PieceCols(uint64_t piece_bytes) const;
  void GatherCols(int first_col, int count) const;

  struct Row {
    const kernels::StoredMatrix* from = nullptr;
    int row = 0;
    std::byte* to = nullptr;
  };
  std::vector<Row> rows_;
  std::vector<const kernels::StoredMatrix*> matrices_;  // those of the rows
  std::vector<kernels::StoredMatrix> gathered_;         // one of each row
  std::vector<kernels::RowSource> sources_;
  int most_cols_ = 0;
};

}  // namespace convene::weights
