// What each task of a step does on this rank: the one place where tasks meet the operators of a
// device, and exchanges the events that they wait for. When tasks run is executor.h, which there
// are strategy/.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/frame.h"
#include "runtime/executor.h"
#include "runtime/expert_capacity.h"
#include "runtime/expert_mover.h"
#include "runtime/expert_reads.h"
#include "runtime/head.h"
#include "runtime/program_cache.h"
#include "runtime/row_exchange.h"
#include "runtime/spilled_kv.h"
#include "runtime/step_recorder.h"
#include "runtime/transformer.h"
#include "weights/expert_backup.h"

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
  void Discard(const schedule::Task& task) override { reads_.Release(task); }

  // *Collective*, after a run: the error of the task that failed, the same on all ranks; of several
  // ranks' that of the first. What fails on rank 0 after its last exchange (the head) only rank 0
  // is told.
  Status End();

  // For work that has some tasks of a step in another way and the others as here
  // (offloaded_steps.h).
  device::Stream& stream() { return *stream_; }
  device::Frame& frame(int micro_batch) { return *frames_[micro_batch]; }
  const device::Layer& layer(int layer) const { return decoder_[layer]; }

  device::KvCache& kv_cache() { return *cache_; }
  // Null: no experts come from one.
  weights::ExpertBackup* backup() { return backup_.get(); }
  hardware::ThreadPool* host_threads() { return device_.host_threads(); }
  const SpilledKv* spilled_kv() const { return spilled_.get(); }  // null: all are in memory
  const device::StepStatistics& statistics() const { return stream_->statistics(); }
  const model::ModelSpec& spec() const { return weights_.spec(); }
  // Tokens that chose each expert, per layer of the decoder, since the beginning.
  const std::vector<std::vector<int64_t>>& expert_counts() const { return expert_counts_; }
  // Asked while products run: whether some threads should stay away from them.
  void WatchExchanges(const Executor& executor) {
    stream_->WatchExchanges([&executor] { return executor.exchanging(); });
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
  using Frame = device::Frame;
  using Layer = device::Layer;
  using Task = schedule::Task;
  using Run = Status (StepRunner::*)(const Task& task, Frame& frame);
  using Skip = void (StepRunner::*)(const Task& task, Frame& frame);
  using StartOf = std::unique_ptr<comm::Exchange> (StepRunner::*)(const Task& task, Frame& frame);
  // What a kind of task does with its frame: at once, or begun here and done later. Where `run`
  // gives an error, `skip` comes after it and finds nothing done that it would do twice.
  struct Operator {
    Run run = nullptr;
    // In its place, once a task has failed: what the exchanges after it ask of the frame.
    Skip skip = nullptr;
    StartOf start = nullptr;
  };
  static const Operator& OperatorOf(schedule::TaskKind kind);

  StepRunner(weights::WeightStore& weights, device::Device& device,
             const TransformerOptions& options);

  void Begin(std::span<const device::SequenceStep> step, const Program& program, bool encoder);
  Frame& FrameOf(const Task& task) { return *frames_[std::max(0, task.micro_batch)]; }
  const Layer& LayerOf(const Task& task) const {
    return (task.encoder ? encoder_ : decoder_)[task.layer];
  }
  Frames frames() const { return {frames_.data(), static_cast<size_t>(num_frames_)}; }
  // The last layer goes on with the rows whose logits are wanted.
  bool OnlyWanted(const Task& task) const;
  void LookAtRows(const Task& task);
  // The experiment's fault, if there is one for the task.
  Status BeforeTask(const Task& task) const;
  void Fail(const Task& task, const Error& error);
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  bool AnyHasFailed() const;  // that the last exchange told of
  // Recorded once the operators of a task have been enqueued.
  device::Event& EventOf(const Task& task) const {
    return *events_[static_cast<size_t>(&task - schedule_->tasks.data())];
  }
  // Until all is done that has been enqueued, so that it can be fetched.
  void AwaitStream();
  // Whether what the task waits for is done and not only enqueued.
  bool IsReady(const Task& task) const;
  std::unique_ptr<comm::Exchange> StartReady(const Task& task);
  class StartedOnceReady;
  // The routing of the frame's own rows to expert_rows, with the shared expert where it is divided.
  void BeginExpertRows(const model::LayerSpec& spec, int layer, Frame& frame);
  // What experiments and the capacity of experts change of a routing that was fetched.
  void ChangeRouting(const Layer& layer, Frame& frame);
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
  device::Device& device_;
  TransformerOptions options_;
  int rank_;
  std::vector<Layer> decoder_;
  std::vector<Layer> encoder_;
  std::unique_ptr<device::KvCache> cache_;
  std::unique_ptr<SpilledKv> spilled_;
  std::unique_ptr<device::Stream> stream_;
  RowExchange row_exchange_;
  Head head_;
  bool largest_suffices_ = false;       // of the step, where ranks divide the head
  std::unique_ptr<ExpertMover> mover_;  // null: the experts stay where they are
  std::unique_ptr<weights::ExpertBackup> backup_;
  ExpertCapacity expert_capacity_;
  std::vector<std::vector<int64_t>> expert_counts_;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::vector<std::unique_ptr<device::Event>> events_;  // by TaskId
  // Of the step in work: whether nobody but the device needs to know which experts rows chose.
  bool keeps_routing_ = false;
  ExpertReads reads_;
  std::unique_ptr<device::Event> fence_;  // of AwaitStream

  // Of the step in work.
  const schedule::Schedule* schedule_ = nullptr;
  int num_frames_ = 0;
  const LogitsSink* logits_sink_ = nullptr;
  const StatesSink* states_sink_ = nullptr;
  StepRecorder* recorder_ = nullptr;
  bool watches_rows_ = false;
  std::optional<TaskAt> not_finite_;

  // Of what failed in the step in work.
  bool encodes_ = false;
  bool follows_change_ = false;  // of the experts' division, which may have failed
  strategy::Phase moves_to_ = strategy::Phase::kPrefill;
  std::atomic<bool> has_failed_{false};
  std::mutex fault_mutex_;
  Error fault_;                     // with fault_mutex_, if has_failed_
  std::vector<uint32_t> statuses_;  // by rank, as the last exchange had them: 1, it has failed
};

}  // namespace convene::runtime
