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

void PackJobs::Stack(const PackedMatrix& target, const std::vector<const TensorBinding*>& parts) {
  std::vector<RowsOf> all;
  for (const TensorBinding* part : parts) {
    all.push_back({part, static_cast<int>(part->rows), [](int row) { return row; }});
  }
  StackRows(target, std::move(all));
}

void PackJobs::StackRows(const PackedMatrix& target, std::vector<RowsOf> parts) {
  PackJob job;
  job.target = &target;
  std::vector<const StoredMatrix*> matrices;
  for (const RowsOf& part : parts) matrices.push_back(Describe(*part.matrix, &job));
  job.source_of = [matrices, parts = std::move(parts)](int packed_row) -> RowSource {
    int row = packed_row;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (row < parts[i].num_rows) {
        const int source = parts[i].row_of(row);
        return source < 0 ? RowSource{} : RowSource{matrices[i], source};
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
  StoredMatrix* matrix = Describe(binding, &job);
  // Each head takes its rows alone; all of the tensor would be counted, read ahead and dropped for
  // each of them.
  std::span<const std::byte>& bytes = job.sources.front();
  const size_t row_bytes = bytes.size() / static_cast<size_t>(binding.rows);
  bytes = bytes.subspan(static_cast<size_t>(first_row) * row_bytes,
                        static_cast<size_t>(target.cols) * row_bytes);
  *matrix = Transposed(*matrix, first_row, target.cols);
  job.source_of = [matrix](int row) -> RowSource {
    return row < matrix->rows ? RowSource{matrix, row} : RowSource{};
  };
  jobs_.push_back(std::move(job));
}

void PackJobs::GateAndUp(const PackedMatrix& target, const TensorBinding& gate,
                         const TensorBinding& up) {
  PackJob job;
  job.target = &target;
  const StoredMatrix* gate_matrix = Describe(gate, &job);
  const StoredMatrix* up_matrix = Describe(up, &job);
  job.source_of = [gate_matrix, up_matrix](int packed_row) -> RowSource {
    const kernels::GateUpRow at = kernels::GateUpRowAt(gate_matrix->rows, packed_row);
    if (at.row >= gate_matrix->rows) return {};
    return {at.is_up ? up_matrix : gate_matrix, at.row};
  };
  jobs_.push_back(std::move(job));
}

void PackJobs::Ffn(const FfnWeights& target, int layer, int expert, FfnRoles roles) {
  const TensorBinding* gate = tensors_.Find(roles.gate, layer, expert);
  const TensorBinding& up = tensors_.Get(roles.up, layer, expert);
  if (gate != nullptr) {
    GateAndUp(target.up, *gate, up);
  } else {
    Stack(target.up, {&up});
  }
  Stack(target.down, {&tensors_.Get(roles.down, layer, expert)});
}

StoredMatrix* PackJobs::Describe(const TensorBinding& binding, PackJob* job) {
  matrices_.push_back(tensors_.Matrix(binding));
  const checkpoint::TensorView view = tensors_.View(binding);
  // Gate and up may take turns in the same rows.
  const bool is_known = std::any_of(job->sources.begin(), job->sources.end(),
                                    [&](auto bytes) { return bytes.data() == view.bytes.data(); });
  if (!is_known) job->sources.push_back(view.bytes);
  job->matrices.emplace_back(&matrices_.back(), binding.role);
  if (view.scales.is_e8m0 && !is_known) {
    const int64_t per_row = view.scales.blocks_per_row;
    job->sources.push_back(
        view.scales.data.subspan(binding.first_row * per_row, view.rows * per_row));
    job->exponents.emplace_back(job->sources.back(), binding.name);
  }
  return &matrices_.back();
}

}  // namespace convene::weights
