// `auto` as the number of chunks: decided on all ranks by what steps cost on them
// (planner/pipeline_degree.h). It measures nothing itself.
#pragma once

#include <string>

#include "base/result.h"
#include "comm/wire_format.h"
#include "engine/load_options.h"
#include "hardware/thread_pool.h"
#include "kernels/kernel_set.h"
#include "memory/ledger.h"
#include "model/model_spec.h"
#include "runtime/formats.h"

namespace convene::engine {

// The format that `wire` means for these ranks. kAuto: float32 where all of them share one host,
// whose memory is fast enough; otherwise bf16.
comm::WireFormat WireFormatOf(plan::Wire wire, int num_ranks);
bool ReturnsFp8(plan::Wire wire);

struct ChosenPipeline {
  strategy::Pipeline pipeline = {};
  int chunks_from_tokens = 0;         // as runtime::ParallelOptions has it
  int micro_batches_from_tokens = 0;  // likewise
  std::string words = {};             // the choice and its reason, as lines for people; rank 0's
};

// *Collective*: all ranks choose the same. `spec` is that of the whole model. Errors: of
// LoadOptions::step_costs; a kind of task without a cost.
Result<ChosenPipeline> ChoosePipeline(const LoadOptions& options, const model::ModelSpec& spec,
                                      const runtime::Formats& formats,
                                      const kernels::KernelSet& kernels, hardware::ThreadPool& pool,
                                      memory::Ledger& ledger);

}  // namespace convene::engine
