// Executes forward passes of a decoder: several sequences of different length in one step, over a
// paged KV cache. It does not choose what to run nor pick tokens: that is engine/.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "comm/group.h"
#include "comm/wire_format.h"
#include "hardware/thread_pool.h"
#include "kernels/kernel_set.h"
#include "memory/ledger.h"
#include "runtime/experiment.h"
#include "runtime/formats.h"
#include "runtime/recorded_step.h"
#include "schedule/timeline.h"
#include "strategy/step.h"
#include "weights/weight_store.h"

namespace convene::runtime {

class KvCache;

// Positions in one block of the KV cache.
inline constexpr int kKvBlockTokens = 64;

// What one sequence contributes to a step.
struct SequenceStep {
  std::span<const int32_t> tokens;  // at least one
  int first_position = 0;           // of tokens[0]
  // Block i holds positions [64 i, 64 i + 64); covers first_position + tokens.size() positions.
  // Blocks that hold earlier positions were written by earlier steps and are not changed.
  std::span<const int32_t> blocks;
  int prompt_length = 0;       // in tokens; RoPE's length of the positions before it (model/rope.h)
  int first_logits_token = 0;  // logits are wanted for tokens[first_logits_token ...]
  // Of an encoder-decoder: the blocks and the length of the input, which Encode has seen.
  std::span<const int32_t> encoder_blocks = {};
  int encoder_length = 0;
  // Of the ranks that compute attention for this sequence; blocks are those of its cache.
  int group = 0;
};

// An input of an encoder, whole.
struct EncoderInput {
  std::span<const int32_t> tokens;  // at least one
  // Block i holds positions [64 i, 64 i + 64): afterwards the keys and values that the decoder's
  // layers attend to.
  std::span<const int32_t> blocks;
  int group = 0;  // as SequenceStep
};

// The encoder's output (hidden) float32 for tokens[token_idx] of input `input_idx`; valid during
// the call. Calls come from the calling thread, in order.
using StatesSink = std::function<void(int input_idx, int token_idx, std::span<const float> states)>;

// logits (vocab) float32 of tokens[token_idx] of sequence `sequence_idx` of the step; the memory is
// valid during the call. Calls come from the calling thread, in order.
using LogitsSink =
    std::function<void(int sequence_idx, int token_idx, std::span<const float> logits)>;

// What a step was on all ranks, after it, on rank 0; valid during the call.
using StepObserver = std::function<void(const RecordedStep&)>;

// Where nothing was measured (docs/results/latent_attention.md).
inline constexpr int kExpandFromTokens = 4;

// How ranks share the work (strategy/), and what this one's part is.
struct ParallelOptions {
  strategy::Roles roles = {};
  // Of steps of generated tokens alone, where experts are divided otherwise in these.
  std::optional<strategy::Roles> decode_roles = {};
  strategy::Pipeline pipeline = {};
  // Steps of fewer tokens, over all groups, are not cut into chunks: what a chunk costs by itself
  // is more than it hides.
  int pipeline_from_tokens = 0;
  // Of rows on their way between ranks; float32 loses nothing.
  comm::WireFormat wire = comm::WireFormat::kBf16;
  // Threads that stay away from products while an exchange is under way.
  int comm_budget = 0;
  Experiment experiment = {};  // nothing in production
  // Whether rank 0 is told of each step when all ranks' tasks ran, and sizes (ObserveSteps).
  bool record = false;
  comm::Group* group = nullptr;  // of roles.num_ranks() ranks; null: this process alone
  // The model as all ranks together have it, where the weights are a share of it; outlives the
  // transformer.
  const model::ModelSpec* whole_spec = nullptr;

