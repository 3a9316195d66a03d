// `auto` as the number of chunks: measured on the ranks, decided by planner/pipeline_degree.h.
#pragma once

#include <string>

#include "base/result.h"
#include "comm/wire_format.h"
#include "engine/load_options.h"
#include "planner/pipeline_degree.h"
#include "runtime/formats.h"
#include "weights/weight_store.h"

namespace convene::engine {

// The format that `wire` means for these ranks. kAuto: float32 where all of them share one host,
// whose memory is fast enough; otherwise bf16.
comm::WireFormat WireFormatOf(plan::Wire wire, int num_ranks);

// *Collective*: measures all ranks and returns, on each of them, the rates of all.
// Error: as runtime::MeasureRank.
Result<planner::StepRates> MeasureStepRates(comm::Group& group, weights::WeightStore& weights,
                                            const kernels::KernelSet& kernels,
                                            hardware::ThreadPool& pool,
                                            const runtime::Formats& formats,
                                            memory::Ledger& ledger);

struct ChosenPipeline {
  strategy::Pipeline pipeline = {};
  int from_tokens = 0;  // as runtime::ParallelOptions::pipeline_from_tokens
  std::string words;    // the choice and its reason, as a line for people
};

// *Collective*: all ranks choose the same. `spec` is that of the whole model, `weights` this rank's
// share. Error: no memory to measure with.
Result<ChosenPipeline> ChoosePipeline(const LoadOptions& options, const model::ModelSpec& spec,
                                      weights::WeightStore& weights,
                                      const runtime::Formats& formats, comm::WireFormat wire,
                                      const kernels::KernelSet& kernels, hardware::ThreadPool& pool,
                                      memory::Ledger& ledger);

}  // namespace convene::engine
