// The work that `convene bench` times: prompts and answers of random tokens, run on a transformer
// without tokenizer, sampling or prefix reuse. Where experts move between prefill and decode, they
// have moved before a step is timed.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/loaded_model.h"

namespace convene::evaluate {

// One step, or several together.
struct Work {
  double seconds = 0;
  double flops = 0;  // executed
  double bytes = 0;  // of weights and KV cache read, each once per step
  int64_t tokens = 0;
  double expert_flops = 0;  // of these in the products of routed experts
  double expert_seconds = 0;
  double load_seconds = 0;  // of `seconds`, while the lane that reads weights from a disk was busy
};

Work& operator+=(Work& total, const Work& work);

struct WorkloadShape {
  int prompt_tokens = 512;  // of each sequence
  int gen_tokens = 64;
  int batch = 1;  // sequences
};

class BenchWorkload {
 public:
  // KV cache blocks that the workload needs of each group of ranks.
  static int64_t BlocksFor(const model::ModelSpec& spec, const WorkloadShape& shape,
                           int num_groups);

  // Token ids are uniform and different for each sequence. Uses the first blocks of the model's KV
  // cache, which must have BlocksFor(shape) (CHECK).
  BenchWorkload(engine::LoadedModel& model, const WorkloadShape& shape, uint64_t seed);

  // All prompts in steps of the model's max_step_tokens; logits of each prompt's last token. Of an
  // encoder-decoder: the encoder over all prompts, whole ones in a step.
  // Errors of this and Decode: those of Transformer's steps.
  Result<Work> Prefill();

  // gen_tokens steps of one token for each sequence with its logits, after a prefill; each time
  // the same positions.
  Result<std::vector<Work>> Decode();

  // Whether any logits were NaN or infinite, as random weights may make them; of each step one
  // sequence's are looked at.
  bool met_not_finite() const { return met_not_finite_; }

 private:
  Result<Work> Encode();
  // Outside of what is timed.
  Status MoveExperts(strategy::Phase phase);
  template <typename F>
  Result<Work> RunStep(F&& run);
  Result<Work> Forward(std::span<const device::SequenceStep> step);
  int GroupOf(int sequence_idx) const { return sequence_idx % model_.num_groups(); }
  // Tokens of a sequence before those that Decode computes.
  int first_decoded() const;
  device::SequenceStep StepOf(int sequence_idx, int first_position, int num_tokens) const;

  engine::LoadedModel& model_;
  WorkloadShape shape_;
  std::vector<std::vector<int32_t>> tokens_;  // of each sequence: prompt, then answer
  std::vector<std::vector<int32_t>> blocks_;
  std::vector<std::vector<int32_t>> inputs_;  // of the encoder, where there is one
  std::vector<std::vector<int32_t>> input_blocks_;
  int64_t num_steps_ = 0;
  bool met_not_finite_ = false;
};

}  // namespace convene::evaluate
