#include "weights/gathered_rows.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "checkpoint/mapped_file.h"
#include "weights/stored_matrix.h"

namespace convene::weights {
namespace {

using kernels::StoredMatrix;

// Elements of a tile are a line of a cache in each of as many stored rows.
constexpr int kTileSide = 64;

uint64_t ElementBytes(const StoredMatrix& matrix) { return tensor::SizeBits(matrix.dtype) / 8; }

// Elements [first_col, end_col) of one row, which lie `stride_bytes` apart.
template <size_t kBytes>
void GatherElements(const std::byte* from, int64_t stride_bytes, int count, std::byte* to) {
  for (int i = 0; i < count; ++i) std::memcpy(to + i * kBytes, from + i * stride_bytes, kBytes);
}

void GatherElements(size_t element_bytes, const std::byte* from, int64_t stride_bytes, int count,
                    std::byte* to) {
  switch (element_bytes) {
    case 1:
      return GatherElements<1>(from, stride_bytes, count, to);
    case 2:
      return GatherElements<2>(from, stride_bytes, count, to);
    case 4:
      return GatherElements<4>(from, stride_bytes, count, to);
    default:
      CHECK(false, "elements of {} bytes", element_bytes);
  }
}

}  // namespace

bool ReadsTransposed(const PackJob& job) {
  return std::ranges::any_of(job.matrices, [](const JobMatrix& each) {
    return each.binding->transposed && each.matrix->col_stride != 1;
  });
}

uint64_t GatheredRows::GroupBytes(const PackJob& job) {
  uint64_t most_bytes = 0;
  for (const JobMatrix& each : job.matrices) {
    most_bytes =
        std::max(most_bytes, ElementBytes(*each.matrix) * static_cast<uint64_t>(each.matrix->cols));
  }
  return most_bytes * kernels::kLanes;
}

GatheredRows::GatheredRows(const PackJob& job, int first, int count, std::span<std::byte> buffer)
    : gathered_(static_cast<size_t>(count)), sources_(static_cast<size_t>(count)) {
  std::byte* next = buffer.data();
  for (int i = 0; i < count; ++i) {
    const kernels::RowSource source = job.source_of(first + i);
    if (source.matrix == nullptr) continue;
    const StoredMatrix& matrix = *source.matrix;
    CHECK(matrix.scales.data.empty(), "scales of a transposed matrix");
    rows_.push_back({&matrix, source.row, next});
    if (std::ranges::find(matrices_, &matrix) == matrices_.end()) matrices_.push_back(&matrix);
    most_cols_ = std::max(most_cols_, matrix.cols);
    StoredMatrix& row = gathered_[static_cast<size_t>(i)];
    row = {.dtype = matrix.dtype,
           .data = next,
           .row_stride = matrix.cols,
           .rows = 1,
           .cols = matrix.cols};
    sources_[static_cast<size_t>(i)] = {&row, 0, source.first_col};
    next += ElementBytes(matrix) * static_cast<uint64_t>(matrix.cols);
  }
  CHECK(next <= buffer.data() + buffer.size(), "{} rows in {} bytes", count, buffer.size());
}

strategy::Part GatheredRows::ColsOf(const StoredMatrix& matrix, int first, int count) {
  return {first, std::min(count, matrix.cols - first)};
}

int GatheredRows::PieceCols(uint64_t piece_bytes) const {
  uint64_t most_bytes = 1;  // of a stored row, or of a column of all
  for (const StoredMatrix* matrix : matrices_) {
    const auto stride = static_cast<uint64_t>(std::max(matrix->col_stride, matrix->row_stride));
    most_bytes = std::max(most_bytes, stride * ElementBytes(*matrix));
  }
  const uint64_t cols = piece_bytes / most_bytes / kTileSide * kTileSide;
  return static_cast<int>(std::clamp<uint64_t>(cols, kTileSide, uint64_t{1} << 20));
}

void GatheredRows::Gather(uint64_t piece_bytes, hardware::ThreadPool& pool) const {
  const int piece_cols = PieceCols(piece_bytes);
  pool.ParallelFor((most_cols_ + piece_cols - 1) / piece_cols, [&](int64_t index, int) {
    const int first_col = static_cast<int>(index) * piece_cols;
    GatherCols(first_col, piece_cols);
    for (const StoredMatrix* matrix : matrices_) {
      const strategy::Part cols = ColsOf(*matrix, first_col, piece_cols);
      if (cols.size > 0) checkpoint::DontNeed(StoredBytes(*matrix, {0, matrix->rows}, cols));
    }
  });
}

void GatheredRows::GatherCols(int first_col, int count) const {
  for (int tile = 0; tile < count; tile += kTileSide) {
    for (const Row& row : rows_) {
      const StoredMatrix& matrix = *row.from;
      const size_t bytes = ElementBytes(matrix);
      const strategy::Part cols =
          ColsOf(matrix, first_col + tile, std::min(kTileSide, count - tile));
      if (cols.size <= 0) continue;
      const std::byte* from = StoredBytes(matrix, {row.row, 1}, cols).data();
      GatherElements(bytes, from, matrix.col_stride * static_cast<int64_t>(bytes), cols.size,
                     row.to + static_cast<size_t>(cols.first) * bytes);
    }
  }
}

}  // namespace convene::weights
