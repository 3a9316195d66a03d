// What every part of a forward pass works with, and the two ways it multiplies with weights.
#pragma once

#include <span>
#include <vector>

#include "hardware/thread_pool.h"
#include "kernels/grouped_gemm.h"
#include "kernels/kernel_set.h"
#include "model/model_spec.h"
#include "runtime/activations.h"
#include "runtime/transformer.h"
#include "weights/model_weights.h"

namespace convene::runtime {

struct ForwardContext {
  const weights::ModelWeights& weights;
  const kernels::KernelSet& kernels;
  hardware::ThreadPool& pool;
  Activations& activations;
  StepStatistics& statistics;
  std::vector<const void*> row_pointers;  // scratch of Multiply

  const model::ModelSpec& spec() const { return weights.spec; }

  // out row i = input row i times the matrix, for the first `num_rows` rows.
  void Multiply(const kernels::PackedMatrix& matrix, const RowBuffer& input, int num_rows,
                kernels::Epilogue epilogue, const RowBuffer& out, std::span<const float> bias = {});

  // The same for many matrices at once; the rows of group g are
  // row_pointers[groups[g].first_row ...], which the caller has set.
  void MultiplyGroups(std::span<const kernels::GemmGroup> groups, kernels::Epilogue epilogue,
                      const RowBuffer& out, std::span<const float> bias = {});

  // `normed` (and, if wanted, `normed_float`) of the first `num_rows` rows of `hidden`.
  void Normalize(std::span<const float> weight, int num_rows, bool also_float);
};

}  // namespace convene::runtime
