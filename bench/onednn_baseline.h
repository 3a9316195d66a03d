// How fast oneDNN computes the experts' products on this machine, for comparison in one run with
// the grouped GEMM. It is no kernel of convene: nothing but the benchmarks links it.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/measure_peaks.h"

namespace convene::bench {

struct ExpertShape {
  int num_experts = 0;
  int hidden = 0;
  int intermediate = 0;
  int rows_per_expert = 0;
};

struct OneDnnRate {
  double ops_per_s = 0;        // median of the passes; a multiplication and an addition are two
  std::string implementation;  // as oneDNN calls it: "brgemm:avx512_core_bf16"
};

// One expert after the other with all threads, as oneDNN is used: rows (rows_per_expert, hidden) by
// the expert's gate and up (2 x intermediate), then by its down (hidden). The activation between
// them is left out, to oneDNN's advantage. Weights are in oneDNN's own packed order, in huge pages,
// and read from memory as long as those of all experts exceed the caches.
// kBf16: bf16 times bf16; kInt8: u8 rows times s8 weights, one scale. The first product comes out
// in the type of the rows, the second in float32.
// One thread per entry of `cpus`, pinned there whatever mask the caller has; the caller waits.
// Passes for about `budget_s`, at least three; packing comes on top.
// Errors: built without oneDNN, or with one that is not threaded by OpenMP; no memory; oneDNN
// refuses the format on this machine.
Result<OneDnnRate> MeasureOneDnn(kernels::ActivationFormat format, const ExpertShape& shape,
                                 const std::vector<int>& cpus, double budget_s);

}  // namespace convene::bench
