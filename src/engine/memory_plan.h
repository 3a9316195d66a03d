// What a model will take of memory, held against what there is, before anything is loaded.
// It reserves nothing.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace convene::engine {

struct MemoryRequest {
  uint64_t weights_bytes = 0;
  uint64_t kv_block_bytes = 0;  // over all layers
  uint64_t activation_bytes = 0;
  int context = 0;                // the longest sequence, in tokens
  int max_sequences = 1;          // that run at the same time
  int contexts_per_sequence = 1;  // 2: an encoder's input beside the answer
  uint64_t available_bytes = 0;
  std::string limited_by;  // what sets that, as in hardware::AvailableMemory
};

struct MemoryPlan {
  uint64_t weights_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t working_bytes = 0;  // activations, and a little for the program itself
  uint64_t available_bytes = 0;
  int context = 0;
  int num_kv_blocks = 0;

  uint64_t needed_bytes() const { return weights_bytes + kv_bytes + working_bytes; }
  // "needed 14.1 GiB (weights 12.9 GiB, KV cache 1.00 GiB, working memory 0.2 GiB), available 20
  // GiB"
  std::string Describe() const;
};

// KV blocks for `max_sequences` full contexts, or for as many as fit but at least one.
// Error: not even one fits; says how much is needed and there, and what to change.
Result<MemoryPlan> PlanMemory(const MemoryRequest& request);

}  // namespace convene::engine
