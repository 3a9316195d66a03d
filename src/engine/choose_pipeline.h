// `auto` as the number of chunks: measured on the ranks, decided by planner/pipeline_degree.h.
#pragma once

#include <string>

#include "base/result.h"
#include "engine/loaded_model.h"

namespace convene::engine {

struct ChosenPipeline {
  strategy::Pipeline pipeline = {};
  int from_tokens = 0;  // as runtime::ParallelOptions::pipeline_from_tokens
  std::string words;    // for people
};

// *Collective*: all ranks choose the same. `spec` is that of the whole model, `weights` this rank's
// share. Error: no memory to measure with.
Result<ChosenPipeline> ChoosePipeline(const LoadOptions& options, const model::ModelSpec& spec,
                                      const weights::ModelWeights& weights,
                                      const runtime::Formats& formats, comm::WireFormat wire,
                                      const kernels::KernelSet& kernels,
                                      hardware::ThreadPool& pool);

}  // namespace convene::engine
