// A checkpoint of which not all experts have room in memory, packed once into a directory below
// --page-dir, from which they are read while the model runs (weights/paged_weights.h).
#pragma once

#include <cstdint>

#include "checkpoint/checkpoint.h"
#include "comm/group.h"
#include "engine/load_options.h"
#include "engine/model_source.h"
#include "hardware/thread_pool.h"
#include "memory/ledger.h"
#include "weights/model_weights.h"

namespace convene::engine {

struct PagesRequest {
  const LoadOptions& options;
  const weights::WeightFormats& formats;
  const LoadObserver& observer;
  hardware::ThreadPool& pool;
  memory::Ledger& ledger;  // has what is in work meanwhile
};

// Packs the parts of the checkpoint that the rank computes with (weights::PartsOf), unless that was
// done before, and makes these pages the source. Precondition: the source is a checkpoint, and
// there is a page directory. Errors: it lies in memory itself; those of PackDirectory.
Status MakePages(const PagesRequest& request, ModelSource* source);

// What MakePages will still take of the disk: 0 where it was done before, or another run has begun
// it, which reserves all at once.
uint64_t PagesToMakeBytes(const LoadOptions& options, const checkpoint::Checkpoint& checkpoint,
                          const weights::WeightFormats& formats);

// *Collective.* One rank after the other, so that those of a host find what the first one has made.
// `group`: null, or several ranks. Errors: also that pages of the same parts differ between ranks.
Status MakePagesInTurn(comm::Group* group, const PagesRequest& request, ModelSource* source);

}  // namespace convene::engine
