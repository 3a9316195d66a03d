// Reads a checkpoint's tensors once, converts and packs them for the kernels. Decides nothing about
// formats: the caller does.
#pragma once

#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "hardware/numa.h"
#include "hardware/thread_pool.h"
#include "memory/ledger.h"
#include "weights/model_weights.h"
#include "weights/share.h"
#include "weights/stored_matrix.h"
#include "weights/tensor_digests.h"

namespace convene::weights {

// Bytes that LoadWeights, or MapWeights, will reserve for this model in these formats, of a rank
// that holds `share` of it. `spec` is LocalSpec of the share, `rooms` are its RoomsOf.
uint64_t PackedSizeBytes(const model::ModelSpec& spec, const WeightFormats& formats,
                         const Share& share = {}, const ExpertRooms& rooms = {});

// Bytes of weights that a decode step of one sequence reads there: of each layer the attention,
// router, dense or shared feed-forward and top_k experts, and the head. Of the experts of a share
// as many as it has on average.
uint64_t DecodeBytes(const model::ModelSpec& spec, const WeightFormats& formats,
                     const Share& share = {});

// Reads what `share` is of the checkpoint, no other rows of its matrices. Packs with all threads of
// `pool`; source pages are dropped behind the packing, so that little more than PackedSizeBytes is
// in memory at any time (pack_batch.h). `edit`, where given, sees every matrix first, whole ones.
// `compared`, where given, gets the digests of what other ranks read, too (compared_bytes.h). Of
// experts that change their division those of prefill are loaded, and the biases of both. The
// weights are reserved in `ledger`, and meanwhile what is mapped of the files and the copies that
// are edited. Errors: those of LocalSpec; memory that cannot be had; weights that are NaN or
// infinite (names the tensor); files that were written to meanwhile.
Result<ModelWeights> LoadWeights(const checkpoint::Checkpoint& checkpoint,
                                 const WeightFormats& formats, const Share& share,
                                 hardware::NumaPolicy numa, hardware::ThreadPool& pool,
                                 memory::Ledger& ledger, const LoadProgress& progress,
                                 const MatrixEdit& edit = {},
                                 std::vector<NamedDigest>* compared = nullptr);

}  // namespace convene::weights
