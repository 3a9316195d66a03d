// Runs steps on this rank, task by task: it divides a step's sequences among the frames, has each
// task do what step_operators.h says, lets exchanges begin with the events that they wait for, and
// ends a step whose task has failed as all ranks must. When tasks run is executor.h, which there
// are strategy/.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/frame.h"
#include "runtime/executor.h"
#include "runtime/program_cache.h"
#include "runtime/rank_memory.h"
#include "runtime/step_fault.h"
#include "runtime/step_operators.h"
#include "runtime/step_recorder.h"
#include "runtime/transformer.h"

namespace convene::runtime {

class StepRunner : public LaneWork {
 public:
  // Reserves the memory of steps in `ledger`. Keeps references to weights and device. Errors:
  // memory that cannot be had; what the device does not support.
  static Result<std::unique_ptr<StepRunner>> Create(weights::WeightStore& weights,
                                                    device::Device& device,
                                                    const TransformerOptions& options,
                                                    memory::Ledger& ledger);

  // The next run is of this program for these sequences, those of all groups; rank 0 gets their
  // logits. What it points to stays until the run has ended.
  void BeginForward(std::span<const device::SequenceStep> step, const Program& program,
                    const LogitsSink* sink);
  // The same of an encoder's inputs; `with_states`: rank 0 gets its output.
  void BeginEncode(std::span<const device::EncoderInput> inputs, const Program& program,
                   bool with_states, const StatesSink* sink);

  // The next run is this program, which moves the experts to their division in `phase`. If a task
  // of it fails, the step that begins next fails with it; all experts move all the same.
  void BeginChange(const Program& program, strategy::Phase phase);
  // *Collective*, where no step follows: as End.
  Status EndChange();

  // Where a task has failed on this rank, those after it do nothing but what the rank's exchanges
  // need, which it goes on entering: with rows of its experts that are none, and others as they
  // lie.
  void Compute(const schedule::Task& task) override;
  std::unique_ptr<comm::Exchange> Start(const schedule::Task& task) override;
  // Reads experts ahead, or loads those of another phase: what fails of a read is the error of the
  // task that computes with them. Brings spilled keys and values, whose error is the step's.
  Status RunOnLane(const schedule::Task& task, hardware::ThreadPool* pool) override;
  void Discard(const schedule::Task& task) override { operators_.Release(task); }

  // *Collective*, after a run: the error of the task that failed, the same on all ranks; of several
  // ranks' that of the first. What fails on rank 0 after its last exchange (the head) only rank 0
  // is told.
  Status End();

  // For work that has some tasks of a step in another way and the others as here
  // (offloaded_steps.h).
  device::Stream& stream() { return *memory_.stream; }
  device::Frame& frame(int micro_batch) { return *memory_.frames[micro_batch]; }
  const device::Layer& layer(int layer) const {
    return operators_.stack(/*is_encoder=*/false)[layer];
  }

  device::KvCache& kv_cache() { return *memory_.cache; }
  // Null: no experts come from one.
  weights::ExpertBackup* backup() { return memory_.backup.get(); }
  hardware::ThreadPool* host_threads() { return device_.host_threads(); }
  const SpilledKv* spilled_kv() const { return memory_.spilled.get(); }  // null: all are in memory
  const device::StepStatistics& statistics() const { return memory_.stream->statistics(); }
  const model::ModelSpec& spec() const { return weights_.spec(); }
  // Tokens that chose each expert, per layer of the decoder, since the beginning.
  const std::vector<std::vector<int64_t>>& expert_counts() const {
    return operators_.expert_counts();
  }
  // Asked while products run: whether some threads should stay away from them.
  void WatchExchanges(const Executor& executor) {
    stream().WatchExchanges([&executor] { return executor.exchanging(); });
  }
  // Whether to look after each task for rows that are not finite, from here on; and the first task
  // that left some.
  void WatchRows(bool watch) {
    watches_rows_ = watch;
    if (watch) not_finite_.reset();
  }
  const std::optional<TaskAt>& not_finite() const { return not_finite_; }
  // It is told the sizes of each step from here on.
  void RecordSizes(StepRecorder& recorder) { recorder_ = &recorder; }

 private:
  using Task = schedule::Task;

  StepRunner(weights::WeightStore& weights, device::Device& device,
             const TransformerOptions& options, RankMemory memory);

  // `of_step` has the sinks.
  void Begin(std::span<const device::SequenceStep> step, const Program& program,
             StepOperators::Step of_step);
  void BeginFrames(std::span<const device::SequenceStep> step, const Program& program,
                   const StepOperators::Step& of_step);
  void UseSchedule(const Program& program);
  void LookAtRows(const Task& task);
  // The experiment's fault, if there is one for the task.
  Status BeforeTask(const Task& task) const;
  // Recorded once the operators of a task have been enqueued.
  device::Event& EventOf(const Task& task) const {
    return *events_[static_cast<size_t>(&task - schedule_->tasks.data())];
  }
  // Whether what the task waits for is done and not only enqueued.
  bool IsReady(const Task& task) const;
  std::unique_ptr<comm::Exchange> StartReady(const Task& task);
  class StartedOnceReady;

  weights::WeightStore& weights_;
  device::Device& device_;
  TransformerOptions options_;
  RankMemory memory_;
  StepFault fault_;  // of the step in work
  StepOperators operators_;
  std::vector<std::unique_ptr<device::Event>> events_;  // by TaskId
  StepRecorder* recorder_ = nullptr;
  bool watches_rows_ = false;
  std::optional<TaskAt> not_finite_;

  // Of the step in work.
  const schedule::Schedule* schedule_ = nullptr;
  bool encodes_ = false;
};

}  // namespace convene::runtime
