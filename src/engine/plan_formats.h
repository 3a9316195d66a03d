// The formats of a model that is loaded, and the memory that it takes in them: all of it in memory,
// its experts in pages (plan_pages.h), or, of a batch on a GPU, layer by layer (plan_offload.h).
// Nothing is reserved here.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "engine/choose_formats.h"
#include "engine/load_options.h"
#include "memory/ledger.h"
#include "model/model_spec.h"
#include "weights/model_weights.h"

namespace convene::engine {

// Whether experts may stay on the disk, or in the memory of a GPU's host, as far as they do not
// fit, or are leased page by page even where all of them fit.
enum class Pages { kNever, kWhereNeeded, kAlways };

struct FormatQuestion {
  const model::ModelSpec& spec;  // the whole model
  int num_threads = 1;
  memory::Ledger& ledger;   // of the memory of what computes
  uint64_t host_bytes = 0;  // that the host beside a GPU has
  // That pages in these formats, which are still to be made, will take of the disk; empty: none
  // are to be made.
  std::function<uint64_t(const weights::WeightFormats&)> pages_to_make_bytes = {};
};

// *Collective* where there are several ranks: all of them get the same formats. Error: nothing that
// may be chosen fits; says what is needed and there, and what to change.
Result<ChosenFormats> PlanFormats(const FormatQuestion& question, const LoadOptions& options,
                                  Pages pages);

}  // namespace convene::engine
