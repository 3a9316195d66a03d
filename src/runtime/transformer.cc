#include "runtime/transformer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "base/check.h"
#include "kernels/pack.h"
#include "model/relative_bias.h"
#include "runtime/activations.h"
#include "runtime/attend.h"
#include "runtime/attention_layer.h"
#include "runtime/cross_attention.h"
#include "runtime/expert_capacity.h"
#include "runtime/feed_forward.h"
#include "runtime/forward_context.h"
#include "runtime/kv_cache.h"
#include "runtime/step_rows.h"

namespace convene::runtime {

static_assert(kKvBlockTokens == kernels::kKvBlockTokens);

namespace {

int Context(const TransformerOptions& options) {
  return options.context > 0 ? options.context : options.num_kv_blocks * kKvBlockTokens;
}

}  // namespace

struct Transformer::State {
  State(const weights::ModelWeights& weights, const kernels::KernelSet& kernels,
        hardware::ThreadPool& pool, const TransformerOptions& options_in, KvCache cache_in,
        Activations activations_in)
      : options(options_in),
        cache(std::move(cache_in)),
        activations(std::move(activations_in)),
        context{weights, kernels, pool, activations, statistics, options.dense_from_rows},
        rows(weights.spec),
        attender(context),
        attention(context, cache, attender,
                  {.expand_from_tokens = options.expand_from_tokens, .context = Context(options)}),
        cross_attention(context, cache, attender),
        feed_forward(context),
        expert_capacity(options.expert_capacity) {
    const model::ModelSpec& spec = weights.spec;
    decoder_bias = BiasOf(spec, spec.layers.front(), weights.relative_bias);
    decoder = Stack(spec.layers, weights.layers, decoder_bias);
    if (!weights.encoder) return;
    encoder_bias = BiasOf(spec, spec.encoder_layers.front(), weights.encoder->relative_bias);
    encoder = Stack(spec.encoder_layers, weights.encoder->layers, encoder_bias);
  }

  static std::vector<float> BiasOf(const model::ModelSpec& spec, const model::LayerSpec& layer,
                                   std::span<const float> table);
  std::vector<Layer> Stack(const std::vector<model::LayerSpec>& specs,
                           const std::vector<weights::LayerWeights>& weights,
                           std::span<const float> bias) const;

  void Embed(const kernels::PackedMatrix& embedding);
  void Head(int num_rows, const LogitsSink& sink);
  void BeginCapacity();
  // Moves the rows whose logits are wanted to the front.
  int KeepWanted();
  CapacityStep Limit(int layer);

