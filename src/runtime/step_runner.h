// What each task of a step does on this rank: the one place where tasks meet the parts of a forward
// pass. When they run is executor.h, which tasks there are strategy/.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/activations.h"
#include "runtime/attend.h"
#include "runtime/attention_layer.h"
#include "runtime/cross_attention.h"
#include "runtime/executor.h"
#include "runtime/expert_capacity.h"
#include "runtime/feed_forward.h"
#include "runtime/forward_context.h"
#include "runtime/kv_cache.h"
#include "runtime/row_exchange.h"
#include "runtime/step_recorder.h"
#include "runtime/step_rows.h"
#include "runtime/transformer.h"

namespace convene::runtime {

// The model as all ranks together have it.
const model::ModelSpec& WholeSpec(const weights::ModelWeights& weights,
                                  const TransformerOptions& options);
// Of the longest sequence, in tokens.
int ContextOf(const TransformerOptions& options);

// Of buffers for what travels between ranks, by the largest step.
int64_t ExchangeBytes(const model::ModelSpec& spec, const TransformerOptions& options,
                      int num_threads);

class StepRunner : public LaneWork {
 public:
  StepRunner(const weights::ModelWeights& weights, const kernels::KernelSet& kernels,
             hardware::ThreadPool& pool, const TransformerOptions& options, KvCache cache,
             Activations activations);

  // The next run is of these sequences, those of all groups; rank 0 gets their logits.
  void BeginForward(std::span<const SequenceStep> step, const LogitsSink* sink);
  // The same of an encoder's inputs; `with_states`: rank 0 gets its output.
  void BeginEncode(std::span<const EncoderInput> inputs, bool with_states, const StatesSink* sink);
  // How experts are divided in time in the runs from here on.
  void UsePipeline(const strategy::Pipeline& pipeline) {
    feed_forward_.rows().UsePipeline(pipeline);
  }

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
  std::unique_ptr<comm::Exchange> StartExchange(const schedule::Task& task);
  // Where the logits (or the encoder's output) of a token come from.
  struct HeadRow {
    int sequence_idx = 0;
    int token_idx = 0;
    int rank = 0;
    int row_idx = 0;  // among that rank's wanted rows
  };

  void Begin(std::span<const SequenceStep> step);
  void Run(const schedule::Task& task);
  void RecordRows(bool encoder);
  void RecordTask(const schedule::Task& task);
  void LookAtRows(const schedule::Task& task);
  void DivideRows();
  void FindHeadRows(std::span<const SequenceStep> step);
  const Layer& LayerOf(const schedule::Task& task) const {
    return (task.encoder ? encoder_ : decoder_)[task.layer];
  }
  // The last layer goes on with the rows whose logits are wanted.
  bool OnlyWanted(const schedule::Task& task) const;
  void DivideWanted();
  void KeepWanted();

  void Embed(bool encoder);
  void Normalize(const schedule::Task& task);
  void Attend(const schedule::Task& task);
  void Head();
  void CrossStore();
  void BeginCapacity();
  CapacityStep Limit(const Layer& layer);

  std::vector<float> BiasOf(const std::vector<model::LayerSpec>& layers,
                            std::span<const float> table) const;
  std::vector<Layer> Stack(const std::vector<model::LayerSpec>& specs,
                           const std::vector<weights::LayerWeights>& weights,
                           std::span<const float> bias, bool is_encoder) const;
  std::string What(const char* exchange, const schedule::Task& task) const;

  TransformerOptions options_;
  int rank_;
  KvCache cache_;
  Activations activations_;
  StepStatistics statistics_;
  ForwardContext context_;
  StepRows rows_;
  Attender attender_;
  AttentionLayer attention_;
  CrossAttention cross_attention_;
  ExchangeMemory exchange_memory_;
  FeedForward feed_forward_;
  RowExchange row_exchange_;
  std::vector<float> decoder_bias_;  // by distance, as DistanceBias
  std::vector<float> encoder_bias_;
  std::vector<Layer> decoder_;
  std::vector<Layer> encoder_;
  ExpertCapacity expert_capacity_;
  std::vector<CapacityRow> capacity_rows_;  // of the step, where there is a limit

  // Of the step in work.
  std::vector<SequenceStep> own_step_;  // of this rank's group
  int num_out_ = 0;                     // rows that the attention in work goes on with
  std::vector<HeadRow> head_rows_;      // rank 0
  std::vector<int> wanted_counts_;      // rank 0: by rank
  const LogitsSink* logits_sink_ = nullptr;
  const StatesSink* states_sink_ = nullptr;
  StepRecorder* recorder_ = nullptr;
  bool watches_rows_ = false;
  std::optional<TaskAt> not_finite_;
};

}  // namespace convene::runtime
