// How many sequences of a batch run together, how many tokens a step has, and what of keys and
// values lies on a disk, where experts are read from one: the part of MoE-Lightning's policy (Cao
// et al. 2024, section 4.2: batch, and what of memory is for weights and for the KV cache) that is
// executed here. A step reads weights once for all its tokens, those that memory has no room for
// from the disk, so many sequences share it; but each of them takes memory for keys and values, and
// each token of a step for rows, in which experts could stay.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "engine/batch_price.h"
#include "engine/batch_work.h"
#include "engine/memory_plan.h"
#include "model/model_spec.h"

namespace convene::engine {

struct BatchChoice {
  int max_sequences = 1;
  int max_step_tokens = 1;
  MemoryPlan memory;
  BatchPrice price;

  // "352 sequences at a time in steps of at most 2,048 tokens ...", as a line for people.
  std::string Describe(const BatchRates& rates) const;
};

struct BatchQuestion {
  const model::ModelSpec& spec;
  const BatchWork& work;
  // What is usual: it is taken where it may not be chosen, and where others gain nothing that
  // counts.
  int max_sequences = 1;
  int max_step_tokens = 1;
  BatchBytes bytes = {};
  BatchRates rates = {};
  // What memory there is for experts beside so many sequences and step tokens.
  std::function<Result<MemoryPlan>(int max_sequences, int max_step_tokens)> plan;
  // The same where keys and values are on a disk but for those that get `kv_share` of what is left
  // of memory (PagedMemory::Spilled). Empty: they stay in memory.
  std::function<Result<MemoryPlan>(int max_sequences, int max_step_tokens, double kv_share)>
      plan_spilled = {};
  // That keys and values may take of the disk, and where.
  uint64_t disk_bytes = 0;
  std::string disk_directory = {};
};

struct ChosenBatch {
  BatchChoice best;
  // One that would take less time if the disk had the room.
  std::optional<BatchChoice> beyond_disk = {};
};

// The choice of the least price. Plans with room for fewer sequences are passed over, unless no
// other one fits. Error: where none fits, that of the smallest: of the fewest step tokens, and of
// these the fewest sequences.
Result<ChosenBatch> ChooseBatch(const BatchQuestion& question);

// Error: keys and values of so many sequences take more of the disk than there is; says what to
// change.
Status CheckDisk(const MemoryPlan& memory, int max_sequences, uint64_t disk_bytes,
                 const std::string& directory);

}  // namespace convene::engine
