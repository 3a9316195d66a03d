#include "runtime/step_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/pack.h"
#include "model/relative_bias.h"
#include "tensor/finite.h"

namespace convene::runtime {

using kernels::Epilogue;
using schedule::Task;
using enum schedule::TaskKind;

const model::ModelSpec& WholeSpec(const weights::ModelWeights& weights,
                                  const TransformerOptions& options) {
  const model::ModelSpec* whole = options.parallel.whole_spec;
  return whole != nullptr ? *whole : weights.spec;
}

int ContextOf(const TransformerOptions& options) {
  return options.context > 0 ? options.context : options.num_kv_blocks * kKvBlockTokens;
}

namespace {

// Of a rank whose sequences have so many tokens: those that are divided among the ranks with parts
// of their heads.
int MostOwnRows(const TransformerOptions& options) {
  const int parts = options.parallel.layout.attention_tp;
  return (options.max_step_tokens + parts - 1) / parts;
}

FeedForward::Options FeedForwardOptions(const TransformerOptions& options) {
  const ParallelOptions& parallel = options.parallel;
  return {.layout = parallel.layout,
          .pipeline = parallel.pipeline,
          .rank = parallel.rank(),
          .wire = parallel.wire,
          .router = parallel.router,
          .capacity_factor = parallel.capacity_factor,
          .most_rows = MostOwnRows(options)};
}

RowExchange::Options RowExchangeOptions(const TransformerOptions& options) {
  return {.layout = options.parallel.layout,
          .rank = options.parallel.rank(),
          .wire = options.parallel.wire,
          .most_tokens = options.max_step_tokens,
          .most_rows = MostOwnRows(options)};
}

}  // namespace

int64_t ExchangeBytes(const model::ModelSpec& spec, const TransformerOptions& options,
                      int num_threads) {
  return FeedForward::MemoryBytes(spec, options.activations, FeedForwardOptions(options),
                                  num_threads) +
         RowExchange::MemoryBytes(spec, options.activations, RowExchangeOptions(options),
                                  num_threads);
}

StepRunner::StepRunner(const weights::ModelWeights& weights, const kernels::KernelSet& kernels,
                       hardware::ThreadPool& pool, const TransformerOptions& options, KvCache cache,
                       Activations activations)
    : options_(options),
      rank_(options.parallel.rank()),
      cache_(std::move(cache)),
      activations_(std::move(activations)),
      context_{.weights = weights,
               .kernels = kernels,
               .pool = pool,
               .activations = activations_,
               .statistics = statistics_,
               .dense_from_rows = options.dense_from_rows,
               .comm_budget = options.parallel.comm_budget},
      rows_(weights.spec),
      attender_(context_),
      attention_(context_, cache_, attender_,
                 {.expand_from_tokens = options.expand_from_tokens, .context = ContextOf(options)}),
      cross_attention_(context_, cache_, attender_),
      exchange_memory_(activations_.exchange),
      feed_forward_(context_, FeedForwardOptions(options), options.parallel.group,
                    exchange_memory_),
      row_exchange_(context_, RowExchangeOptions(options), options.parallel.group,
                    exchange_memory_),
      expert_capacity_(options.expert_capacity) {
  // The memory plan has what the buffers took, no less and no more.
  CHECK(exchange_memory_.left_bytes() == 0, "{} bytes too many", exchange_memory_.left_bytes());
  const model::ModelSpec& spec = weights.spec;
  decoder_bias_ = BiasOf(spec.layers, weights.relative_bias);
  decoder_ = Stack(spec.layers, weights.layers, decoder_bias_, /*is_encoder=*/false);
  if (!weights.encoder) return;
  encoder_bias_ = BiasOf(spec.encoder_layers, weights.encoder->relative_bias);
  encoder_ = Stack(spec.encoder_layers, weights.encoder->layers, encoder_bias_,
                   /*is_encoder=*/true);
}

void StepRunner::BeginForward(std::span<const SequenceStep> step, const LogitsSink* sink) {
  logits_sink_ = sink;
  states_sink_ = nullptr;
  Begin(step);
  BeginCapacity();
  if (recorder_ != nullptr) RecordRows(/*encoder=*/false);
  if (rank_ == 0) FindHeadRows(step);
}

void StepRunner::BeginEncode(std::span<const EncoderInput> inputs, bool with_states,
                             const StatesSink* sink) {
  CHECK(context_.weights.encoder.has_value(), "the model has no encoder");
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
  Begin(step);
  BeginCapacity();
  if (recorder_ != nullptr) RecordRows(/*encoder=*/true);
  statistics_.logits_rows = 0;
  if (rank_ == 0) FindHeadRows(step);
}

void StepRunner::Begin(std::span<const SequenceStep> step) {
  const strategy::Layout& layout = options_.parallel.layout;
  own_step_.clear();
  for (const SequenceStep& sequence : step) {
    CHECK(sequence.group >= 0 && sequence.group < layout.attention_dp, "group {} of {}",
          sequence.group, layout.attention_dp);
    if (sequence.group == layout.attention_group(rank_)) own_step_.push_back(sequence);
  }
  rows_.Begin(own_step_, context_.pool);
  CHECK(rows_.num_rows() <= options_.max_step_tokens, "{} tokens in a step of at most {}",
        rows_.num_rows(), options_.max_step_tokens);
  statistics_ = {.logits_rows = static_cast<int64_t>(rows_.wanted().size())};
  for (const SequenceStep& sequence : step) statistics_.tokens += std::ssize(sequence.tokens);
  ++context_.step_number;
  DivideRows();
}

void StepRunner::DivideRows() {
  std::vector<OwnRows> owners;
  const int num_parts = options_.parallel.layout.attention_tp;
  for (int part = 0; part < num_parts; ++part) {
    const strategy::Part rows = strategy::PartOf(rows_.num_rows(), part, num_parts);
    owners.push_back({rows.first, rows.size});
  }
  row_exchange_.SetOwners(std::move(owners));
}

// Which rank has each row that the head wants, in the order of the step.
void StepRunner::FindHeadRows(std::span<const SequenceStep> step) {
  const strategy::Layout& layout = options_.parallel.layout;
  std::vector<int> num_rows(static_cast<size_t>(layout.attention_dp), 0);
  for (const SequenceStep& sequence : step) {
    num_rows[sequence.group] += static_cast<int>(sequence.tokens.size());
  }
  head_rows_.clear();
  wanted_counts_.assign(static_cast<size_t>(layout.num_ranks()), 0);
  std::vector<int> next_row(num_rows.size(), 0);
  for (int i = 0; i < std::ssize(step); ++i) {
    const int group = step[i].group;
    const auto num_tokens = static_cast<int>(step[i].tokens.size());
    for (int token = step[i].first_logits_token; token < num_tokens; ++token) {
      const int row = next_row[group] + token;
      int part = 0;
      const auto end_of = [&](int p) {
        const strategy::Part rows = strategy::PartOf(num_rows[group], p, layout.attention_tp);
        return rows.first + rows.size;
      };
      while (row >= end_of(part)) ++part;
      const int rank = group * layout.attention_tp + part;
      head_rows_.push_back({i, token, rank, wanted_counts_[rank]++});
    }
    next_row[group] += num_tokens;
  }
}

bool StepRunner::OnlyWanted(const Task& task) const {
  // Rows that are not wanted may still take other rows' places.
  return !task.encoder && task.layer + 1 == std::ssize(decoder_) && !expert_capacity_.is_limited();
}

void StepRunner::Compute(const Task& task) {
  Run(task);
  if (recorder_ != nullptr) RecordTask(task);
  if (watches_rows_ && !not_finite_) LookAtRows(task);
}

void StepRunner::Run(const Task& task) {
  const OwnRows own = row_exchange_.own();
  switch (task.kind) {
    case kEmbed:
      return Embed(task.encoder);
    case kNormalize:
      return Normalize(task);
    case kProject: {
      const Layer& layer = LayerOf(task);
      attention_.Project(layer, rows_);
      return row_exchange_.SumSquares(layer.spec.attention, rows_.num_rows());
    }
    case kAttention:
      return Attend(task);
    case kAddPartials:
      if (OnlyWanted(task) && !task.cross) KeepWanted();
      return row_exchange_.AddPartials(context_.spec().residual_scale);
    case kDense:
      return feed_forward_.Dense(LayerOf(task), own);
    case kRoute:
      return feed_forward_.Route(LayerOf(task), own, Limit(LayerOf(task)));
    case kShared:
      return feed_forward_.Shared(LayerOf(task), own);
    case kExperts:
      return feed_forward_.Experts(LayerOf(task), task.chunk);
    case kReduce:
      return feed_forward_.Reduce(task.chunk);
    case kFinish:
      return feed_forward_.Finish(LayerOf(task), own);
    case kHead:
      return Head();
    case kCrossStore:
      return CrossStore();
    default:
      CHECK(false, "no computation: {}", schedule::Name(task.kind));
  }
}

std::unique_ptr<comm::Exchange> StepRunner::Start(const Task& task) {
  if (recorder_ == nullptr) return StartExchange(task);
  const comm::Group& group = *options_.parallel.group;
  const uint64_t before = group.sent_bytes();
  std::unique_ptr<comm::Exchange> exchange = StartExchange(task);
  recorder_->SetSent(task, group.sent_bytes() - before);
  return exchange;
}

std::unique_ptr<comm::Exchange> StepRunner::StartExchange(const Task& task) {
  switch (task.kind) {
    case kCounts:
      return feed_forward_.rows().StartCounts();
    case kDispatch:
      return feed_forward_.rows().StartDispatch(task.chunk);
    case kCombine:
      return feed_forward_.rows().StartCombine(task.chunk);
    case kGatherNormed:
      return row_exchange_.StartGatherNormed(What("gathering normed rows", task));
    case kNormSums:
      return row_exchange_.StartNormSums(rows_.num_rows(), What("sums of squares", task));
    case kScatterSums:
      return row_exchange_.StartScatterSums(What("partial sums", task));
    case kGatherRows:
      return row_exchange_.StartGatherRows(
          task.encoder ? activations_.normed_float : activations_.normed,
          static_cast<int>(rows_.wanted().size()), wanted_counts_);
    default:
      CHECK(false, "no exchange: {}", schedule::Name(task.kind));
  }
}

std::string StepRunner::What(const char* exchange, const Task& task) const {
  const char* stack = task.encoder ? "encoder" : "decoder";
  if (task.layer < 0) return fmt::format("{} of the {}", exchange, stack);
  return fmt::format("{} of {} layer {}", exchange, stack, task.layer);
}

void StepRunner::Embed(bool encoder) {
  const kernels::PackedMatrix& embedding =
      encoder ? context_.weights.encoder->embedding : context_.weights.embedding;
  const OwnRows own = row_exchange_.own();
  context_.pool.ParallelFor(own.count, [&](int64_t i, int) {
    const int64_t row = own.first + i;
    float* hidden = activations_.hidden.floats(row);
    kernels::UnpackRow(embedding, rows_.token(row), hidden);
    const float scale = context_.spec().embedding_scale;
    if (scale == 1) return;
    for (int column = 0; column < context_.spec().hidden_size; ++column) hidden[column] *= scale;
  });
}

void StepRunner::Normalize(const Task& task) {
  if (task.layer >= 0) {
    const weights::LayerWeights& weights = LayerOf(task).weights;
    context_.Normalize(task.cross ? weights.cross->norm : weights.attention_norm,
                       row_exchange_.own(), /*also_float=*/false);
    return;
  }
  if (task.encoder) {
    context_.Normalize(context_.weights.encoder->final_norm, row_exchange_.own(),
                       /*also_float=*/true);
    return;
  }
  if (expert_capacity_.is_limited()) KeepWanted();
  context_.Normalize(context_.weights.final_norm, row_exchange_.own(), /*also_float=*/false);
}

void StepRunner::Attend(const Task& task) {
  const Layer& layer = LayerOf(task);
  const bool only_wanted = OnlyWanted(task);
  const bool is_divided = options_.parallel.layout.attention_tp > 1;
  const model::AttentionSpec& local = layer.spec.attention;
  if (!is_divided) Normalize(task);
  if (task.cross) {
    num_out_ = cross_attention_.Run(layer, rows_, only_wanted);
  } else if (is_divided && local.qk_norm == model::QkNorm::kWholeProjection) {
    const model::AttentionSpec& whole =
        WholeSpec(context_.weights, options_).layers[task.layer].attention;
    row_exchange_.NormalizeWhole(local, whole, layer.weights.query_norm, layer.weights.key_norm,
                                 rows_.num_rows());
    num_out_ = attention_.Attend(layer, rows_, only_wanted, /*is_normed=*/true);
  } else {
    attention_.Project(layer, rows_);
    num_out_ = attention_.Attend(layer, rows_, only_wanted, /*is_normed=*/false);
  }

  const auto output = [&](Epilogue epilogue, float scale, const RowBuffer& out) {
    if (task.cross) {
      cross_attention_.Output(layer, num_out_, epilogue, scale, out);
    } else {
      attention_.Output(layer, num_out_, epilogue, scale, out);
    }
  };
  if (is_divided) {
    output(Epilogue::kStore, 1, activations_.partial_out);
    if (only_wanted && !task.cross) DivideWanted();
    row_exchange_.PackPartials();
    return;
  }
  if (only_wanted && !task.cross) KeepWanted();
  output(Epilogue::kAdd, context_.spec().residual_scale, activations_.hidden);
}

// From here on rows are the wanted ones: each rank owns those that it owned before.
void StepRunner::DivideWanted() {
  std::vector<OwnRows> owners;
  const std::span<const int32_t> wanted = rows_.wanted();
  const int num_parts = options_.parallel.layout.attention_tp;
  int first = 0;
  for (int part = 0; part < num_parts; ++part) {
    const strategy::Part rows = strategy::PartOf(rows_.num_rows(), part, num_parts);
    const auto end = std::lower_bound(wanted.begin(), wanted.end(), rows.first + rows.size);
    const auto last = static_cast<int>(end - wanted.begin());
    owners.push_back({first, last - first});
    first = last;
  }
  row_exchange_.SetOwners(std::move(owners));
}

// Moves the own rows whose logits are wanted to their places among the wanted ones.
void StepRunner::KeepWanted() {
  DivideWanted();
  const OwnRows own = row_exchange_.own();
  for (int i = own.first; i < own.first + own.count; ++i) {
    std::memmove(activations_.hidden.row(i), activations_.hidden.row(rows_.wanted()[i]),
                 activations_.hidden.stride_bytes);
  }
}

void StepRunner::CrossStore() {
  for (const Layer& layer : decoder_) cross_attention_.Store(layer, rows_);
  if (states_sink_ == nullptr || !*states_sink_) return;
  const auto hidden_size = static_cast<size_t>(context_.spec().hidden_size);
  for (const HeadRow& row : head_rows_) {
    const std::byte* states =
        row_exchange_.GatheredRow(activations_.normed_float, row.rank, row.row_idx);
    (*states_sink_)(row.sequence_idx, row.token_idx,
                    {reinterpret_cast<const float*>(states), hidden_size});
  }
}

void StepRunner::Head() {
  const auto vocab_size = static_cast<size_t>(context_.spec().vocab_size);
  const auto num_rows = static_cast<int>(head_rows_.size());
  for (int first = 0; first < num_rows; first += Activations::kHeadRows) {
    const int count = std::min(Activations::kHeadRows, num_rows - first);
    for (int i = 0; i < count; ++i) {
      const HeadRow& row = head_rows_[first + i];
      std::memcpy(activations_.wanted.row(i),
                  row_exchange_.GatheredRow(activations_.normed, row.rank, row.row_idx),
                  activations_.wanted.stride_bytes);
    }
    context_.Multiply(context_.weights.head, activations_.wanted, count, Epilogue::kStore,
                      activations_.logits, {}, {.scale = context_.spec().logits_scale});
    for (int i = 0; i < count; ++i) {
      const HeadRow& row = head_rows_[first + i];
      (*logits_sink_)(row.sequence_idx, row.token_idx, {activations_.logits.floats(i), vocab_size});
    }
  }
}

void StepRunner::BeginCapacity() {
  if (!expert_capacity_.is_limited()) return;
  capacity_rows_.clear();
  for (int row = 0; row < rows_.num_rows(); ++row) {
    // Running sequences that share nothing have different first blocks.
    const SequenceStep& sequence = rows_.step()[rows_.sequence(row)];
    capacity_rows_.push_back({.sequence = sequence.blocks.front(),
                              .first = rows_.position(row) == 0,
                              .counts = rows_.position(row) < sequence.prompt_length});
  }
}

CapacityStep StepRunner::Limit(const Layer& layer) {
  if (!expert_capacity_.is_limited()) return {};
  // Both stacks count for themselves.
  const int first = layer.is_encoder ? static_cast<int>(decoder_.size()) : 0;
  return {&expert_capacity_, first + layer.index, capacity_rows_};
}

void StepRunner::RecordRows(bool encoder) {
  using enum schedule::SizeKind;
  const OwnRows own = row_exchange_.own();
  double keys = 0;
  for (int row = 0; row < rows_.num_rows(); ++row) {
    const SequenceStep& sequence = rows_.step()[rows_.sequence(row)];
    // An encoder's tokens see their whole input.
    keys += encoder ? static_cast<double>(sequence.tokens.size()) : rows_.position(row) + 1;
  }
  const auto wanted = std::count_if(rows_.wanted().begin(), rows_.wanted().end(), [&](int row) {
    return row >= own.first && row < own.first + own.count;
  });
  recorder_->Begin();
  recorder_->Set({.kind = kRows, .from = rank_}, own.count);
  recorder_->Set({.kind = kTokens, .from = rank_}, rows_.num_rows());
  recorder_->Set({.kind = kKeys, .from = rank_}, keys);
  recorder_->Set({.kind = kWanted, .from = rank_}, static_cast<double>(wanted));
}

// The sizes that the task has made known.
void StepRunner::RecordTask(const Task& task) {
  using enum schedule::SizeKind;
  const ExpertRows& rows = feed_forward_.rows();
  const int num_ranks = options_.parallel.layout.num_ranks();
  const auto set = [&](schedule::SizeKind kind, int chunk, int to, double value) {
    recorder_->Set({kind, task.layer, chunk, rank_, to}, value);
  };
  if (task.kind == kRoute) {
    for (int to = 0; to < num_ranks; ++to) {
      for (int chunk = 0; to != rank_ && chunk < rows.num_chunks(); ++chunk) {
        set(kSent, chunk, to, static_cast<double>(rows.sent_rows(to, chunk)));
      }
    }
  } else if (task.kind == schedule::TaskKind::kExperts) {
    const std::vector<int32_t>& first = rows.selected().first_slot;
    int experts = 0;
    for (size_t i = 1; i < first.size(); ++i) experts += first[i] > first[i - 1];
    set(kSlots, task.chunk, -1, first.back() - first.front());
    set(schedule::SizeKind::kExperts, task.chunk, -1, experts);
  } else if (task.kind == kReduce) {
    for (int to = 0; to < num_ranks; ++to) {
      if (to == rank_) continue;
      set(kReturned, task.chunk, to, static_cast<double>(rows.returned_rows(to, task.chunk)));
    }
  }
}

void StepRunner::LookAtRows(const Task& task) {
  if (task.layer < 0 && task.kind != kEmbed) return;  // logits are the caller's matter
  const OwnRows own = row_exchange_.own();
  const auto hidden_size = static_cast<size_t>(context_.spec().hidden_size);
  for (int row = own.first; row < own.first + own.count; ++row) {
    if (tensor::AllFinite(std::span(activations_.hidden.floats(row), hidden_size))) continue;
    not_finite_ =
        TaskAt{std::max(0, task.layer), task.encoder, std::string(schedule::Name(task.kind))};
    return;
  }
}

// Scores by distance, or nothing where the stack has none.
std::vector<float> StepRunner::BiasOf(const std::vector<model::LayerSpec>& layers,
                                      std::span<const float> table) const {
  const model::AttentionSpec& attention = layers.front().attention;
  if (!attention.relative_bias) return {};
  return model::BiasByDistance(*context_.spec().relative_bias, table, attention.num_heads,
                               /*bidirectional=*/!attention.causal, kernels::kLanes);
}

// The encoder's layers use the first decoder layer's part of the cache, which gets the decoder's
// keys and values only afterwards.
std::vector<Layer> StepRunner::Stack(const std::vector<model::LayerSpec>& specs,
                                     const std::vector<weights::LayerWeights>& weights,
                                     std::span<const float> bias, bool is_encoder) const {
  std::vector<Layer> layers;
  for (size_t i = 0; i < specs.size(); ++i) {
    kernels::DistanceBias by_distance;
    if (!bias.empty()) {
      by_distance = {.table = bias.data(),
                     .head_stride = std::ssize(bias) / specs[i].attention.num_heads,
                     .reach = context_.spec().relative_bias->max_distance};
    }
    layers.push_back({.spec = specs[i],
                      .weights = weights[i],
                      .index = static_cast<int>(i),
                      .is_encoder = is_encoder,
                      .cache_layer = is_encoder ? 0 : static_cast<int>(i),
                      .bias = by_distance});
  }
  return layers;
}

}  // namespace convene::runtime
