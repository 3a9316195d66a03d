// What the engine asks who knows or measures what steps cost on its ranks (step_costs_source.h),
// and the answer. What is decided by it is choose_pipeline.h; asking outside of a load is
// ask_for_costs.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/wire_format.h"
#include "cost/step_costs.h"
#include "engine/step_costs_source.h"
#include "hardware/thread_pool.h"
#include "kernels/kernel_set.h"
#include "memory/ledger.h"

namespace convene::engine {

struct CostsRequest {
  comm::Group& group;
  hardware::ThreadPool& pool;  // of this rank
  const kernels::KernelSet& kernels;
  memory::Ledger& ledger;  // for what measuring needs
  kernels::WeightFormat weights = kernels::WeightFormat::kInt8;
  comm::WireFormat wire = comm::WireFormat::kF32;
  bool int8_kv = false;  // attention with keys and values cached in int8 is to be known
};

struct KnownCosts {
  cost::StepCosts ranks;
  // Of one process that has the threads of all ranks, where they are on one host and this is known.
  std::optional<cost::StepCosts> one_process = {};
  std::string source = {};  // where they are from, for people
  // Bytes that each rank may have for a model, where ranks were asked (ask_for_costs.h).
  std::vector<uint64_t> memory_of_ranks = {};
};

}  // namespace convene::engine
