// A step as it is timed and predicted: so many sequences, each with some new tokens behind a
// context that lies in the cache already.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/kv_cache.h"
#include "device/step_inputs.h"
#include "strategy/attention_sizes.h"
#include "strategy/role.h"

namespace convene::evaluate {

struct StepCase {
  int batch = 1;    // sequences, over all groups of ranks in turn
  int tokens = 1;   // new ones of each
  int context = 0;  // tokens of each before them

  // One new token behind a context is a generated one, others belong to a prompt.
  bool is_decode() const { return tokens == 1 && context > 0; }
  int prompt_length() const { return is_decode() ? context : context + tokens; }
  int num_tokens() const { return batch * tokens; }
  bool operator==(const StepCase&) const = default;
};

// "decode of 8 behind 512", "prefill of 512 behind 0"
std::string Describe(const StepCase& step_case);

// Blocks of the KV cache that a group needs for its sequences of the case.
int NumKvBlocks(const StepCase& step_case, int num_groups);

// Most tokens that a group has in the case.
int TokensOfGroup(const StepCase& step_case, int num_groups);

// For the prediction: by group, in the order of the step.
std::vector<std::vector<strategy::SequenceRows>> RowsOf(const StepCase& step_case,
                                                        const strategy::Roles& roles);

// For the run: sequences with random tokens, each with blocks of its own.
class CaseSequences {
 public:
  CaseSequences(const StepCase& step_case, int num_groups, int vocab_size, uint64_t seed);

  std::span<const device::SequenceStep> step() const { return step_; }

 private:
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<std::vector<int32_t>> blocks_;
  std::vector<device::SequenceStep> step_;
};

// Writes all blocks, so that contexts that were never computed are read from memory as others are,
// and hold small numbers.
void WriteCache(device::KvCache& cache);

}  // namespace convene::evaluate
