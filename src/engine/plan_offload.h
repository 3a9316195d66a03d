// A batch whose model a GPU has no room for: its experts go through the GPU's memory layer by
// layer, and keys, values and attention are the host's (runtime/offloaded_steps.h), so that
// thousands of sequences share what a step loads; or its experts are paged, and keys and values are
// the GPU's (plan_pages.h). Both are priced by the rates of a measured machine
// (planner/offload_policy.h) with the memory that they really take. Nothing is opened or reserved
// here.
#pragma once

#include "base/result.h"
#include "cost/machine_profile.h"
#include "device/device.h"
#include "engine/load_options.h"
#include "engine/memory_plan.h"
#include "memory/ledger.h"
#include "model/model_spec.h"
#include "runtime/formats.h"

namespace convene::engine {

struct OffloadMachine {
  cost::MachineProfile profile;  // with its device
  device::DeviceBytes device;
  memory::Ledger& of_device;
  uint64_t host_bytes = 0;  // that the host has for weights, keys and values
  int num_threads = 1;      // of the host, which draw tokens
};

// The fastest that fits: MemoryPlan::offload_micro_batches of max_sequences sequences. Errors: what
// the model cannot be offloaded with; nothing fits; rates of the machine that are not known.
Result<MemoryPlan> PlanOffload(const model::ModelSpec& spec, const LoadOptions& options,
                               const runtime::Formats& formats, const OffloadMachine& machine);

// Tokens per second of the batch's answers, prompts included, as priced. `memory`: of PlanOffload,
// or one whose experts are paged. Errors: as above.
Result<double> TokensPerSecond(const model::ModelSpec& spec, const LoadOptions& options,
                               const MemoryPlan& memory, const OffloadMachine& machine);

}  // namespace convene::engine