  TransformerOptions options;
  KvCache cache;
  Activations activations;
  StepStatistics statistics;
  ForwardContext context;
  StepRows rows;
  Attender attender;
  AttentionLayer attention;
  CrossAttention cross_attention;
  FeedForward feed_forward;
  std::vector<float> decoder_bias;  // by distance, as DistanceBias
  std::vector<float> encoder_bias;
  std::vector<Layer> decoder;
  std::vector<Layer> encoder;
  ExpertCapacity expert_capacity;
  std::vector<CapacityRow> capacity_rows;  // of the step, where there is a limit
};

uint64_t Transformer::KvBlockBytes(const model::ModelSpec& spec, kernels::KvFormat format) {
  return KvCache::BlockBytes(spec, format);
}

uint64_t Transformer::ActivationBytes(const model::ModelSpec& spec,
                                      kernels::ActivationFormat format, int max_step_tokens,
                                      int context, int num_threads) {
  return Activations::SizeBytes(spec, format, max_step_tokens, context, num_threads);
}

namespace {

// Sums of products of bytes stay within 32 bits up to so many columns (kernels/packed_matrix.h).
constexpr int kMostInt8Columns = 1 << 16;

// Of both stacks.
std::vector<model::LayerSpec> AllLayers(const model::ModelSpec& spec) {
  std::vector<model::LayerSpec> layers = spec.encoder_layers;
  layers.insert(layers.end(), spec.layers.begin(), spec.layers.end());
  return layers;
}

int MostColumns(const model::ModelSpec& spec) {
  int most = spec.hidden_size;
  for (const model::LayerSpec& layer : AllLayers(spec)) {
    most = std::max({most, layer.attention.output_dim(), layer.dense_intermediate_size});
    if (layer.attention.latent) most = std::max(most, layer.attention.latent->query_rank);
    if (!layer.moe) continue;
    most = std::max({most, layer.moe->intermediate_size, layer.moe->shared_intermediate_size});
  }
  return most;
}

}  // namespace

Result<Transformer> Transformer::Create(const weights::ModelWeights& weights,
                                        const kernels::KernelSet& kernels,
                                        hardware::ThreadPool& pool,
                                        const TransformerOptions& options) {
  for (const model::LayerSpec& layer : AllLayers(weights.spec)) {
    if (layer.moe && std::max(layer.moe->top_k, layer.moe->top_groups) > kernels::kMaxTopK) {
      return Error{
          fmt::format("the model activates {} experts of {} groups per token; at most {} are "
                      "supported",
                      layer.moe->top_k, layer.moe->top_groups, kernels::kMaxTopK)};
    }
    const model::AttentionSpec& attention = layer.attention;
    const int key_dim = attention.latent ? attention.latent->key_dim() : 0;
    const int head_dim = std::max({attention.head_dim, attention.value_dim, key_dim});
    if (head_dim > kernels::kMaxHeadDim) {
      return Error{fmt::format("the model has heads of {} channels; at most {} are supported",
                               head_dim, kernels::kMaxHeadDim)};
    }
  }
  for (const model::LayerSpec& layer : AllLayers(weights.spec)) {
    if (options.expert_capacity > 0 && layer.moe && layer.moe->top_k != 1) {
      return Error{
          fmt::format("a capacity of experts is for models with one expert per token; this one "
                      "activates {}: leave --expert-capacity out",
                      layer.moe->top_k)};
    }
  }
  if (options.activations == kernels::ActivationFormat::kInt8 &&
      MostColumns(weights.spec) > kMostInt8Columns) {
    return Error{
        fmt::format("a matrix of the model has {} columns; int8 activations are supported "
                    "up to {}: use --activations bf16",
                    MostColumns(weights.spec), kMostInt8Columns)};
  }
  Result<KvCache> cache = KvCache::Create(weights.spec, options.kv, options.num_kv_blocks);
  if (!cache) return cache.error();
  Result<Activations> activations = Activations::Create(
      weights.spec, options.activations, options.max_step_tokens, Context(options), pool.size());
  if (!activations) return activations.error();
  return Transformer(std::make_unique<State>(weights, kernels, pool, options, std::move(*cache),
                                             std::move(*activations)));
}

Transformer::Transformer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Transformer::Transformer(Transformer&&) noexcept = default;
Transformer& Transformer::operator=(Transformer&&) noexcept = default;
Transformer::~Transformer() = default;

const StepStatistics& Transformer::statistics() const { return state_->statistics; }

int Transformer::SharingLimit(int prompt_length) const {
  const model::ModelSpec& spec = state_->context.spec();
  // Whether an expert still has room depends on what was counted, not on what is cached.
  if (state_->expert_capacity.is_limited()) return 0;
  // What a decoder attends to is not among its tokens.
  if (!spec.encoder_layers.empty()) return 0;
  int limit = std::numeric_limits<int>::max();
  if (spec.rope.DependsOnLength()) {
    // A longer prompt has other frequencies from its first position on.
    const bool is_short = prompt_length <= spec.rope.original_max_positions;
    limit = is_short ? spec.rope.original_max_positions : 0;
  }
  const auto has_latent = [](const model::LayerSpec& layer) { return layer.attention.latent; };
  if (std::any_of(spec.layers.begin(), spec.layers.end(), has_latent)) {
    // Two forms of attention, two roundings: long prompts share their prompts.
    const LatentOptions forms{.expand_from_tokens = state_->options.expand_from_tokens};
    limit = std::min(limit, forms.Expands(prompt_length) ? prompt_length : 0);
  }
  return limit;
}

void Transformer::Forward(std::span<const SequenceStep> step, const LogitsSink& sink) {
  State& state = *state_;
  state.rows.Begin(step, state.context.pool);
  int num_rows = state.rows.num_rows();
  CHECK(num_rows <= state.options.max_step_tokens, "{} tokens in a step of at most {}", num_rows,
        state.options.max_step_tokens);
  const auto num_wanted = static_cast<int>(state.rows.wanted().size());
  state.statistics = {.tokens = num_rows, .logits_rows = num_wanted};
  if (num_rows == 0) return;

  state.BeginCapacity();
  state.Embed(state.context.weights.embedding);
  for (const Layer& layer : state.decoder) {
    // Rows that are not wanted may still take other rows' places.
    const bool is_last = &layer == &state.decoder.back();
    const bool only_wanted = is_last && !state.expert_capacity.is_limited();
    num_rows = state.attention.Run(layer, state.rows, only_wanted);
    if (num_rows == 0) continue;
    if (layer.weights.cross) state.cross_attention.Run(layer, state.rows, only_wanted);
    state.feed_forward.Run(layer.spec, layer.weights, num_rows, state.Limit(layer.cache_layer));
  }
  if (state.expert_capacity.is_limited()) num_rows = state.KeepWanted();
  state.Head(num_rows, sink);
}

void Transformer::Encode(std::span<const EncoderInput> inputs, const StatesSink& sink) {
  State& state = *state_;
  CHECK(state.context.weights.encoder.has_value(), "the model has no encoder");
  const weights::EncoderWeights& weights = *state.context.weights.encoder;
  std::vector<SequenceStep> step;
  for (const EncoderInput& input : inputs) {
    const auto length = static_cast<int>(input.tokens.size());
    step.push_back({.tokens = input.tokens,
                    .blocks = input.blocks,
                    .prompt_length = length,
                    .first_logits_token = length});
  }
  state.rows.Begin(step, state.context.pool);
  const int num_rows = state.rows.num_rows();
  CHECK(num_rows <= state.options.max_step_tokens, "{} tokens in a step of at most {}", num_rows,
        state.options.max_step_tokens);
  state.statistics = {.tokens = num_rows};
  if (num_rows == 0) return;

  state.BeginCapacity();
  state.Embed(weights.embedding);
  const int num_decoder_layers = state.context.spec().num_layers();
  for (const Layer& layer : state.encoder) {
    state.attention.Run(layer, state.rows, /*only_wanted=*/false);
    const auto layer_idx = static_cast<int>(&layer - state.encoder.data());
    state.feed_forward.Run(layer.spec, layer.weights, num_rows,
                           state.Limit(num_decoder_layers + layer_idx));
  }
  state.context.Normalize(weights.final_norm, num_rows, /*also_float=*/true);
  if (sink) {
    const auto hidden_size = static_cast<size_t>(state.context.spec().hidden_size);
    for (int row = 0; row < num_rows; ++row) {
      const int input_idx = state.rows.sequence(row);
      sink(input_idx, row - state.rows.first_row(input_idx),
           {state.activations.normed_float.floats(row), hidden_size});
    }
  }
  for (const Layer& layer : state.decoder) state.cross_attention.Store(layer, state.rows);
}

// Scores by distance, or nothing where the stack has none.
std::vector<float> Transformer::State::BiasOf(const model::ModelSpec& spec,
                                              const model::LayerSpec& layer,
                                              std::span<const float> table) {
  if (!layer.attention.relative_bias) return {};
  return model::BiasByDistance(*spec.relative_bias, table, layer.attention.num_heads,
                               /*bidirectional=*/!layer.attention.causal, kernels::kLanes);
}

// The encoder's layers use the first decoder layer's part of the cache, which gets the decoder's
// keys and values only afterwards.
std::vector<Layer> Transformer::State::Stack(const std::vector<model::LayerSpec>& specs,
                                             const std::vector<weights::LayerWeights>& weights,
                                             std::span<const float> bias) const {
  std::vector<Layer> layers;
  const bool is_decoder = &specs == &context.spec().layers;
  for (size_t i = 0; i < specs.size(); ++i) {
    kernels::DistanceBias by_distance;
    if (!bias.empty()) {
      by_distance = {.table = bias.data(),
                     .head_stride = std::ssize(bias) / specs[i].attention.num_heads,
                     .reach = context.spec().relative_bias->max_distance};
    }
    layers.push_back({.spec = specs[i],
                      .weights = weights[i],
                      .cache_layer = is_decoder ? static_cast<int>(i) : 0,
                      .bias = by_distance});
  }
  return layers;
}

void Transformer::State::Embed(const kernels::PackedMatrix& embedding) {
  context.pool.ParallelFor(rows.num_rows(), [&](int64_t row, int) {
    float* hidden = activations.hidden.floats(row);
    kernels::UnpackRow(embedding, rows.token(static_cast<int>(row)), hidden);
    const float scale = context.spec().embedding_scale;
    if (scale == 1) return;
    for (int i = 0; i < context.spec().hidden_size; ++i) hidden[i] *= scale;
  });
}

int Transformer::State::KeepWanted() {
  const auto num_wanted = static_cast<int>(rows.wanted().size());
  for (int i = 0; i < num_wanted; ++i) {
    std::memmove(activations.hidden.row(i), activations.hidden.row(rows.wanted()[i]),
                 activations.hidden.stride_bytes);
  }
  return num_wanted;
}

void Transformer::State::BeginCapacity() {
  if (!expert_capacity.is_limited()) return;
  capacity_rows.clear();
  for (int row = 0; row < rows.num_rows(); ++row) {
    // Running sequences that share nothing have different first blocks.
    const SequenceStep& sequence = rows.step()[rows.sequence(row)];
    capacity_rows.push_back({.sequence = sequence.blocks.front(),
                             .first = rows.position(row) == 0,
                             .counts = rows.position(row) < sequence.prompt_length});
  }
}

CapacityStep Transformer::State::Limit(int layer) {
  if (!expert_capacity.is_limited()) return {};
  return {&expert_capacity, layer, capacity_rows};
}

void Transformer::State::Head(int num_rows, const LogitsSink& sink) {
  if (num_rows == 0) return;
  context.Normalize(context.weights.final_norm, num_rows, /*also_float=*/false);
  const auto vocab_size = static_cast<size_t>(context.spec().vocab_size);
  for (int first = 0; first < num_rows; first += Activations::kHeadRows) {
    const int count = std::min(Activations::kHeadRows, num_rows - first);
    const RowBuffer input{activations.normed.row(first), activations.normed.stride_bytes};
    context.Multiply(context.weights.head, input, count, kernels::Epilogue::kStore,
                     activations.logits, {}, {.scale = context.spec().logits_scale});
    for (int i = 0; i < count; ++i) {
      const int row = rows.wanted()[first + i];
      const int sequence_idx = rows.sequence(row);
      sink(sequence_idx, row - rows.first_row(sequence_idx),
           {activations.logits.floats(i), vocab_size});
    }
  }
}

}  // namespace convene::runtime
