#include "runtime/forward_context.h"

namespace convene::runtime {

void ForwardContext::Multiply(const kernels::PackedMatrix& matrix, const RowBuffer& input,
                              int num_rows, kernels::Epilogue epilogue, const RowBuffer& out,
                              std::span<const float> bias) {
  row_pointers.resize(num_rows);
  for (int row = 0; row < num_rows; ++row) row_pointers[row] = input.row(row);
  const kernels::GemmGroup group{.weights = &matrix, .num_rows = num_rows};
  MultiplyGroups({&group, 1}, epilogue, out, bias);
}

void ForwardContext::MultiplyGroups(std::span<const kernels::GemmGroup> groups,
                                    kernels::Epilogue epilogue, const RowBuffer& out,
                                    std::span<const float> bias) {
  for (const kernels::GemmGroup& group : groups) {
    statistics.flops += 2.0 * group.num_rows * group.weights->rows * group.weights->cols;
    statistics.weight_bytes += static_cast<int64_t>(group.weights->size_bytes());
  }
  kernels::RunGroupedGemm(kernels, pool,
                          {.groups = groups,
                           .rows = row_pointers.data(),
                           .epilogue = epilogue,
                           .out = out.data,
                           .out_stride = out.stride_bytes,
                           .bias = bias.empty() ? nullptr : bias.data()});
}

void ForwardContext::Normalize(std::span<const float> weight, int num_rows, bool also_float) {
  const kernels::Norm norm{.kind = spec().norm.kind == model::NormKind::kLayer
                                       ? kernels::NormKind::kLayer
                                       : kernels::NormKind::kRms,
                           .format = weights.format,
                           .epsilon = spec().norm.epsilon,
                           .weight = weight.data(),
                           .size = spec().hidden_size};
  pool.ParallelFor(
      num_rows,
      [&](int64_t row, int) {
        kernels.normalize(norm, activations.hidden.floats(row), activations.normed.row(row),
                          also_float ? activations.normed_float.floats(row) : nullptr);
      },
      4);
}

}  // namespace convene::runtime
