// What is to be packed: for each packed matrix, which rows of which stored ones. Packs nothing
// itself (load_weights.cc).
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "kernels/pack.h"
#include "strategy/layout.h"
#include "weights/model_weights.h"
#include "weights/stored_tensors.h"

namespace convene::weights {

// A stored matrix that a job reads, and which one it is.
struct JobMatrix {
  kernels::StoredMatrix* matrix;
  const model::TensorBinding* binding;
};

// Stored bytes that a job reads.
struct PackSource {
  std::span<const std::byte> bytes;
  const model::TensorBinding* tensor = nullptr;  // what they are of
  bool is_scales = false;                        // its scales, not its elements
  uint64_t offset = 0;                           // of the bytes in the stored tensor
  uint64_t tensor_bytes = 0;                     // the size of that
};

// One packed matrix to fill and where its rows come from.
struct PackJob {
  const kernels::PackedMatrix* target = nullptr;
  std::function<kernels::RowSource(int packed_row)> source_of;
  std::vector<PackSource> sources;
  std::vector<JobMatrix> matrices;  // that source_of answers with

  uint64_t source_bytes() const {
    uint64_t total = 0;
    for (const PackSource& source : sources) total += source.bytes.size();
    return total;
  }
};

// Makes the jobs of a stack; owns the descriptions of the stored matrices.
class PackJobs {
 public:
  explicit PackJobs(const StoredTensors& tensors) : tensors_(tensors) {}

  std::vector<PackJob>& jobs() { return jobs_; }

  // Some rows of a stored matrix.
  struct Rows {
    const model::TensorBinding* matrix;
    strategy::Part rows;
  };
  // All of them.
  static Rows All(const model::TensorBinding& matrix) {
    return {&matrix, {0, static_cast<int>(matrix.rows)}};
  }
  // Rows of several stored matrices, one after the other, from column first_col on.
  void PackStacked(const kernels::PackedMatrix& target, const std::vector<Rows>& parts,
                   int first_col = 0);

  // Of each part `num_rows` rows: those of `from` that row_of says, zeros where it says less than
  // 0.
  struct RowsOf {
    Rows from;
    int num_rows;
    std::function<int(int row)> row_of;
  };
  void StackRows(const kernels::PackedMatrix& target, std::vector<RowsOf> parts, int first_col = 0);

  // Rows [first_row, first_row + target.cols) of a stored matrix, transposed.
  void TransposedRows(const kernels::PackedMatrix& target, const model::TensorBinding& binding,
                      int first_row);

  // `rows` of both.
  void GateAndUp(const kernels::PackedMatrix& target, const model::TensorBinding& gate,
                 const model::TensorBinding& up, strategy::Part rows);

  // `slice` of its intermediate size. `roles.gate` may have no tensor.
  struct FfnRoles {
    model::TensorRole gate, up, down;
  };
  void Ffn(const FfnWeights& target, int layer, int expert, FfnRoles roles, strategy::Part slice);

 private:
  // The whole matrix, of which the job will read `rows`.
  kernels::StoredMatrix* Describe(const Rows& rows, PackJob* job);

  const StoredTensors& tensors_;
  std::deque<kernels::StoredMatrix> matrices_;
  std::vector<PackJob> jobs_;
};

}  // namespace convene::weights
