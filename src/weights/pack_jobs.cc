#include "weights/pack_jobs.h"

#include <algorithm>
#include <utility>

namespace convene::weights {

using kernels::PackedMatrix;
using kernels::RowSource;
using kernels::StoredMatrix;
using model::TensorBinding;

namespace {

// Rows [first_row, first_row + count) of `matrix`, transposed.
StoredMatrix Transposed(const StoredMatrix& matrix, int first_row, int count) {
  StoredMatrix result = matrix;
  result.data += first_row * matrix.row_stride * SizeBits(matrix.dtype) / 8;
  result.row_stride = matrix.col_stride;
  result.col_stride = matrix.row_stride;
  result.rows = matrix.cols;
  result.cols = count;
  result.first_row += int64_t{first_row} * matrix.row_step;
  result.is_transposed = true;
  return result;
}

}  // namespace

void PackJobs::PackStacked(const PackedMatrix& target, const std::vector<Rows>& parts,
                           int first_col) {
  std::vector<RowsOf> all;
  for (const Rows& part : parts) {
    all.push_back({part, part.rows.size, [](int row) { return row; }});
  }
  StackRows(target, std::move(all), first_col);
}

void PackJobs::StackRows(const PackedMatrix& target, std::vector<RowsOf> parts, int first_col) {
  PackJob job;
  job.target = &target;
  std::vector<const StoredMatrix*> matrices;
  for (const RowsOf& part : parts) matrices.push_back(Describe(part.from, &job));
  job.source_of = [matrices, first_col, parts = std::move(parts)](int packed_row) -> RowSource {
    int row = packed_row;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (row < parts[i].num_rows) {
        const int source = parts[i].row_of(row);
        if (source < 0) return {};
        return {matrices[i], parts[i].from.rows.first + source, first_col};
      }
      row -= parts[i].num_rows;
    }
    return {};
  };
  jobs_.push_back(std::move(job));
}

void PackJobs::TransposedRows(const PackedMatrix& target, const TensorBinding& binding,
                              int first_row) {
  PackJob job;
  job.target = &target;
  StoredMatrix* matrix = Describe({&binding, {first_row, target.cols}}, &job);
  *matrix = Transposed(*matrix, first_row, target.cols);
  job.source_of = [matrix](int row) -> RowSource {
    return row < matrix->rows ? RowSource{matrix, row} : RowSource{};
  };
  jobs_.push_back(std::move(job));
}

void PackJobs::GateAndUp(const PackedMatrix& target, const TensorBinding& gate,
                         const TensorBinding& up, strategy::Part rows) {
  PackJob job;
  job.target = &target;
  const StoredMatrix* gate_matrix = Describe({&gate, rows}, &job);
  const StoredMatrix* up_matrix = Describe({&up, rows}, &job);
  job.source_of = [gate_matrix, up_matrix, rows](int packed_row) -> RowSource {
    const kernels::GateUpRow at = kernels::GateUpRowAt(rows.size, packed_row);
    if (at.row >= rows.size) return {};
    return {at.is_up ? up_matrix : gate_matrix, rows.first + at.row};
  };
  jobs_.push_back(std::move(job));
}

void PackJobs::Ffn(const FfnWeights& target, int layer, int expert, FfnRoles roles,
                   strategy::Part slice) {
  const TensorBinding* gate = tensors_.Find(roles.gate, layer, expert);
  const TensorBinding& up = tensors_.Get(roles.up, layer, expert);
  if (gate != nullptr) {
    GateAndUp(target.up, *gate, up, slice);
  } else {
    PackStacked(target.up, {{&up, slice}});
  }
  PackStacked(target.down, {All(tensors_.Get(roles.down, layer, expert))}, slice.first);
}

StoredMatrix* PackJobs::Describe(const Rows& rows, PackJob* job) {
  const TensorBinding& binding = *rows.matrix;
  matrices_.push_back(tensors_.Matrix(binding));
  const checkpoint::TensorView view = tensors_.View(binding);
  // What is not read shall not be counted, read ahead and dropped. The rows of a transposed matrix
  // are everywhere.
  std::span<const std::byte> bytes = view.bytes;
  int64_t first_stored = 0;
  int64_t num_stored = view.rows;
  if (!binding.transposed) {
    first_stored = int64_t{rows.rows.first} * binding.row_step;
    num_stored = int64_t{rows.rows.size} * binding.row_step;
    const int64_t row_bytes = std::ssize(bytes) / view.rows;
    bytes = bytes.subspan(first_stored * row_bytes, num_stored * row_bytes);
  }
  // Gate and up may take turns in the same rows.
  const bool is_known = std::ranges::any_of(
      job->sources, [&](const PackSource& source) { return source.bytes.data() == bytes.data(); });
  job->matrices.push_back({&matrices_.back(), &binding});
  if (is_known) return &matrices_.back();
  const auto into = [&](std::span<const std::byte> part, std::span<const std::byte> whole) {
    return static_cast<uint64_t>(part.data() - whole.data());
  };
  job->sources.push_back({.bytes = bytes,
                          .tensor = &binding,
                          .offset = view.stored_offset + into(bytes, view.bytes),
                          .tensor_bytes = view.stored_bytes});
  if (view.scales.data.empty()) return &matrices_.back();
  std::span<const std::byte> scales = view.scales.data;
  if (view.scales.is_e8m0) {
    const int64_t per_row = view.scales.blocks_per_row;
    scales = scales.subspan((binding.first_row + first_stored) * per_row, num_stored * per_row);
  }
  job->sources.push_back({.bytes = scales,
                          .tensor = &binding,
                          .is_scales = true,
                          .offset = into(scales, view.scales.data),
                          .tensor_bytes = view.scales.data.size()});
  return &matrices_.back();
}

}  // namespace convene::weights
