// What the strategies of hybrid parallelism need of a rank's memory, counted from shapes: HAP's
// rows, KV cache + weights of attention and whatever all ranks have + weights of experts +
// activations. An estimate for a machine that may not be here; what a rank really reserves is
// memory/ledger.h's.
#pragma once

#include "model/model_spec.h"
#include "planner/hybrid_costs.h"

namespace convene::planner {

// Elements of the weights of a group of 4 bits with its scale: 4.25 bits each.
inline constexpr double kInt4Bytes = 4.25 / 8;
// And with the room for outliers that a backup reserves: one of 4 bytes for each group of 32
// (weights/backup_matrix.h). Few of them are used, so what is uploaded is counted without.
inline constexpr double kInt4BackupBytes = kInt4Bytes + 4.0 / 32;

// Bytes of a rank, the one that has most.
struct AttentionBytes {
  double weights = 0;  // of attention, and of all that every rank has whole
  double kv = 0;       // of the group's sequences at their full length; copied KV heads and latents
                       // count on each rank that has them
  double prefill_activations = 0;
  double decode_activations = 0;
};
AttentionBytes BytesOf(const model::ModelSpec& spec, const AttentionStrategy& strategy,
                       const strategy::ElementBytes& bytes, const PhaseStep& prefill,
                       const PhaseStep& decode, double longest_sequence);

struct ExpertBytes {
  double weights = 0;
  double prefill_activations = 0;  // with expert parallelism twice, for ranks that get more rows
  double decode_activations = 0;
};
ExpertBytes BytesOf(const model::ModelSpec& spec, const ExpertStrategy& strategy,
                    const strategy::ElementBytes& bytes, const PhaseStep& prefill,
                    const PhaseStep& decode);

// Of the whole model: what Layout::divides_head and Layout::divides_shared divide.
double HeadElements(const model::ModelSpec& spec);
double SharedElements(const model::ModelSpec& spec);

// Of all experts of the model, in the host's backup of 4 bits and outliers.
double Int4BackupBytes(const model::ModelSpec& spec);

}  // namespace convene::planner
