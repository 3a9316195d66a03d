#include "planner/offload_model.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "model/model_size.h"

namespace convene::planner {
namespace {

double BlockElements(const model::ActivationSpec& activation, double hidden, double intermediate) {
  return (activation.gated() ? 3 : 2) * hidden * intermediate;
}

StreamedBlocks BlocksOf(const model::ModelSpec& spec, const model::LayerSpec& layer) {
  const double hidden = spec.hidden_size;
  if (!layer.moe) {
    return {.num_layers = 1,
            .expert_elements =
                BlockElements(layer.dense_activation, hidden, layer.dense_intermediate_size)};
  }
  return {.num_layers = 1,
          .num_experts = double(layer.moe->num_experts),
          .top_k = double(layer.moe->top_k),
          .expert_elements =
              BlockElements(layer.moe->activation, hidden, layer.moe->intermediate_size)};
}

// Of a latent, generated tokens attend to it as it lies in the cache; prompts expand it.
AttentionBlocks BlocksOf(const model::AttentionSpec& attention) {
  const double expanded = 2.0 * (attention.query_dim() + attention.output_dim());
  AttentionBlocks blocks = {
      .num_layers = 1,
      .window = attention.latent ? 0.0 : double(attention.window),
      .score_flops = expanded,
      .prompt_score_flops = expanded,
      .cached_elements = double(attention.kv_dim() + attention.value_width())};
  if (attention.latent) {
    const model::LatentSpec& latent = *attention.latent;
    blocks.score_flops = 2.0 * attention.num_heads * (latent.key_dim() + latent.kv_rank);
    blocks.cached_elements = latent.key_dim();
  }
  return blocks;
}

double Seen(const AttentionBlocks& blocks, double context) {
  return blocks.window > 0 ? std::min(context, blocks.window) : context;
}

// Of a row between the matrices of all experts that it visits.
double RowOf(const model::LayerSpec& layer) {
  if (!layer.moe) return layer.dense_intermediate_size;
  return double(layer.moe->top_k) * layer.moe->intermediate_size +
         layer.moe->shared_intermediate_size;
}

void AddStreamed(const StreamedBlocks& added, std::vector<StreamedBlocks>& streamed) {
  for (StreamedBlocks& blocks : streamed) {
    if (blocks.num_experts != added.num_experts || blocks.top_k != added.top_k ||
        blocks.expert_elements != added.expert_elements) {
      continue;
    }
    ++blocks.num_layers;
    return;
  }
  streamed.push_back(added);
}

void AddAttention(const AttentionBlocks& added, std::vector<AttentionBlocks>& attention) {
  for (AttentionBlocks& blocks : attention) {
    if (blocks.window != added.window || blocks.score_flops != added.score_flops ||
        blocks.cached_elements != added.cached_elements) {
      continue;
    }
    ++blocks.num_layers;
    return;
  }
  attention.push_back(added);
}

}  // namespace

double OffloadModel::StreamedElements() const {
  double elements = 0;
  for (const StreamedBlocks& blocks : streamed) {
    elements += blocks.num_layers * blocks.num_experts * blocks.expert_elements;
  }
  return elements;
}

double OffloadModel::VisitedElements(double tokens) const {
  double elements = 0;
  for (const StreamedBlocks& blocks : streamed) {
    const double missed = std::pow(1 - blocks.top_k / blocks.num_experts, tokens);
    elements += blocks.num_layers * blocks.num_experts * (1 - missed) * blocks.expert_elements;
  }
  return elements;
}

double OffloadModel::StreamedFlops(double tokens) const {
  double flops = 0;
  for (const StreamedBlocks& blocks : streamed) {
    flops += 2 * tokens * blocks.num_layers * blocks.top_k * blocks.expert_elements;
  }
  return flops;
}

double OffloadModel::CachedElements(double context) const {
  double elements = 0;
  for (const AttentionBlocks& blocks : attention) {
    elements += blocks.num_layers * blocks.cached_elements * Seen(blocks, context);
  }
  return elements;
}

double OffloadModel::ScoreFlops(double context) const {
  double flops = 0;
  for (const AttentionBlocks& blocks : attention) {
    flops += blocks.num_layers * blocks.score_flops * Seen(blocks, context);
  }
  return flops;
}

double OffloadModel::PromptScoreFlops(double tokens) const {
  double flops = 0;
  for (const AttentionBlocks& blocks : attention) {
    const double seen = Seen(blocks, tokens);  // growing up to here, then constant
    const double keys = seen * (seen + 1) / 2 + (tokens - seen) * seen;
    flops += blocks.num_layers * blocks.prompt_score_flops * keys;
  }
  return flops;
}

OffloadModel OffloadModelOf(const model::ModelSpec& spec) {
  CHECK(!spec.layers.empty() && !spec.has_encoder());
  OffloadModel model = {.num_layers = spec.num_layers(), .hidden = double(spec.hidden_size)};
  for (const model::LayerSpec& layer : spec.layers) {
    const StreamedBlocks blocks = BlocksOf(spec, layer);
    AddStreamed(blocks, model.streamed);
    AddAttention(BlocksOf(layer.attention), model.attention);
    model.most_streamed_layer =
        std::max(model.most_streamed_layer, blocks.num_experts * blocks.expert_elements);
    model.most_expert_row = std::max(model.most_expert_row, RowOf(layer));
    model.query_elements += layer.attention.query_dim();
    model.output_elements += layer.attention.output_dim();
  }
  const auto total = static_cast<double>(model::TotalParameters(spec));
  model.resident_elements = total - model.StreamedElements();
  const double embedding = double(spec.vocab_size) * spec.hidden_size;
  // A tied embedding is read as the head.
  model.token_elements = model.resident_elements - (spec.tied_embeddings ? 0 : embedding);
  const model::TokenFlops flops = model::FlopsOfToken(spec, 0, /*with_head=*/true);
  model.token_flops =
      flops.attention_projections + flops.router + flops.shared_experts + flops.head;
  return model;
}

}  // namespace convene::planner
