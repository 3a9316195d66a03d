// What a batch takes with so many sequences and step tokens, where its weights lie in memory or on
// a disk: what it moves from and to the disk, what it reads of memory and what it computes, each at
// its rate. Disk and cores work at the same time as far as memory has room for what is read ahead.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "cost/machine_profile.h"
#include "engine/batch_work.h"
#include "engine/memory_plan.h"
#include "model/model_spec.h"

namespace convene::engine {

// Of this process, where "disk" is also the memory of a GPU's host.
struct BatchRates {
  double disk_bytes_per_second = 0;
  double memory_bytes_per_second = 0;  // of weights that steps read
  double operations_per_second = 0;
  bool are_measured = false;
};

// Those of a machine that nobody has measured: what matters to a choice is how they compare, and
// that is alike on most.
BatchRates UsualRates(bool is_gpu);

// Those of the fastest tier of a profile, and of the one below it, as far as steps reach them;
// `share` of the machine's cores compute. None: the profile lacks one of them.
std::optional<BatchRates> RatesOf(const cost::MachineProfile& profile, std::string_view format,
                                  double share);

struct BatchBytes {
  uint64_t page = 0;      // of an expert
  uint64_t kv_block = 0;  // of all layers
  // Of weights that a step of one token reads, its chosen experts among them.
  uint64_t step = 0;
};

// For each generated token.
struct BatchPrice {
  double moved_bytes = 0;  // from the disk and to it, on even routing
  double seconds = 0;
};

// Whether a price is so much lower that it counts: they are no better than that.
inline bool IsClearlyLess(double seconds, double than) { return seconds < 0.95 * than; }

class BatchPricer {
 public:
  // Keeps references to the first two.
  BatchPricer(const model::ModelSpec& spec, const BatchWork& work, const BatchBytes& bytes,
              const BatchRates& rates);

  // In such memory. Where it has room for fewer sequences, these run. Experts without pages
  // (MemoryPlan::num_page_buffers of 0) are all in memory.
  BatchPrice PriceOf(int max_sequences, int max_step_tokens, const MemoryPlan& memory) const;

 private:
  // Steps that have so many tokens each.
  struct Steps {
    double count = 0;
    double tokens = 0;
  };
  std::vector<Steps> StepsWith(int max_sequences, int max_step_tokens,
                               const MemoryPlan& memory) const;
  double MovedKvBlocks(int max_step_tokens, const MemoryPlan& memory) const;

  const model::ModelSpec& spec_;
  const BatchWork& work_;
  BatchBytes bytes_;
  BatchRates rates_;
  double operations_ = 0;      // of a token, on average
  double kv_blocks_read_ = 0;  // by all steps that generate
};

}  // namespace convene::engine
