// Where pages of a checkpoint lie below --page-dir, and which of them nobody reads any more. Making
// them is make_pages.h.
#pragma once

#include <string>

#include "checkpoint/checkpoint.h"
#include "engine/load_options.h"
#include "weights/model_weights.h"

namespace convene::engine {

// Where this checkpoint in these formats is packed, as far as the rank computes with it. The name
// has what changes with the checkpoint's files, but nothing that the system may number anew.
std::string PagesOf(const LoadOptions& options, const checkpoint::Checkpoint& checkpoint,
                    const weights::WeightFormats& formats);

// About directories beside `pages`, a name that PagesOf has given, which are of the same checkpoint
// as it was before its files were changed, or of another version of convene: which ones, how much
// they take, and that they can be removed. Empty: there are none. Such that somebody packs into
// just now are left out.
std::string DescribeStalePages(const std::string& pages);

}  // namespace convene::engine
