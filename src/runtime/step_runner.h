// What each task of a step does on this rank: the one place where tasks meet the parts of a forward
// pass. When they run is executor.h, which tasks there are strategy/.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/attend.h"
#include "runtime/attention_layer.h"
#include "runtime/cross_attention.h"
#include "runtime/executor.h"
#include "runtime/expert_capacity.h"
#include "runtime/feed_forward.h"
#include "runtime/forward_context.h"
#include "runtime/frame.h"
#include "runtime/head.h"
#include "runtime/kv_cache.h"
#include "runtime/layer_stack.h"
#include "runtime/row_exchange.h"
#include "runtime/step_memory.h"
#include "runtime/step_recorder.h"
#include "runtime/transformer.h"

namespace convene::runtime {

class StepRunner : public LaneWork {
 public:
  StepRunner(const weights::ModelWeights& weights, const kernels::KernelSet& kernels,
             hardware::ThreadPool& pool, const TransformerOptions& options, KvCache cache,
             StepMemory memory);

  // The next run is of these sequences, those of all groups, in so many micro-batches, each of
  // whose layers is cut as `pipeline` has it; rank 0 gets their logits.
  void BeginForward(std::span<const SequenceStep> step, const strategy::Pipeline& pipeline,
                    const LogitsSink* sink);
  // The same of an encoder's inputs; `with_states`: rank 0 gets its output.
  void BeginEncode(std::span<const EncoderInput> inputs, const strategy::Pipeline& pipeline,
                   bool with_states, const StatesSink* sink);

  void Compute(const schedule::Task& task) override;
  std::unique_ptr<comm::Exchange> Start(const schedule::Task& task) override;

  const StepStatistics& statistics() const { return statistics_; }
  const ForwardContext& context() const { return context_; }
  const std::vector<std::vector<int64_t>>& expert_counts() const {
    return feed_forward_.expert_counts();
  }
  // Asked while products run: whether some threads should stay away from them.
  void WatchExchanges(const Executor& executor) { context_.executor = &executor; }
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
  // What a kind of task does with its frame: at once, or begun here and done later.
  struct Operator {
    void (StepRunner::*run)(const Task& task, Frame& frame) = nullptr;
    std::unique_ptr<comm::Exchange> (StepRunner::*start)(const Task& task, Frame& frame) = nullptr;
  };
  static const Operator& OperatorOf(schedule::TaskKind kind);

  void Begin(std::span<const SequenceStep> step, const strategy::Pipeline& pipeline, bool encoder);
  std::vector<CapacityRow> CapacityRows(const StepRows& rows) const;
  Frame& FrameOf(const Task& task) { return *frames_[std::max(0, task.micro_batch)]; }
  const Layer& LayerOf(const Task& task) const {
    return (task.encoder ? stacks_.encoder() : stacks_.decoder())[task.layer];
  }
  Frames frames() const { return {frames_.data(), static_cast<size_t>(num_frames_)}; }
  // The last layer goes on with the rows whose logits are wanted.
  bool OnlyWanted(const Task& task) const;
  void LookAtRows(const Task& task);
  CapacityStep Limit(const Layer& layer, const Frame& frame);
  void NormalizeRows(std::span<const float> weight, const Frame& frame, bool also_float);

  void Embed(const Task& task, Frame& frame);
  void Normalize(const Task& task, Frame& frame);
  void Project(const Task& task, Frame& frame);
  void Attend(const Task& task, Frame& frame);
  void AddPartials(const Task& task, Frame& frame);
  void Dense(const Task& task, Frame& frame);
  void Route(const Task& task, Frame& frame);
  void Shared(const Task& task, Frame& frame);
  void Experts(const Task& task, Frame& frame);
  void Reduce(const Task& task, Frame& frame);
  void Finish(const Task& task, Frame& frame);
  void RunHead(const Task& task, Frame& frame);
  void CrossStore(const Task& task, Frame& frame);

  std::unique_ptr<comm::Exchange> Counts(const Task& task, Frame& frame);
  std::unique_ptr<comm::Exchange> Dispatch(const Task& task, Frame& frame);
  std::unique_ptr<comm::Exchange> Combine(const Task& task, Frame& frame);
  std::unique_ptr<comm::Exchange> GatherNormed(const Task& task, Frame& frame);
  std::unique_ptr<comm::Exchange> NormSums(const Task& task, Frame& frame);
  std::unique_ptr<comm::Exchange> ScatterSums(const Task& task, Frame& frame);
  std::unique_ptr<comm::Exchange> GatherRows(const Task& task, Frame& frame);

  TransformerOptions options_;
  int rank_;
  KvCache cache_;
  Workspace workspace_;
  StepStatistics statistics_;
  ForwardContext context_;
  Attender attender_;
  AttentionLayer attention_;
  CrossAttention cross_attention_;
  FeedForward feed_forward_;
  RowExchange row_exchange_;
  Head head_;
  LayerStacks stacks_;
  ExpertCapacity expert_capacity_;
  std::vector<std::unique_ptr<Frame>> frames_;

  // Of the step in work.
  int num_frames_ = 0;
  const LogitsSink* logits_sink_ = nullptr;
  const StatesSink* states_sink_ = nullptr;
  StepRecorder* recorder_ = nullptr;
  bool watches_rows_ = false;
  std::optional<TaskAt> not_finite_;
};

}  // namespace convene::runtime
