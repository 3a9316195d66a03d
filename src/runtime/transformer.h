// Executes forward passes of a decoder: several sequences of different length in one step, over a
// paged KV cache. It does not choose what to run nor pick tokens: that is engine/.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/wire_format.h"
#include "device/device.h"
#include "device/step_inputs.h"
#include "device/step_statistics.h"
#include "kernels/kernel_set.h"
#include "memory/ledger.h"
#include "runtime/formats.h"
#include "runtime/spill_statistics.h"
#include "runtime/step_outputs.h"
#include "runtime/transformer_options.h"
#include "schedule/timeline.h"
#include "strategy/step.h"
#include "weights/expert_backup.h"
#include "weights/weight_store.h"

namespace convene::runtime {

class OffloadedSteps;

// Where in a step something was met.
struct TaskAt {
  int layer = 0;
  bool encoder = false;
  std::string task;  // its name (schedule/schedule.h)
};

// How often experts were moved to their division in another phase, how long that took, and what
// this rank sent.
struct PhaseChanges {
  int64_t count = 0;
  double seconds = 0;  // of those that were no part of a step
  int64_t sent_bytes = 0;
  // Of them those that ran beside a step of prompts, and the seconds of this rank's load lane.
  int64_t beside_count = 0;
  double beside_seconds = 0;
};

class Transformer {
 public:
  // For the memory plan: what steps work in on such a device.
  static memory::Amounts StepBytes(const device::DeviceBytes& device, const model::ModelSpec& spec,
                                   const TransformerOptions& options, int num_threads);

  // What elements of each kind take in memory and on their way between ranks: of rows of the
  // model's hidden size with their scales and sums of blocks, as they travel (device/wire_rows.h).
  static strategy::ElementBytes BytesOf(const model::ModelSpec& spec, const Formats& formats,
                                        comm::WireFormat wire, bool returns_fp8);

  // Keeps references to weights and device, and its memory is reserved in `ledger` (of the device's
  // memory, CHECKed) while it lives; the formats of `options` must go with the weights (formats.h).
  // Errors: memory that cannot be had; what the device does not support; roles that cannot be
  // executed yet.
  static Result<Transformer> Create(weights::WeightStore& weights, device::Device& device,
                                    const TransformerOptions& options, memory::Ledger& ledger);
  // Of a model that goes through the device's memory layer by layer, on one rank.
  static Transformer Offload(std::unique_ptr<OffloadedSteps> steps);
  Transformer(Transformer&&) noexcept;
  Transformer& operator=(Transformer&&) noexcept;
  ~Transformer();

  // On all ranks but 0: takes part in the steps of rank 0 until that ends (EndSteps or its
  // destructor); or in one step, false at the end.
  void FollowSteps();
  bool FollowStep();
  void EndSteps();
  // Before the first step: other ranks have none of it and follow nobody, so none is told of its
  // end.
  void Abandon();

  // Runs one step (*collective*: on the other ranks by FollowSteps). Error: a task of it failed on
  // some rank. All ranks then have ended the step and are ready for the next one; what it wrote to
  // its blocks is worth nothing, and `sink` may have been called. Token ids must be below the
  // vocabulary's size and the tokens of all sequences at most max_step_tokens in each group
  // (CHECKed). A sequence's logits are bitwise independent of the other sequences, of how its
  // tokens were cut into steps, and of the number of threads (docs/decisions/0001-numerics.md).
  //
  // Where decode has experts of its own, `phase` says whose the step has; unset: those of decode
  // where it has generated tokens alone. If they are divided otherwise now, they are moved before
  // the step, and an error in that is the step's.
  // `decode_follows`: the step is in prefill's division and the next one in decode's. Experts that
  // come from a backup then come while the step runs, each layer's once it is through with its own;
  // of others it changes nothing. A next step in prefill's division all the same costs a change.
  Status Forward(std::span<const device::SequenceStep> step, const LogitsSink& sink,
                 std::optional<strategy::Phase> phase = {}, bool decode_follows = false);

  // Divides the experts as in `phase`, ahead of a step (*collective*, as Forward).
  Status ChangePhase(strategy::Phase phase);
  // Of this rank, since the beginning or the last ForgetPhaseChanges.
  const PhaseChanges& phase_changes() const;
  // What was moved at loading is no part of what steps take.
  void ForgetPhaseChanges();

  // Where ParallelOptions::loads_experts: once, before the first step. *Collective*, called by all
  // ranks themselves: what other ranks have is fetched, kept in int4, and forgotten. Returns how
  // close this rank's backup is. Error: the same on all ranks.
  Result<weights::BackupQuality> MakeBackup();

  // Divides the steps to come in time otherwise (*collective*, as Forward), which changes no
  // result. Chunks and cuts may differ from ParallelOptions::pipeline; overlap and micro-batches,
  // for which lanes and memory were made, may not (CHECKed). Not of steps that have pipelines of
  // their own (ParallelOptions::pipeline_of; CHECKed).
  void UsePipeline(const strategy::Pipeline& pipeline);

  // Runs the encoder over whole inputs, at most max_step_tokens tokens together (CHECKed), and
  // keeps what the decoder needs of them in their blocks. `sink` may be empty. Error: as Forward.
  Status Encode(std::span<const device::EncoderInput> inputs, const StatesSink& sink);

  // Experts that are being read for the next step are not waited for: from here on until the next
  // step nobody else changes the weights.
  void StopReadingAhead();

  // Runs a step that Forward has run again, which changes nothing, and tells the first task after
  // which rows are NaN or infinite; nothing if none is, or experts have a capacity, whose counts
  // would change. On one rank only (CHECK).
  std::optional<TaskAt> FindNotFinite(std::span<const device::SequenceStep> step);

  // The first position of a sequence with so many tokens of prompt whose keys and values are not
  // those of any other sequence with the same tokens up to there.
  int SharingLimit(int prompt_length) const;

  // This rank's: between steps its blocks may be moved.
  device::KvCache& kv_cache();

  const device::StepStatistics& statistics() const;
  // Of keys and values on a disk.
  SpillStatistics spill_statistics() const;

  // What the last step ran, of this rank's tasks, and when.
  const schedule::Schedule& schedule() const;
  const schedule::Timeline& timeline() const;
  // On rank 0, of steps that are recorded (ParallelOptions::record).
  void ObserveSteps(StepObserver observer);
  // On rank 0, before each step from now on: whether it is recorded. Gathering what ranks know of a
  // step takes time, which small steps feel. Unset: all are.
  void RecordOnly(std::function<bool()> is_wanted);
  // Tokens that chose each expert, per layer of the decoder, in all steps of this rank's rows.
  const std::vector<std::vector<int64_t>>& expert_counts() const;

 private:
  struct State;
  explicit Transformer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace convene::runtime
