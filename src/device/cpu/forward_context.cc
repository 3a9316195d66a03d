#include "device/cpu/forward_context.h"

#include <algorithm>

namespace convene::device {

void ForwardContext::Multiply(const kernels::PackedMatrix& matrix, const RowBuffer& input,
                              int num_rows, kernels::Epilogue epilogue, const RowBuffer& out,
                              std::span<const float> bias,
                              const kernels::EpilogueParameters& parameters) {
  if (num_rows == 0) return;
  const kernels::GemmGroup group{
      .weights = &matrix, .num_rows = num_rows, .bias = bias.empty() ? nullptr : bias.data()};
  MultiplyGroups({&group, 1}, input, epilogue, out, parameters);
}

void ForwardContext::MultiplyGroups(std::span<const kernels::GemmGroup> groups,
                                    const RowBuffer& input, kernels::Epilogue epilogue,
                                    const RowBuffer& out,
                                    const kernels::EpilogueParameters& parameters) {
  for (const kernels::GemmGroup& group : groups) {
    statistics.flops += 2.0 * group.num_rows * group.weights->rows * group.weights->cols;
    statistics.weight_bytes += static_cast<int64_t>(group.weights->size_bytes());
  }
  if (groups.empty()) return;
  const ProductWay way = WayOf(groups);
  const bool is_float = groups.front().weights->format == kernels::WeightFormat::kF32;
  kernels::RunGroupedGemm(
      kernels, pool,
      {.groups = groups,
       .activations = is_float ? kernels::ActivationFormat::kF32 : workspace.format,
       .rows = input.data,
       .row_stride = input.stride_bytes,
       .epilogue = epilogue,
       .parameters = parameters,
       .out_format = workspace.wide_format,
       .out = out.data,
       .out_stride = out.stride_bytes,
       .scratch = workspace.gemm_scratch.data,
       .num_threads = way.num_threads,
       .order = way.order});
}

ForwardContext::ProductWay ForwardContext::WayOf(std::span<const kernels::GemmGroup> groups) const {
  const bool leaves_threads = comm_budget > 0 && exchanging && exchanging();
  int num_rows = 0;
  for (const kernels::GemmGroup& group : groups) num_rows += group.num_rows;
  const bool dense = dense_from_rows > 0 && num_rows >= dense_from_rows * std::ssize(groups);
  return {.num_threads = leaves_threads ? std::max(1, pool.size() - comm_budget) : pool.size(),
          .order = dense ? kernels::GemmOrder::kDense : kernels::GemmOrder::kGrouped};
}

void ForwardContext::Narrow(const RowBuffer& wide, int num_rows, int size, const RowBuffer& out) {
  if (wide.data == out.data) {
    // Other products may have left NaN of another request behind the row's elements.
    ClearPadding(out, num_rows, size, workspace.format);
    return;
  }
  pool.ParallelFor(
      num_rows, [&](int64_t row, int) { kernels.quantize(wide.floats(row), size, out.row(row)); },
      4);
}

void ForwardContext::ToActivations(const float* x, int size, std::byte* out) const {
  if (workspace.format == kernels::ActivationFormat::kInt8) {
    kernels.quantize(x, size, out);
  } else {
    kernels.convert(workspace.format, x, size, kernels::PaddedDepth(size), out);
  }
}

void ForwardContext::Normalize(std::span<const float> weight, OwnRows rows, bool also_float,
                               const Activations& activations) {
  const kernels::Norm norm{.kind = spec().norm.kind,
                           .format = activations.format,
                           .epsilon = spec().norm.epsilon,
                           .weight = weight.data(),
                           .size = spec().hidden_size};
  const bool with_float = also_float || activations.format == kernels::ActivationFormat::kInt8;
  pool.ParallelFor(
      rows.count,
      [&](int64_t i, int) {
        const int64_t row = rows.first + i;
        kernels.normalize(norm, activations.hidden.floats(row), activations.normed.row(row),
                          with_float ? activations.normed_float.floats(row) : nullptr);
      },
      4);
}

}  // namespace convene::device
