// What memory there is for a model whose experts are read from a disk, or from the host's memory to
// a GPU's, and where keys and values of a batch lie on a disk, too: as its plan says, or as suits
// the batch (choose_batch.h), of which also those that would fit memory whole are chosen for here.
// Nothing is opened or reserved.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "device/device.h"
#include "engine/load_options.h"
#include "engine/memory_plan.h"
#include "memory/ledger.h"
#include "model/model_spec.h"
#include "runtime/formats.h"

namespace convene::engine {

struct PagesQuestion {
  const device::DeviceBytes& device;
  const model::ModelSpec& spec;
  const LoadOptions& options;
  const runtime::Formats& formats;
  int num_threads = 1;
  memory::Ledger& ledger;
  // That pages which are still to be made will take of the disk (PagesToMakeBytes).
  uint64_t to_make_bytes = 0;
};

// Error: why a plan with spilled_kv cannot be executed so, and what to change. `has_pages`: experts
// can be read from a disk. Precondition: the plan has that.
Status CanSpillAsPlanned(const model::ModelSpec& spec, const LoadOptions& options, bool has_pages);

// With the number of sequences and the tokens of a step that suit the batch, if there is one.
// Precondition: CanSpillAsPlanned, where the plan spills. Errors: as PagedMemory; too little disk.
Result<MemoryPlan> PlanPages(const PagesQuestion& question);

// The same of a batch whose number of sequences is to be chosen, where a sequence of it fits memory
// beside all weights: whole, unless fewer experts in memory let so many more sequences run that it
// takes less time, with the pages that are to be made. `may_page`: experts can be read from a disk.
// Error: as PlanMemory.
Result<MemoryPlan> PlanWholeOrPages(const PagesQuestion& question, bool may_page);

}  // namespace convene::engine
