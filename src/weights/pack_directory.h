// Packs a checkpoint into a packed directory (packed_directory.h), page by page: only the pages in
// work are in memory, so that a model larger than memory can be packed, too.
#pragma once

#include <string>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "hardware/thread_pool.h"
#include "memory/ledger.h"
#include "weights/model_weights.h"
#include "weights/share.h"
#include "weights/tensor_digests.h"

namespace convene::weights {

struct PackTarget {
  std::string directory;
  Share parts = {};  // of heads and experts, that the matrices are cut to (PartsOf); whole ones
  // Whether what an earlier call has left there, of the same checkpoint and formats, is continued,
  // and stays there if this one does not come to its end. Otherwise the directory must not exist or
  // be empty, and is complete or gone.
  bool resumes = false;
  // How the error of a disk without room ends: what to change.
  std::string remedy = "choose another directory or a smaller format";
};

// By which what was made of a checkpoint is known to be of it: its files of weights, and what its
// configurations say, which the directory has copies of.
std::string SourceOfPages(const checkpoint::Checkpoint& checkpoint);

// Writes the weights of all of the checkpoint in these formats and copies its other files. What is
// in work is reserved in `ledger`; pages of the checkpoint's files are dropped behind it. Progress
// is in bytes of the packed file. Returns those. Errors: of the disk; memory that cannot be had;
// parts that the model does not fit; weights that are NaN or infinite (names the tensor); files
// that were written to meanwhile.
Result<uint64_t> PackDirectory(const checkpoint::Checkpoint& checkpoint,
                               const WeightFormats& formats, const PackTarget& target,
                               hardware::ThreadPool& pool, memory::Ledger& ledger,
                               const LoadProgress& progress);

}  // namespace convene::weights
