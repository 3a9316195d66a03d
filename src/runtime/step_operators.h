// What each kind of task does on this rank: the one table from kinds to the operators of a device
// and to exchanges. They keep nothing between tasks but what is of the step in work; when a task
// runs, and what follows when it fails, is step_runner.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "comm/group.h"
#include "device/device.h"
#include "device/frame.h"
#include "device/layer.h"
#include "runtime/expert_reads.h"
#include "runtime/frame_routing.h"
#include "runtime/head.h"
#include "runtime/program_cache.h"
#include "runtime/rank_memory.h"
#include "runtime/row_exchange.h"
#include "runtime/step_fault.h"
#include "runtime/step_outputs.h"
#include "runtime/transformer_options.h"
#include "schedule/schedule.h"
#include "weights/weight_store.h"

namespace convene::runtime {

class StepOperators {
 public:
  // Keeps references to all but `options`. `fault` is what exchanges that end a step tell of.
  StepOperators(weights::WeightStore& weights, device::Device& device,
                const TransformerOptions& options, const RankMemory& memory, StepFault& fault);
  StepOperators(const StepOperators&) = delete;
  StepOperators& operator=(const StepOperators&) = delete;

  // Whether a step's routing may stay on the device, where nobody wants to see it.
  bool MayKeepRouting(const strategy::Pipeline& pipeline) const;

  // What the tasks of a step have in common.
  struct Step {
    Frames frames = {};  // those of its micro-batches, which have begun
    // Null: nobody wants them on this rank.
    const LogitsSink* logits_sink = nullptr;
    const StatesSink* states_sink = nullptr;
    bool largest_suffices = false;  // where ranks divide the head
    bool keeps_routing = false;     // as MayKeepRouting allows
    // Whose experts the tasks bring that move or load some.
    strategy::Phase moves_to = strategy::Phase::kPrefill;
  };
  // The tasks from here on are of this step, of these sequences of all groups.
  void Begin(const Step& step, std::span<const device::SequenceStep> sequences,
             const std::optional<strategy::Paging>& paging);
  // The tasks from here on change the experts' division.
  void BeginChange(strategy::Phase phase) { step_ = {.moves_to = phase}; }

  // A task that computes, and what the exchanges after it ask of the frame once it or another one
  // has failed; where Run gives an error, Skip comes after it and finds nothing done that it would
  // do twice.
  Status Run(const schedule::Task& task);
  void Skip(const schedule::Task& task);
  // Of one that exchanges; null where there is nothing to exchange.
  std::unique_ptr<comm::Exchange> Start(const schedule::Task& task);
  // Of the load and store lanes: reads experts, whose error is that of the task that computes with
  // them; loads those of another phase; brings or writes keys and values, whose error is returned.
  Status RunOnLane(const schedule::Task& task);
  // What was read for the task's chunk is not needed any more.
  void Release(const schedule::Task& task) { reads_.Release(task); }

  // Until all is done that has been enqueued, so that it can be fetched.
  void AwaitStream();

  const std::vector<device::Layer>& stack(bool is_encoder) const {
    return is_encoder ? encoder_ : decoder_;
  }
  // What the rank sends to others by a task that moves experts, in all rounds.
  int64_t MovedBytes(const schedule::Task& task) const {
    return memory_.mover->SentBytes(task.layer, step_.moves_to);
  }
  // Tokens that chose each expert, per layer of the decoder, since the beginning.
  const std::vector<std::vector<int64_t>>& expert_counts() const {
    return routing_.expert_counts();
  }

 private:
  using Frame = device::Frame;
  using Layer = device::Layer;
  using Task = schedule::Task;
  using RunOf = Status (StepOperators::*)(const Task& task, Frame& frame);
  using SkipOf = void (StepOperators::*)(const Task& task, Frame& frame);
  using StartOf = std::unique_ptr<comm::Exchange> (StepOperators::*)(const Task& task,
                                                                     Frame& frame);
  // What a kind of task does with its frame: at once, or begun here and done later.
  struct Operator {
    RunOf run = nullptr;
    SkipOf skip = nullptr;
    StartOf start = nullptr;
  };
  static const Operator& OperatorOf(schedule::TaskKind kind);
  // Of a task that computes.
  static const Operator& ComputationOf(const Task& task);

  const model::ModelSpec& spec() const { return weights_.spec(); }
  device::Stream& stream() const { return *memory_.stream; }
  const Layer& LayerOf(const Task& task) const { return stack(task.encoder)[task.layer]; }
  // The last layer goes on with the rows whose logits are wanted.
  bool OnlyWanted(const Task& task) const;
  // Divides the frame anew, and its rows with it.
  void KeepWanted(Frame& frame);

  Status Embed(const Task& task, Frame& frame);
  Status Normalize(const Task& task, Frame& frame);
  Status Project(const Task& task, Frame& frame);
  Status Attend(const Task& task, Frame& frame);
  Status BeginAttention(const Task& task, Frame& frame);
  Status AttendPart(const Task& task, Frame& frame);
  Status EndAttention(const Task& task, Frame& frame);
  Status AddPartials(const Task& task, Frame& frame);
  Status Dense(const Task& task, Frame& frame);
  Status Route(const Task& task, Frame& frame);
  Status Shared(const Task& task, Frame& frame);
  Status Experts(const Task& task, Frame& frame);
  Status Reduce(const Task& task, Frame& frame);
  Status Finish(const Task& task, Frame& frame);
  Status RunHead(const Task& task, Frame& frame);
  Status JoinLogits(const Task& task, Frame& frame);
  Status CrossStore(const Task& task, Frame& frame);

  void SkipToWanted(const Task& task, Frame& frame);
  void SkipRoute(const Task& task, Frame& frame);
  void SkipExperts(const Task& task, Frame& frame);
  void SkipReduce(const Task& task, Frame& frame);

  std::unique_ptr<comm::Exchange> Counts(const Task& task, Frame& frame);
  std::unique_ptr<comm::Exchange> Dispatch(const Task& task, Frame& frame);
  std::unique_ptr<comm::Exchange> Combine(const Task& task, Frame& frame);
  std::unique_ptr<comm::Exchange> GatherNormed(const Task& task, Frame& frame);
  std::unique_ptr<comm::Exchange> NormSums(const Task& task, Frame& frame);
  std::unique_ptr<comm::Exchange> ScatterSums(const Task& task, Frame& frame);
  std::unique_ptr<comm::Exchange> PassRows(const Task& task, Frame& frame);
  std::unique_ptr<comm::Exchange> GatherRows(const Task& task, Frame& frame);
  std::unique_ptr<comm::Exchange> GatherLogits(const Task& task, Frame& frame);
  std::unique_ptr<comm::Exchange> MoveExperts(const Task& task, Frame& frame);

  weights::WeightStore& weights_;
  TransformerOptions options_;
  int rank_;
  const RankMemory& memory_;
  StepFault& fault_;
  std::vector<Layer> decoder_;
  std::vector<Layer> encoder_;
  RowExchange row_exchange_;
  Head head_;
  FrameRouting routing_;
  ExpertReads reads_;
  std::unique_ptr<device::Event> fence_;  // of AwaitStream
  Step step_;                             // in work
};

}  // namespace convene::runtime
