// How many sequences of a batch run together, how many tokens a step has, and what of keys and
// values lies on a disk, where experts are read from one: the part of MoE-Lightning's policy (Cao
// et al. 2024, section 4.2: batch, and what of memory is for weights and for the KV cache) that is
// executed here. A step reads what memory has no room for once for all its tokens, so many
// sequences share it; but each of them takes memory for keys and values, and each token of a step
// for rows, in which experts could stay.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "engine/memory_plan.h"
#include "model/model_spec.h"

namespace convene::engine {

// Requests that are all there at once.
struct BatchWork {
  int64_t num_requests = 1;
  double prompt_tokens = 1;  // of a request, on average
  double gen_tokens = 1;     // likewise, at least 1
  int longest = 0;  // tokens of the longest with its answer; 0: as long as the context may be
  // What may be chosen; otherwise it is as in LoadOptions.
  bool chooses_sequences = false;
  bool chooses_step_tokens = false;
};

// KV blocks that a sequence of the work takes, on average, with the one that the scheduler wants to
// be free before it lets another sequence in. Where all requests are alike, that one is among those
// which a sequence fills later.
int BlocksOfSequence(const BatchWork& work);

// Steps until all requests are answered: as many as generate, `max_sequences` at a time, behind
// those that read the first prompts; or as all tokens fill, if these are more.
double StepsOf(const BatchWork& work, int max_sequences, int max_step_tokens);

struct BatchChoice {
  int max_sequences = 1;
  int max_step_tokens = 1;
  MemoryPlan memory;
  // From the disk and to it, for each generated token, on even routing.
  double moved_bytes_per_token = 0;

  // "352 sequences at a time in steps of at most 2,048 tokens ...", as a line for people.
  std::string Describe() const;
};

// What keys and values on a disk add to what a batch moves.
struct SpillCosts {
  uint64_t block_bytes = 0;  // of all layers
  // What memory there is where keys and values are on a disk but for those that get `kv_share` of
  // what is left of it (SpillWish). Empty: they stay in memory.
  std::function<Result<MemoryPlan>(int max_sequences, int max_step_tokens, double kv_share)> plan =
      {};
};

// The choice that moves the fewest bytes per generated token. `max_sequences` and `max_step_tokens`
// are what is usual: they are taken where they may not be chosen, and where others gain less than
// 2 %. `plan` says what memory there is for experts beside so many sequences and step tokens; plans
// with room for fewer sequences are passed over, unless no other one fits. Error: where none fits,
// that of the smallest: of the fewest step tokens, and of these the fewest sequences.
Result<BatchChoice> ChooseBatch(
    const model::ModelSpec& spec, const BatchWork& work, int max_sequences, int max_step_tokens,
    uint64_t page_bytes,
    const std::function<Result<MemoryPlan>(int max_sequences, int max_step_tokens)>& plan,
    const SpillCosts& spill = {});

}  // namespace convene::engine
