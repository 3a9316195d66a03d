// Measures what tasks of steps cost on this machine, and on the links between ranks: real steps of
// models invented for it run in interleaved rounds, each round with the reference kernels, and
// costs are fitted to their tasks (cost/step_costs.h). So whatever a task does is in its cost.
//
// All ranks run at once, as they do when a model runs: what they take from each other's memory
// bandwidth is in the costs, too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/group.h"
#include "comm/wire_format.h"
#include "cost/step_costs.h"
#include "device/device.h"
#include "evaluate/invented_model.h"
#include "evaluate/step_case.h"
#include "hardware/thread_pool.h"
#include "kernels/kernel_set.h"
#include "memory/ledger.h"

namespace convene::evaluate {

struct MeasureStepsOptions {
  kernels::WeightFormat weights = kernels::WeightFormat::kInt8;
  comm::WireFormat wire = comm::WireFormat::kF32;
  int rounds = 4;
  // Above 0: where this time would be exceeded, of each model only one round, or where even that
  // takes longer its smallest steps.
  double seconds = 0;
  // Models and steps in place of those that measurements take, for tests; none: those.
  std::vector<ModelShape> shapes = {};
  std::vector<StepCase> cases = {};
  // What computes; none: the CPU by kernels and threads. For benchmarks whose ranks have another.
  std::function<std::unique_ptr<device::Device>()> make_device = {};
  // Of the ranks' host, so that tasks are also measured whose weights stay there; 0: they are not.
  uint64_t last_level_cache_bytes = 0;
  // Where memory is reserved; null: it is limited by nothing but the machine.
  memory::Ledger* ledger = nullptr;
  // Told what is measured next, on rank 0.
  std::function<void(const std::string& what)> progress = {};
};

// *Collective*; the costs are rank 0's. Errors: no memory for the models.
Result<cost::StepCosts> MeasureSteps(comm::Group& group, hardware::ThreadPool& pool,
                                     const kernels::KernelSet& kernels,
                                     const MeasureStepsOptions& options);

}  // namespace convene::evaluate
