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

// The same of a rank whose routed experts lie on a disk as far as they have no room
// (weights/paged_weights.h): plan->num_page_buffers of them have. Precondition: plan::CanPage.
// Error: too little memory for the least that is worked with; says how much that is.
Result<MemoryPlan> PlanPagedMemoryOf(const device::DeviceBytes& device,
                                     const model::ModelSpec& spec, const LoadOptions& options,
                                     const runtime::Formats& formats, int num_threads,
                                     memory::Ledger& ledger);
// The same of another rank, for plans of ranks that were not started.
Result<MemoryPlan> PlanMemoryOfRank(int rank, const device::DeviceBytes& device,
                                    const model::ModelSpec& spec, const LoadOptions& options,
                                    const runtime::Formats& formats, int num_threads,
                                    memory::Ledger& ledger);

// How keys and values of a batch are to lie on a disk.
struct SpillWish {
  // Of what memory has left beside the least of everything: the part for keys and values that stay
  // there. The rest is for experts.
  double kv_share = 0;
  uint64_t disk_bytes = 0;  // that there are
};
// As PlanPagedMemoryOf, where keys and values of as many sequences as are asked for lie on a disk
// but for those: MemoryPlan::num_spilled_blocks. Where the plan says how (plan::SpilledKv), it is
// done so in place of what is wished, with fewer experts or blocks in memory where there is no room
// for as many. Precondition: LoadOptions::batch_work, one rank. Errors: too little memory for that
// (names the least with which the step tokens can be computed, with keys and values on the disk or
// not), or too little disk.
Result<MemoryPlan> PlanSpilledMemoryOf(const device::DeviceBytes& device,
                                       const model::ModelSpec& spec, const LoadOptions& options,
                                       const runtime::Formats& formats, int num_threads,
                                       const SpillWish& wish, memory::Ledger& ledger);

}  // namespace convene::engine
