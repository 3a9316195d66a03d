// Tables of measured latencies of GPUs in the form of aiconfigurator (ai-dynamo/aiconfigurator,
// Apache-2.0): *_gemm_perf, *_moe_perf, *_nccl_perf, *_custom_allreduce_perf and
// *_wideep_deepep_normal_perf as comma-separated text. Reads text; files are up to the caller.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cost/fit_operator_model.h"
#include "cost/presets.h"

namespace convene::cost {

// For which machine a table is read.
struct TableTarget {
  DeviceFigures device;
  double link_bytes_per_second = 0;  // that joins its ranks, for operators that communicate
};

// One operator as one device was measured on it, by one kernel.
struct MeasuredOperator {
  std::string name;    // "product bf16", "grouped_product fp8", "all_reduce", "dispatch"
  std::string kernel;  // what computed it: "SGLang sglang_fused_moe_triton"
  GpuPreset gpu;
  std::vector<std::string> feature_names;
  std::vector<OperatorSample> samples;  // with ideal times of `gpu`
  // By sample, ideal times of the target. Empty: it has no rate for the operator, and why.
  std::vector<double> target_ideal_seconds;
  std::string not_on_target;
};

// The operators of a table, in the order in which they first appear. Which kind of table it is, the
// names of its columns say.
// Errors: no such kind of table, with what was expected; a device without preset, a format that is
// not known, or a field that is no number from kLeastValue to kMostValue, with the row.
Result<std::vector<MeasuredOperator>> ReadPerfTable(std::string_view csv,
                                                    const TableTarget& target);

// The samples as the target would have them: the same share of its own limits at the same features,
// and the same fixed seconds, which are those of the line through the samples. Of exchanges that
// take multiprocessors, as many as bear the same relation to the target's link.
// Precondition: target_ideal_seconds is not empty.
std::vector<OperatorSample> SamplesOnTarget(const MeasuredOperator& measured);

}  // namespace convene::cost
