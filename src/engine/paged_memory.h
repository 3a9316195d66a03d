// What memory there is for a rank whose routed experts lie on a disk as far as they have no room
// (weights/paged_weights.h), and keys and values of a batch, too, if they are to. Nothing is opened
// or reserved here. How many sequences and step tokens suit a batch is choose_batch.h.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "device/device.h"
#include "engine/load_options.h"
#include "engine/memory_plan.h"
#include "engine/rank_options.h"
#include "memory/ledger.h"
#include "model/model_spec.h"
#include "runtime/formats.h"
#include "weights/page_index.h"

namespace convene::engine {

// Any number of sequences and step tokens may be asked of one: what they have in common is counted
// once. Preconditions: plan::CanPage; LoadOptions::batch_work outlives it.
class PagedMemory {
 public:
  // Errors: as RankNeeds::Create.
  static Result<PagedMemory> Create(const device::DeviceBytes& device, const model::ModelSpec& spec,
                                    const LoadOptions& options, const runtime::Formats& formats,
                                    int num_threads);

  // Keys and values stay in memory, and MemoryPlan::num_page_buffers experts. Error: too little
  // memory for the least that is worked with; says how much that is.
  Result<MemoryPlan> InMemory(int max_sequences, int max_step_tokens, memory::Ledger& ledger) const;

  // Keys and values of so many sequences lie on a disk but for those that get `kv_share` of what
  // memory has left beside the least of everything: MemoryPlan::num_spilled_blocks; the rest is for
  // experts. Where the plan says how (plan::SpilledKv), it is done so in place of what is wished,
  // with fewer experts or blocks in memory where there is no room for as many. Precondition:
  // LoadOptions::batch_work, one rank. Error: too little memory for that; names the least with
  // which the step tokens can be computed, with keys and values on the disk or not.
  Result<MemoryPlan> Spilled(int max_sequences, int max_step_tokens, double kv_share,
                             memory::Ledger& ledger) const;

  const weights::PagedSizes& sizes() const { return sizes_; }

 private:
  PagedMemory(RankNeeds needs, const LoadOptions& options);

  RankNeeds needs_;
  plan::Plan plan_;
  std::optional<BatchWork> work_;
  bool has_device_budget_ = false;
  weights::PagedSizes sizes_ = {};
  uint64_t slot_bytes_ = 0;  // of a block of keys and values of a layer, on the disk
  int num_layers_ = 0;
};

// Of the options' own numbers.
Result<MemoryPlan> PlanPagedMemoryOf(const device::DeviceBytes& device,
                                     const model::ModelSpec& spec, const LoadOptions& options,
                                     const runtime::Formats& formats, int num_threads,
                                     memory::Ledger& ledger);
Result<MemoryPlan> PlanSpilledMemoryOf(const device::DeviceBytes& device,
                                       const model::ModelSpec& spec, const LoadOptions& options,
                                       const runtime::Formats& formats, int num_threads,
                                       double kv_share, memory::Ledger& ledger);

}  // namespace convene::engine
