// What a model will take of memory: reservations in a rank's ledger, tried before anything is
// loaded. It allocates nothing: whoever does makes them again.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "base/result.h"
#include "memory/ledger.h"

namespace convene::engine {

struct MemoryNeeds {
  memory::Amounts fixed = {};     // all but the KV cache and the program
  uint64_t kv_block_bytes = 0;    // over all layers
  int context = 0;                // the longest sequence, in tokens
  int max_sequences = 1;          // that run at the same time
  int contexts_per_sequence = 1;  // 2: an encoder's input beside the answer
  int blocks_per_sequence = 0;    // that one will take; 0: those of its contexts
  std::string besides = {};       // what else could be left out, as words for people
  // The KV cache takes no more than this, or one context.
  uint64_t most_kv_bytes = std::numeric_limits<uint64_t>::max();
};

struct MemoryPlan {
  memory::Amounts bytes = {};
  uint64_t available_bytes = 0;
  int context = 0;
  int num_kv_blocks = 0;  // in memory
  // Beside them on a disk, and the buffers that these go through (runtime/spilled_kv.h), which are
  // a part of the KV cache's bytes; 0: all are in memory.
  int num_spilled_blocks = 0;
  int spill_part_blocks = 0;  // of a buffer
  int spill_depth = 0;        // buffers
  uint64_t spill_file_bytes = 0;
  // Buffers for pages of experts, which then do not lie in memory all (weights/paged_weights.h); 0:
  // they do.
  int num_page_buffers = 0;
  bool has_all_pages = false;  // as many as there are
  // Of several ranks the fewest of one that has not all; 0: one rank, or all have.
  int least_page_buffers = 0;
  // Above 0: experts go through a GPU's memory layer by layer in steps of so many micro-batches,
  // and keys and values are the host's (plan_offload.h): of num_kv_blocks there, so many bytes.
  int offload_micro_batches = 0;
  uint64_t host_kv_bytes = 0;
  // Where both were chosen (choose_batch.h); 0: as asked.
  int max_sequences = 0;
  int max_step_tokens = 0;
  std::string batch_words = {};  // what was chosen, for people; empty: nothing was
  double batch_seconds = 0;      // for each generated token, as it was priced; 0: it was not

  int all_kv_blocks() const { return num_kv_blocks + num_spilled_blocks; }
  double spilled_share() const {
    return num_spilled_blocks == 0 ? 0 : static_cast<double>(num_spilled_blocks) / all_kv_blocks();
  }
  uint64_t weights_bytes() const { return bytes[memory::Use::kWeights]; }
  uint64_t kv_bytes() const { return bytes[memory::Use::kKvCache]; }
  // What steps work in, exchanges among it, and the program itself.
  uint64_t working_bytes() const { return bytes.total() - weights_bytes() - kv_bytes(); }
  uint64_t needed_bytes() const { return bytes.total(); }
  // "needed 14.1 GiB (weights 12.9 GiB, KV cache 1.00 GiB, working memory 0.2 GiB), available 20
  // GiB"
  std::string Describe() const { return bytes.Describe(available_bytes); }

  // Other ranks may have room for fewer. Precondition: nothing is spilled.
  void SetKvBlocks(int count) {
    bytes[memory::Use::kKvCache] = kv_bytes() / static_cast<uint64_t>(num_kv_blocks) * count;
    num_kv_blocks = count;
  }
};

// Tokenizer, thread stacks, the program itself and what the allocator holds back.
inline constexpr uint64_t kProgramBytes = uint64_t{32} << 20;

// KV blocks for `max_sequences` full contexts, or for as many as fit but at least one. Nothing of
// it stays reserved: until the KV cache and the memory of steps are allocated, loading may use
// their room for what it needs for a while. Error: not even one fits; says how much is needed and
// there, and what to change.
Result<MemoryPlan> PlanMemory(const MemoryNeeds& needs, memory::Ledger& ledger);

}  // namespace convene::engine
