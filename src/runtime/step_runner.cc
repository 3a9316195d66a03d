#include "runtime/step_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "comm/agree.h"
#include "kernels/pack.h"
#include "runtime/cut_step.h"
#include "runtime/record_sizes.h"
#include "tensor/finite.h"

namespace convene::runtime {

using kernels::Epilogue;
using schedule::Task;
using weights::LayerPart;

namespace {

RowExchange::Options RowExchangeOptions(const TransformerOptions& options) {
  return {.roles = options.parallel.roles,
          .rank = options.parallel.rank(),
          .wire = options.parallel.wire};
}

// For errors of exchanges.
std::string NameOf(const char* exchange, const Task& task) {
  const char* stack = task.encoder ? "encoder" : "decoder";
  if (task.layer < 0) return fmt::format("{} of the {}", exchange, stack);
  return fmt::format("{} of {} layer {}", exchange, stack, task.layer);
}

}  // namespace

const StepRunner::Operator& StepRunner::OperatorOf(schedule::TaskKind kind) {
  static const auto operators = [] {
    using enum schedule::TaskKind;
    std::array<Operator, schedule::kNumTaskKinds> table;
    const auto at = [&](schedule::TaskKind of) -> Operator& {
      return table[static_cast<size_t>(of)];
    };
    at(kEmbed).run = &StepRunner::Embed;
    at(kNormalize) = {.run = &StepRunner::Normalize, .skip = &StepRunner::SkipToWanted};
    at(kGatherNormed).start = &StepRunner::GatherNormed;
    at(kProject).run = &StepRunner::Project;
    at(kNormSums).start = &StepRunner::NormSums;
    at(kAttention) = {.run = &StepRunner::Attend, .skip = &StepRunner::SkipToWanted};
    at(kScatterSums).start = &StepRunner::ScatterSums;
    at(kAddPartials) = {.run = &StepRunner::AddPartials, .skip = &StepRunner::SkipToWanted};
    at(kDense).run = &StepRunner::Dense;
    at(kRoute) = {.run = &StepRunner::Route, .skip = &StepRunner::SkipRoute};
    at(kCounts).start = &StepRunner::Counts;
    at(kDispatch).start = &StepRunner::Dispatch;
    at(kShared).run = &StepRunner::Shared;
    at(kExperts) = {.run = &StepRunner::Experts, .skip = &StepRunner::SkipExperts};
    at(kReduce) = {.run = &StepRunner::Reduce, .skip = &StepRunner::SkipReduce};
    at(kCombine).start = &StepRunner::Combine;
    at(kFinish).run = &StepRunner::Finish;
    at(kGatherRows).start = &StepRunner::GatherRows;
    at(kHead).run = &StepRunner::RunHead;
    at(kCrossStore).run = &StepRunner::CrossStore;
    return table;
  }();
  return operators[static_cast<size_t>(kind)];
}

StepRunner::StepRunner(weights::WeightStore& weights, const kernels::KernelSet& kernels,
                       hardware::ThreadPool& pool, const TransformerOptions& options, KvCache cache,
                       StepMemory memory)
    : options_(options),
      rank_(options.parallel.rank()),
      cache_(std::move(cache)),
      workspace_(std::move(memory.workspace)),
      context_{.weights = weights,
               .kernels = kernels,
               .pool = pool,
               .workspace = workspace_,
               .statistics = statistics_,
               .dense_from_rows = options.dense_from_rows,
               .comm_budget = options.parallel.comm_budget},
      attender_(context_),
      attention_(context_, cache_, attender_,
                 {.expand_from_tokens = options.expand_from_tokens, .context = ContextOf(options)}),
      cross_attention_(context_, cache_, attender_),
      feed_forward_(context_, FeedForwardOptions(options)),
      row_exchange_(context_, RowExchangeOptions(options), options.parallel.group),
      head_(context_, row_exchange_, options.parallel.roles),
      stacks_(weights),
      expert_capacity_(options.expert_capacity) {
  for (Activations& activations : memory.frames) {
    const auto index = static_cast<int>(frames_.size());
    frames_.push_back(std::make_unique<Frame>(weights.spec(),
                                              FrameOptions(weights.spec(), options, index),
                                              std::move(activations), options.parallel.group));
  }
}

void StepRunner::BeginForward(std::span<const SequenceStep> step,
                              const strategy::Pipeline& pipeline, const LogitsSink* sink) {
  logits_sink_ = sink;
  states_sink_ = nullptr;
  Begin(step, pipeline, /*encoder=*/false);
}

void StepRunner::BeginEncode(std::span<const EncoderInput> inputs,
                             const strategy::Pipeline& pipeline, bool with_states,
                             const StatesSink* sink) {
  CHECK(context_.spec().has_encoder(), "the model has no encoder");
  logits_sink_ = nullptr;
  states_sink_ = sink;
  std::vector<SequenceStep> step;
  for (const EncoderInput& input : inputs) {
    const auto length = static_cast<int>(input.tokens.size());
    step.push_back({.tokens = input.tokens,
                    .blocks = input.blocks,
                    .prompt_length = length,
                    .first_logits_token = with_states ? 0 : length,
                    .group = input.group});
  }
  Begin(step, pipeline, /*encoder=*/true);
  statistics_.logits_rows = 0;
}

void StepRunner::Begin(std::span<const SequenceStep> step, const strategy::Pipeline& pipeline,
                       bool encoder) {
  const strategy::Roles& roles = options_.parallel.roles;
  for (const SequenceStep& sequence : step) {
    CHECK(sequence.group >= 0 && sequence.group < roles.num_groups(), "group {} of {}",
          sequence.group, roles.num_groups());
  }
  const int group = roles.of(rank_).attention->group;
  CHECK(CountRows(step, group) <= options_.max_step_tokens, "{} tokens in a step of at most {}",
        CountRows(step, group), options_.max_step_tokens);
  CHECK(pipeline.micro_batches <= std::ssize(frames_), "{} micro-batches of {}",
        pipeline.micro_batches, frames_.size());
  num_frames_ = pipeline.micro_batches;
  encodes_ = encoder;
  has_failed_.store(false);
  statuses_.assign(roles.num_ranks() > 1 ? static_cast<size_t>(roles.num_ranks()) : 0, 0);
  statistics_ = {};
  ++context_.step_number;
  int rows_before = 0;
  for (int i = 0; i < num_frames_; ++i) {
    Frame& frame = *frames_[i];
    frame.Begin(CutStep(step, group, i, num_frames_), rows_before, context_.pool);
    frame.expert_rows.UsePipeline(pipeline);
    if (expert_capacity_.is_limited()) frame.capacity_rows = CapacityRows(frame.rows);
    rows_before += frame.own().count;
    statistics_.logits_rows += std::ssize(frame.rows.wanted());
  }
  for (const SequenceStep& sequence : step) statistics_.tokens += std::ssize(sequence.tokens);
  if (recorder_ != nullptr) {
    recorder_->Begin();
    for (int i = 0; i < num_frames_; ++i) {
      RecordRows(*frames_[i], rank_, num_frames_ > 1 ? i : -1, encoder, *recorder_);
    }
  }
  if (rank_ == 0) head_.Begin(step, frames());
}

bool StepRunner::OnlyWanted(const Task& task) const {
  // Rows that are not wanted may still take other rows' places.
  return !task.encoder && task.layer + 1 == std::ssize(stacks_.decoder()) &&
         !expert_capacity_.is_limited();
}

Status StepRunner::BeforeTask(const Task& task) const {
  const auto& before_task = options_.parallel.experiment.before_task;
  return before_task ? before_task(task) : Status();
}

void StepRunner::Fail(const Task& task, const Error& error) {
  const std::lock_guard lock(fault_mutex_);
  if (has_failed()) return;
  fault_ = error;
  fault_.message = fmt::format("{} failed: {}", Label(task), error.message);
  has_failed_.store(true, std::memory_order_release);
}

bool StepRunner::AnyHasFailed() const {
  return std::any_of(statuses_.begin(), statuses_.end(), [](uint32_t status) { return status; });
}

void StepRunner::Compute(const Task& task) {
  const Operator& work = OperatorOf(task.kind);
  CHECK(work.run != nullptr, "no computation: {}", schedule::Name(task.kind));
  Frame& frame = FrameOf(task);
  bool is_done = false;  // asked once: an exchange may fail meanwhile, on another thread
  if (!has_failed()) {
    Status done = BeforeTask(task);
    if (done) done = (this->*work.run)(task, frame);
    if (!done) Fail(task, done.error());
    is_done = done.ok();
  }
  if (!is_done) {
    if (work.skip != nullptr) (this->*work.skip)(task, frame);
    return;
  }
  if (recorder_ != nullptr) {
    RecordTask(frame, task, options_.parallel.roles.num_ranks(), *recorder_);
  }
  if (watches_rows_ && !not_finite_) LookAtRows(task);
}

std::unique_ptr<comm::Exchange> StepRunner::Start(const Task& task) {
  const Operator& work = OperatorOf(task.kind);
  CHECK(work.start != nullptr, "no exchange: {}", schedule::Name(task.kind));
  if (!has_failed()) {
    // The other ranks are in the exchange, too, and wait.
    if (const Status fine = BeforeTask(task); !fine) Fail(task, fine.error());
  }
  if (recorder_ == nullptr) return (this->*work.start)(task, FrameOf(task));
  const comm::Group& group = *options_.parallel.group;
  const uint64_t before = group.sent_bytes();
  std::unique_ptr<comm::Exchange> exchange = (this->*work.start)(task, FrameOf(task));
  recorder_->SetSent(task, group.sent_bytes() - before);
  return exchange;
}

Status StepRunner::End() {
  Status mine;
  if (has_failed()) {
    const std::lock_guard lock(fault_mutex_);
    mine = fault_;
  }
  // Behind an encoder's last exchange, keys and values of the decoder's layers are made.
  const bool agrees = !statuses_.empty() && (encodes_ || AnyHasFailed());
  return agrees ? comm::AgreeOnSuccess(*options_.parallel.group, mine) : mine;
}

Status StepRunner::Embed(const Task& task, Frame& frame) {
  const auto embedding = context_.weights.LeaseEmbedding(task.encoder);
  if (!embedding) return embedding.error();
  const OwnRows own = frame.own();
  context_.pool.ParallelFor(own.count, [&](int64_t i, int) {
    const int64_t row = own.first + i;
    float* hidden = frame.activations.hidden.floats(row);
    kernels::UnpackRow(**embedding, frame.rows.token(row), hidden);
    const float scale = context_.spec().embedding_scale;
    if (scale == 1) return;
    for (int column = 0; column < context_.spec().hidden_size; ++column) hidden[column] *= scale;
  });
  return {};
}

Status StepRunner::NormalizeRows(std::span<const float> weight, const Frame& frame,
                                 bool also_float) {
  context_.Normalize(weight, frame.own(), also_float, frame.activations);
  return {};
}

Status StepRunner::Normalize(const Task& task, Frame& frame) {
  const weights::WeightStore& weights = context_.weights;
  if (task.layer >= 0) {
    return NormalizeRows(weights.AttentionNorm(LayerOf(task).id(), task.cross), frame,
                         /*also_float=*/false);
  }
  if (!task.encoder && expert_capacity_.is_limited()) frame.KeepWanted();
  return NormalizeRows(weights.FinalNorm(task.encoder), frame, /*also_float=*/task.encoder);
}

Status StepRunner::Project(const Task& task, Frame& frame) {
  const Layer& layer = LayerOf(task);
  if (Status projected = attention_.Project(layer, frame); !projected) return projected;
  row_exchange_.SumSquares(frame, layer.spec.attention);
  return {};
}

Status StepRunner::Attend(const Task& task, Frame& frame) {
  const Layer& layer = LayerOf(task);
  const bool only_wanted = OnlyWanted(task);
  const bool is_divided = options_.parallel.roles.attention_parts() > 1;
  const model::AttentionSpec& local = layer.spec.attention;
  const auto leased = context_.weights.LeaseLayer(
      layer.id(), task.cross ? LayerPart::kCrossAttention : LayerPart::kAttention);
  if (!leased) return leased.error();
  const weights::LayerWeights& weights = **leased;
  if (!is_divided) {
    if (Status normalized = Normalize(task, frame); !normalized) return normalized;
  }
  if (task.cross) {
    frame.num_out = cross_attention_.Run(layer, weights, frame, only_wanted);
  } else if (is_divided && local.qk_norm == model::QkNorm::kWholeProjection) {
    const model::AttentionSpec& whole =
        options_.parallel.WholeOf(context_.spec()).layers[task.layer].attention;
    row_exchange_.NormalizeWhole(frame, local, whole, weights.query_norm, weights.key_norm);
    frame.num_out = attention_.Attend(layer, weights, frame, only_wanted, /*is_normed=*/true);
  } else {
    if (Status projected = attention_.Project(layer, frame); !projected) return projected;
    frame.num_out = attention_.Attend(layer, weights, frame, only_wanted, /*is_normed=*/false);
  }

  const auto output = [&](Epilogue epilogue, float scale, const RowBuffer& out) {
    const std::span<const float> no_bias;
    context_.Multiply(task.cross ? weights.cross->output : weights.output,
                      frame.activations.attention_out, frame.num_out, epilogue, out,
                      task.cross ? no_bias : weights.output_bias, {.scale = scale});
  };
  if (is_divided) {
    output(Epilogue::kStore, 1, frame.activations.partial_out);
    if (only_wanted && !task.cross) frame.DivideWanted();
    row_exchange_.PackPartials(frame);
    return {};
  }
  if (only_wanted && !task.cross) frame.KeepWanted();
  output(Epilogue::kAdd, context_.spec().residual_scale, frame.activations.hidden);
  return {};
}

Status StepRunner::AddPartials(const Task& task, Frame& frame) {
  if (OnlyWanted(task) && !task.cross) frame.KeepWanted();
  row_exchange_.AddPartials(frame, context_.spec().residual_scale);
  return {};
}

Status StepRunner::Dense(const Task& task, Frame& frame) {
  return feed_forward_.Dense(LayerOf(task), frame);
}

Status StepRunner::Route(const Task& task, Frame& frame) {
  return feed_forward_.Route(LayerOf(task), frame, Limit(LayerOf(task), frame));
}

Status StepRunner::Shared(const Task& task, Frame& frame) {
  return feed_forward_.Shared(LayerOf(task), frame);
}

Status StepRunner::Experts(const Task& task, Frame& frame) {
  return feed_forward_.Experts(LayerOf(task), frame, task.chunk);
}

Status StepRunner::Reduce(const Task& task, Frame& frame) {
  feed_forward_.Reduce(frame, task.chunk);
  return {};
}

Status StepRunner::Finish(const Task& task, Frame& frame) {
  feed_forward_.Finish(LayerOf(task), frame);
  return {};
}

Status StepRunner::RunHead(const Task&, Frame&) {
  // Nobody is to see rows that are worth nothing.
  return AnyHasFailed() ? Status() : head_.Run(frames(), *logits_sink_);
}

Status StepRunner::CrossStore(const Task&, Frame& frame) {
  for (const Layer& layer : stacks_.decoder()) {
    if (Status stored = cross_attention_.Store(layer, frame); !stored) return stored;
  }
  if (states_sink_ != nullptr && *states_sink_ && !AnyHasFailed()) {
    head_.PassStates(frames(), *states_sink_);
  }
  return {};
}

void StepRunner::SkipToWanted(const Task& task, Frame& frame) {
  const bool is_final_norm = task.layer < 0 && !task.encoder;
  const bool keeps_wanted = is_final_norm ? expert_capacity_.is_limited()
                                          : task.kind != schedule::TaskKind::kNormalize &&
                                                OnlyWanted(task) && !task.cross;
  if (keeps_wanted) frame.DivideWanted();
}

void StepRunner::SkipRoute(const Task& task, Frame& frame) {
  const model::MoeSpec& moe = *LayerOf(task).spec.moe;
  frame.expert_rows.Begin(task.layer, moe.num_experts, moe.top_k, {}, {});
}

void StepRunner::SkipExperts(const Task& task, Frame& frame) {
  frame.expert_rows.Select(task.chunk);
}

void StepRunner::SkipReduce(const Task& task, Frame& frame) {
  frame.expert_rows.Returns(task.chunk);
}

std::unique_ptr<comm::Exchange> StepRunner::Counts(const Task&, Frame& frame) {
  return frame.expert_rows.StartCounts();
}

std::unique_ptr<comm::Exchange> StepRunner::Dispatch(const Task& task, Frame& frame) {
  return frame.expert_rows.StartDispatch(task.chunk);
}

std::unique_ptr<comm::Exchange> StepRunner::Combine(const Task& task, Frame& frame) {
  return frame.expert_rows.StartCombine(task.chunk);
}

std::unique_ptr<comm::Exchange> StepRunner::GatherNormed(const Task& task, Frame& frame) {
  return row_exchange_.StartGatherNormed(frame, NameOf("gathering normed rows", task));
}

std::unique_ptr<comm::Exchange> StepRunner::NormSums(const Task& task, Frame& frame) {
  return row_exchange_.StartNormSums(frame, NameOf("sums of squares", task));
}

std::unique_ptr<comm::Exchange> StepRunner::ScatterSums(const Task& task, Frame& frame) {
  return row_exchange_.StartScatterSums(frame, NameOf("partial sums", task));
}

std::unique_ptr<comm::Exchange> StepRunner::GatherRows(const Task& task, Frame& frame) {
  const Activations& from = frame.activations;
  statuses_[rank_] = has_failed();
  return row_exchange_.StartGatherRows(frame, task.encoder ? from.normed_float : from.normed,
                                       statuses_);
}

std::vector<CapacityRow> StepRunner::CapacityRows(const StepRows& rows) const {
  std::vector<CapacityRow> capacity_rows;
  for (int row = 0; row < rows.num_rows(); ++row) {
    // Running sequences that share nothing have different first blocks.
    const SequenceStep& sequence = rows.step()[rows.sequence(row)];
    capacity_rows.push_back({.sequence = sequence.blocks.front(),
                             .first = rows.position(row) == 0,
                             .counts = rows.position(row) < sequence.prompt_length});
  }
  return capacity_rows;
}

CapacityStep StepRunner::Limit(const Layer& layer, const Frame& frame) {
  if (!expert_capacity_.is_limited()) return {};
  // Both stacks count for themselves.
  const int first = layer.is_encoder ? static_cast<int>(stacks_.decoder().size()) : 0;
  return {&expert_capacity_, first + layer.index, frame.capacity_rows};
}

void StepRunner::LookAtRows(const Task& task) {
  // Logits are the caller's matter.
  if (task.layer < 0 && task.kind != schedule::TaskKind::kEmbed) return;
  const Frame& frame = FrameOf(task);
  const OwnRows own = frame.own();
  const auto hidden_size = static_cast<size_t>(context_.spec().hidden_size);
  for (int row = own.first; row < own.first + own.count; ++row) {
    const float* hidden = frame.activations.hidden.floats(row);
    if (tensor::AllFinite(std::span(hidden, hidden_size))) continue;
    not_finite_ =
        TaskAt{std::max(0, task.layer), task.encoder, std::string(schedule::Name(task.kind))};
    return;
  }
}

}  // namespace convene::runtime
