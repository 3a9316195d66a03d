// What memory there is for a model whose experts are read from a disk, or from the host's memory to
// a GPU's, and where keys and values of a batch lie on a disk, too: as its plan says, or as suits
// the batch (choose_batch.h). Nothing is opened or reserved here.
#pragma once

#include "base/result.h"
#include "device/device.h"
#include "engine/load_options.h"
#include "engine/memory_plan.h"
#include "memory/ledger.h"
#include "model/model_spec.h"
#include "runtime/formats.h"

namespace convene::engine {

// Error: why a plan with spilled_kv cannot be executed so, and what to change. `has_pages`: experts
// can be read from a disk. Precondition: the plan has that.
Status CanSpillAsPlanned(const model::ModelSpec& spec, const LoadOptions& options, bool has_pages);

// With the number of sequences and the tokens of a step that suit the batch, if there is one.
// Precondition: CanSpillAsPlanned, where the plan spills. Errors: as PlanPagedMemoryOf and
// PlanSpilledMemoryOf.
Result<MemoryPlan> PlanPages(const device::DeviceBytes& device, const model::ModelSpec& spec,
                             const LoadOptions& options, const runtime::Formats& formats,
                             int num_threads, memory::Ledger& ledger);

}  // namespace convene::engine
