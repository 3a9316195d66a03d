#include "weights/finite_weights.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "base/quote.h"
#include "kernels/pack.h"
#include "tensor/dtype.h"
#include "weights/named_weights.h"
#include "weights/stored_matrix.h"

namespace convene::weights {
namespace {

using model::TensorRole;

bool MayMask(TensorRole role) {
  return role == TensorRole::kSinks || role == TensorRole::kRouterBias ||
         role == TensorRole::kCorrectionBias;
}

// "the infinity" would read as a value that somebody wanted.
std::string Words(float value) {
  if (std::isnan(value)) return "NaN (not a number)";
  return std::isinf(value) ? (value > 0 ? "plus infinity" : "minus infinity")
                           : fmt::format("{}", value);
}

// The index of the first that is not finite, or -1.
int64_t FirstIn(std::span<const float> values, bool may_mask) {
  for (size_t i = 0; i < values.size(); ++i) {
    const bool masks = may_mask && values[i] == -std::numeric_limits<float>::infinity();
    if (!std::isfinite(values[i]) && !masks) return static_cast<int64_t>(i);
  }
  return -1;
}

bool Holds(kernels::WeightFormat format, float value) {
  if (format != kernels::WeightFormat::kBf16) return std::isfinite(value);
  return std::isfinite(tensor::FloatFromBf16(tensor::Bf16FromFloat(value)));
}

// What a job's matrix holds in (row, col) that its target cannot hold.
Error ErrorOf(const JobMatrix& from, int row, int col, float value) {
  const std::string place =
      fmt::format("tensor {} (row {}, column {})", Quote(from.binding->name), row, col);
  if (std::isfinite(value)) {
    return Error{fmt::format("{} holds {}, which is beyond what bf16 can hold; use --weights f32",
                             place, value)};
  }
  const kernels::StoredMatrix& matrix = *from.matrix;
  if (!matrix.scales.data.empty()) {
    const int64_t in_rows = matrix.is_transposed ? col : row;
    const float scale = matrix.scales.At(matrix.first_row + in_rows * matrix.row_step,
                                         matrix.is_transposed ? row : col);
    if (!std::isfinite(scale)) {
      return DataLoss(fmt::format("a scale of {} is {}; the file is damaged: get it again", place,
                                  Words(scale)));
    }
  }
  return DataLoss(
      fmt::format("{} holds {}; the file is damaged: get it again", place, Words(value)));
}

}  // namespace

Status CheckVectors(const checkpoint::Checkpoint& checkpoint) {
  for (const model::TensorBinding& binding : checkpoint.spec().tensors) {
    if (binding.cols != 1 && binding.role != TensorRole::kRelativeBias) continue;
    const std::vector<float> values = ReadVector(checkpoint, binding);
    const int64_t at = FirstIn(values, MayMask(binding.role));
    if (at < 0) continue;
    return DataLoss(
        fmt::format("tensor {} holds {} (element {}); the file is damaged: get it again",
                    Quote(binding.name), Words(values[static_cast<size_t>(at)]), at));
  }
  return {};
}

Status CheckVectors(ModelWeights& weights) {
  for (const NamedVector& named : Vectors(weights)) {
    const bool may_mask = named.name.ends_with("sinks") || named.name.ends_with("router_bias") ||
                          named.name.ends_with("correction_bias");
    const int64_t at = FirstIn(*named.values, may_mask);
    if (at < 0) continue;
    return DataLoss(fmt::format(
        "the packed tensor {} holds {} (element {}); the file is damaged: make the directory again "
        "with convene quantize",
        Quote(named.name), Words((*named.values)[static_cast<size_t>(at)]), at));
  }
  return {};
}

Error NotFiniteError(const PackJob& job) {
  const kernels::WeightFormat format = job.target->format;
  for (int packed_row = 0; packed_row < job.target->rows; ++packed_row) {
    const kernels::RowSource source = job.source_of(packed_row);
    if (source.matrix == nullptr) continue;
    std::vector<float> row(source.matrix->cols);
    kernels::LoadRow(*source.matrix, source.row, 0, source.matrix->cols, row.data());
    for (size_t col = 0; col < row.size(); ++col) {
      if (Holds(format, row[col])) continue;
      for (const JobMatrix& from : job.matrices) {
        if (from.matrix == source.matrix) {
          return ErrorOf(from, source.row, static_cast<int>(col), row[col]);
        }
      }
    }
  }
  // The file has changed since.
  return DataLoss(
      fmt::format("tensor {} held NaN or infinity while it was read, and does not now; "
                  "nobody may write to the files of a model while it is loaded",
                  Quote(job.matrices.front().binding->name)));
}

std::optional<std::string> FindNotFinite(const ModelWeights& weights) {
  for (const NamedMatrix& named : Matrices(weights)) {
    if (named.matrix->data == nullptr) continue;  // on a disk just now
    const std::optional<int> row = kernels::FirstRowNotFinite(*named.matrix);
    if (row) return fmt::format("{} (row {})", named.name, *row);
  }
  return std::nullopt;
}

}  // namespace convene::weights
