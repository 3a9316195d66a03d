// Runs GEMMs of many weight matrices in one parallel region: panels of all groups are handed out to
// the threads, each of which prefetches its next panel while it computes.
#pragma once

#include <span>

#include "hardware/thread_pool.h"
#include "kernels/kernel_set.h"

namespace convene::kernels {

// Rows [first_row, first_row + num_rows) of the activations times one matrix.
struct GemmGroup {
  const PackedMatrix* weights = nullptr;
  int first_row = 0;
  int num_rows = 0;
  const float* bias = nullptr;  // (weights->rows) in the order of the packed rows, or null
};

// Two orders of the same work, bitwise the same results. Grouped: all panels of all groups in one
// parallel region. Dense: group after group, each with all threads.
enum class GemmOrder { kGrouped, kDense };

struct GroupedGemm {
  std::span<const GemmGroup> groups;  // all of one format and one shape
  ActivationFormat activations = ActivationFormat::kBf16;
  const std::byte* rows = nullptr;  // activations
  int64_t row_stride = 0;           // bytes
  Epilogue epilogue = Epilogue::kStore;
  EpilogueParameters parameters = {};
  ActivationFormat out_format = ActivationFormat::kF32;  // where activations are made, or kBf16
  std::byte* out = nullptr;                              // of row 0
  int64_t out_stride = 0;                                // bytes from row to row
  std::byte* scratch = nullptr;  // (threads, kGemmScratchBytes), 64-byte aligned
  int num_threads = 0;           // of the pool's that take part; 0: all
  GemmOrder order = GemmOrder::kGrouped;
};

// out row i = activation row i times the transposed matrix of its group, then the epilogue. Every
// output is computed alike whatever the number of threads.
void RunGroupedGemm(const KernelSet& kernels, hardware::ThreadPool& pool, const GroupedGemm& gemm);

}  // namespace convene::kernels
