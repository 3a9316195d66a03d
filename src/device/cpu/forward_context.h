// What every operator of the CPU works with, and the two ways it multiplies with weights.
#pragma once

#include <functional>
#include <span>

#include "device/cpu/activations.h"
#include "device/cpu/workspace.h"
#include "device/layer.h"
#include "device/step_statistics.h"
#include "device/wire_rows.h"
#include "hardware/thread_pool.h"
#include "kernels/grouped_gemm.h"
#include "kernels/kernel_set.h"
#include "model/model_spec.h"
#include "weights/weight_store.h"

namespace convene::device {

struct ForwardContext {
  weights::WeightStore& weights;
  const kernels::KernelSet& kernels;
  hardware::ThreadPool& pool;
  Workspace& workspace;
  StepStatistics& statistics;
  WireRows wire = {};
  int dense_from_rows = 0;  // as StreamOptions, as is the next one
  int comm_budget = 0;
  std::function<bool()> exchanging = {};  // as Stream::WatchExchanges

  const model::ModelSpec& spec() const { return weights.spec(); }

  // out row i = input row i times the matrix, for the first `num_rows` rows. The input is
  // activations (of a float32 matrix: floats). `bias` (rows of the matrix, or none).
  void Multiply(const kernels::PackedMatrix& matrix, const RowBuffer& input, int num_rows,
                kernels::Epilogue epilogue, const RowBuffer& out, std::span<const float> bias = {},
                const kernels::EpilogueParameters& parameters = {});

  // The same for many matrices at once, each with its rows of the input and its bias.
  void MultiplyGroups(std::span<const kernels::GemmGroup> groups, const RowBuffer& input,
                      kernels::Epilogue epilogue, const RowBuffer& out,
                      const kernels::EpilogueParameters& parameters = {});

  // With how many threads and in which order such products are computed just now.
  struct ProductWay {
    int num_threads = 1;
    kernels::GemmOrder order = kernels::GemmOrder::kGrouped;
  };
  ProductWay WayOf(std::span<const kernels::GemmGroup> groups) const;

  // The first `num_rows` rows of `wide` (size elements) as activations, with zeros behind them;
  // they may be the same memory.
  void Narrow(const RowBuffer& wide, int num_rows, int size, const RowBuffer& out);

  // x (size) as a row of activations.
  void ToActivations(const float* x, int size, std::byte* out) const;

  // `normed` (and, if wanted, `normed_float`) of these rows of `hidden`.
  void Normalize(std::span<const float> weight, OwnRows rows, bool also_float,
                 const Activations& activations);
};

}  // namespace convene::device
