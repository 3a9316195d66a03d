// How a model is computed on this rank: the sizes of steps, formats, and how ranks share the work.
// What is computed is the model's spec.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/wire_format.h"
#include "kernels/kernel_set.h"
#include "memory/spill_file.h"
#include "model/model_spec.h"
#include "runtime/experiment.h"
#include "strategy/role.h"
#include "strategy/step.h"
#include "strategy/step_load.h"

namespace convene::runtime {

// How ranks share the work (strategy/), and what this one's part is.
struct ParallelOptions {
  strategy::Roles roles = {};
  // Of steps of generated tokens alone, where experts are divided otherwise in these; the weights
  // are then weights::PhasedWeights.
  std::optional<strategy::Roles> decode_roles = {};
  // Whether the experts come to decode's division from a backup in int4 (weights/expert_backup.h),
  // which MakeBackup makes, and back from what each rank has kept.
  bool loads_experts = false;
  strategy::Pipeline pipeline = {};
  // Of a step with such a load, where each has a pipeline of its own: the same on all ranks, with
  // no more micro-batches and chunks than `pipeline`. Empty: all steps of the decoder have
  // `pipeline`.
  std::function<strategy::Pipeline(const strategy::StepLoad&)> pipeline_of = {};
  // Steps of fewer tokens, over all groups, are not cut into chunks: what a chunk costs by itself
  // is more than it hides.
  int chunks_from_tokens = 0;
  int micro_batches_from_tokens = 0;  // nor those of fewer than these into micro-batches
  // Of rows on their way between ranks; float32 loses nothing.
  comm::WireFormat wire = comm::WireFormat::kBf16;
  bool returns_fp8 = false;  // the sums that experts return, too, where `wire` is kE4m3
  // Threads that stay away from products while an exchange is under way.
  int comm_budget = 0;
  // CPUs of the host lane, beside those of the pool; none: it has none of its own.
  std::vector<int> host_cpus = {};
  Experiment experiment = {};  // nothing in production
  // Whether rank 0 is told of each step when all ranks' tasks ran, and sizes (ObserveSteps).
  bool record = false;
  comm::Group* group = nullptr;  // of roles.num_ranks() ranks; null: this process alone
  // Which rank this is where there is no group: of memory that is planned before ranks start.
  int rank_without_group = 0;
  // The model as all ranks together have it, where the weights are a share of it; outlives the
  // transformer.
  const model::ModelSpec* whole_spec = nullptr;

  // In both phases: which form a position has may not depend on when it is computed.
  void ExpandFrom(int tokens) {
    roles = roles.ExpandingFrom(tokens);
    if (decode_roles) decode_roles = decode_roles->ExpandingFrom(tokens);
  }
  const strategy::Roles& RolesIn(strategy::Phase phase) const {
    return phase == strategy::Phase::kDecode && decode_roles ? *decode_roles : roles;
  }
  // As this rank sees them, where each has some of the layers.
  strategy::Roles SeenRoles() const { return roles.SeenFrom(rank()); }
  int rank() const { return group != nullptr ? group->rank() : rank_without_group; }
  const model::ModelSpec& WholeOf(const model::ModelSpec& share) const {
    return whole_spec != nullptr ? *whole_spec : share;
  }
};

// Where keys and values lie on a disk as far as they have no room in memory (spilled_kv.h).
struct KvSpillOptions {
  std::string directory = {};
  int num_blocks = 0;  // on the disk: their numbers come behind those in memory
  // Sequences of a step have their blocks in buffers of so many blocks, of which there are `depth`:
  // at least those of the longest sequence.
  int part_blocks = 0;
  int depth = 2;
  memory::SpillFile::Options file = {};
};

struct TransformerOptions {
  int max_step_tokens = 512;  // over all sequences of a step
  int num_kv_blocks = 0;      // in memory
  int context = 0;            // of the longest sequence, in tokens; 0: what num_kv_blocks hold
  kernels::ActivationFormat activations = kernels::ActivationFormat::kBf16;
  kernels::KvFormat kv = kernels::KvFormat::kBf16;
  // Rows per expert from which on experts are computed one after the other; 0: never. It changes
  // no result.
  int dense_from_rows = 0;
  // Most tokens of a prompt that an expert takes; 0: any number (expert_capacity.h). Sequences then
  // share no blocks.
  int expert_capacity = 0;
  // The last layer goes on with the rows whose logits are wanted alone, from its scores on; not
  // where experts have a capacity, since other rows may take their places.
  bool prunes_last_layer = true;
  bool prunes() const { return prunes_last_layer && expert_capacity == 0; }
  std::optional<KvSpillOptions> kv_spill = {};  // unset: all keys and values are in memory
  ParallelOptions parallel = {};
};

}  // namespace convene::runtime