  int rank() const { return group != nullptr ? group->rank() : 0; }
  const model::ModelSpec& WholeOf(const model::ModelSpec& share) const {
    return whole_spec != nullptr ? *whole_spec : share;
  }
};

struct TransformerOptions {
  int max_step_tokens = 512;  // over all sequences of a step
  int num_kv_blocks = 0;
  int context = 0;  // of the longest sequence, in tokens; 0: what num_kv_blocks hold
  kernels::ActivationFormat activations = kernels::ActivationFormat::kBf16;
  kernels::KvFormat kv = kernels::KvFormat::kBf16;
  // Rows per expert from which on experts are computed one after the other; 0: never. It changes
  // no result.
  int dense_from_rows = 0;
  // Latent attention: prompts of so many tokens and more are computed with expanded keys and values
  // (latent_attention.h); 0: none.
  int expand_from_tokens = kExpandFromTokens;
  // Most tokens of a prompt that an expert takes; 0: any number (expert_capacity.h). Sequences then
  // share no blocks.
  int expert_capacity = 0;
  ParallelOptions parallel = {};
};

// What the last step did; for bench (FLOPs and bytes). All but `tokens` counts this rank's part.
struct StepStatistics {
  int64_t tokens = 0;  // of all ranks
  int64_t logits_rows = 0;
  int64_t activated_experts = 0;  // distinct (layer, expert) whose weights were read
  int64_t weight_bytes = 0;       // read at least once: attention, activated experts, head
  int64_t kv_bytes = 0;           // of the cache, read once per sequence
  double flops = 0;               // executed multiply-adds x 2
  double expert_flops = 0;        // of these in the products of routed experts
  double expert_seconds = 0;      // that those took
};

// Where in a step something was met.
struct TaskAt {
  int layer = 0;
  bool encoder = false;
  std::string task;  // its name (schedule/schedule.h)
};

class Transformer {
 public:
  // For the memory plan: bytes of a KV block over all layers, and what steps work in.
  static uint64_t KvBlockBytes(const model::ModelSpec& spec, kernels::KvFormat format);
  static memory::Amounts StepBytes(const model::ModelSpec& spec, const TransformerOptions& options,
                                   int num_threads);

  // What elements of each kind take in memory and on their way between ranks.
  static strategy::ElementBytes BytesOf(const Formats& formats, comm::WireFormat wire);

  // Keeps references to weights, kernels and pool, and its memory is reserved in `ledger` while it
  // lives; the formats of `options` must go with the weights (formats.h). Errors: memory that
  // cannot be had; shapes beyond the kernels' limits; roles that cannot be executed yet.
  static Result<Transformer> Create(weights::WeightStore& weights,
                                    const kernels::KernelSet& kernels, hardware::ThreadPool& pool,
                                    const TransformerOptions& options, memory::Ledger& ledger);
  Transformer(Transformer&&) noexcept;
  Transformer& operator=(Transformer&&) noexcept;
  ~Transformer();

  // On all ranks but 0: takes part in the steps of rank 0 until that ends (EndSteps or its
  // destructor); or in one step, false at the end.
  void FollowSteps();
  bool FollowStep();
  void EndSteps();

  // Runs one step (*collective*: on the other ranks by FollowSteps). Error: a task of it failed on
  // some rank. All ranks then have ended the step and are ready for the next one; what it wrote to
  // its blocks is worth nothing, and `sink` may have been called. Token ids must be below the
  // vocabulary's size and the tokens of all sequences at most max_step_tokens in each group
  // (CHECKed). A sequence's logits are bitwise independent of the other sequences, of how its
  // tokens were cut into steps, and of the number of threads (docs/decisions/0001-numerics.md).
  Status Forward(std::span<const SequenceStep> step, const LogitsSink& sink);

  // Runs the encoder over whole inputs, at most max_step_tokens tokens together (CHECKed), and
  // keeps what the decoder needs of them in their blocks. `sink` may be empty. Error: as Forward.
  Status Encode(std::span<const EncoderInput> inputs, const StatesSink& sink);

  // Runs a step that Forward has run again, which changes nothing, and tells the first task after
  // which rows are NaN or infinite; nothing if none is, or experts have a capacity, whose counts
  // would change. On one rank only (CHECK).
  std::optional<TaskAt> FindNotFinite(std::span<const SequenceStep> step);

  // The first position of a sequence with so many tokens of prompt whose keys and values are not
  // those of any other sequence with the same tokens up to there.
  int SharingLimit(int prompt_length) const;

  // This rank's: between steps its blocks may be moved.
  KvCache& kv_cache();

  const StepStatistics& statistics() const;

  // What the last step ran, of this rank's tasks, and when.
  const schedule::Schedule& schedule() const;
  const schedule::Timeline& timeline() const;
  // On rank 0, of steps that are recorded (ParallelOptions::record).
  void ObserveSteps(StepObserver observer);
  // Tokens that chose each expert, per layer of the decoder, in all steps of this rank's rows.
  const std::vector<std::vector<int64_t>>& expert_counts() const;

 private:
  struct State;
  explicit Transformer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace convene::runtime
