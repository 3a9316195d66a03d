// What LoadOptions mean for this rank: its share of the model, how its transformer is made, and the
// memory that both need. Nothing is opened or reserved here.
#pragma once

#include "base/result.h"
#include "device/device.h"
#include "engine/load_options.h"
#include "engine/memory_plan.h"
#include "model/model_spec.h"
#include "runtime/formats.h"
#include "runtime/transformer.h"
#include "weights/share.h"

namespace convene::engine {

weights::Share ShareOf(const LoadOptions& options);

// Without what is known only once the memory is planned: the KV blocks and the measured choices.
runtime::TransformerOptions TransformerOptionsOf(const LoadOptions& options,
                                                 const runtime::Formats& formats, int context);

// What steps of a share of a model take; where the pipeline is still to be chosen, enough for
// whatever is chosen.
memory::Amounts StepBytesOf(const device::DeviceBytes& device, const model::ModelSpec& share,
                            runtime::TransformerOptions parts, const plan::Plan& plan,
                            int num_threads);

// What this rank's share of `spec`, the whole model, needs in `formats` on such a device, held
// against what `ledger` has. Errors: as PlanMemory; a share that the model cannot be divided into.
Result<MemoryPlan> PlanMemoryOf(const device::DeviceBytes& device, const model::ModelSpec& spec,
                                const LoadOptions& options, const runtime::Formats& formats,
                                int num_threads, memory::Ledger& ledger);
// What a budget that was given leaves of a tier: of all that the process has, so less what it has
// already.
void LimitTo(std::optional<uint64_t> memory_budget, memory::Tier* tier);

// What a rank that has not begun to load will have of such a budget, of which the program takes a
// part.
uint64_t LeftOfBudget(uint64_t memory_budget);

// The plan as ranks execute it whose experts are read from a disk: in the chunks that are read
// (strategy::PipelineOf), which each step has of itself.
plan::Plan PagedPlan(plan::Plan plan);

// The same of another rank, for plans of ranks that were not started.
Result<MemoryPlan> PlanMemoryOfRank(int rank, const device::DeviceBytes& device,
                                    const model::ModelSpec& spec, const LoadOptions& options,
                                    const runtime::Formats& formats, int num_threads,
                                    memory::Ledger& ledger);

// What a rank needs for steps of any number of sequences and tokens: what these have in common is
// counted once, since whoever chooses them asks for hundreds.
class RankNeeds {
 public:
  // Errors: a share that the model cannot be divided into; a model that the device cannot compute.
  static Result<RankNeeds> Create(int rank, const device::DeviceBytes& device,
                                  const model::ModelSpec& spec, const LoadOptions& options,
                                  const runtime::Formats& formats, int num_threads);

  MemoryNeeds With(int max_sequences, int max_step_tokens) const;

 private:
  RankNeeds() = default;

  device::DeviceBytes device_ = {};
  model::ModelSpec widest_ = {};  // without tensors
  runtime::TransformerOptions parts_ = {};
  plan::Plan plan_ = {};
  int num_threads_ = 1;
  bool draws_tokens_ = false;  // of all ranks, on the host
  MemoryNeeds common_ = {};    // without what steps take
};

}  // namespace convene::engine
