// What tests of the search share: a model, and the costs of a machine that is nowhere, simple
// enough to foresee what is best on it.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cost/machine_profile.h"
#include "model/model_spec.h"

namespace convene::planner {

inline model::ModelSpec InventedSpec(int num_layers, int num_experts = 16, int hidden = 1024) {
  model::LayerSpec layer;
  layer.attention = {.num_heads = 16, .num_kv_heads = 16, .head_dim = 64, .value_dim = 64};
  layer.moe = model::MoeSpec{.num_experts = num_experts, .top_k = 2, .intermediate_size = 512};
  model::ModelSpec spec;
  spec.hidden_size = hidden;
  spec.vocab_size = 1000;
  spec.max_positions = 1 << 17;
  spec.layers = std::vector(static_cast<size_t>(num_layers), layer);
  return spec;
}

// Of as many layers each, of which every second one has experts; the decoder attends to the
// encoder's output (Switch).
inline model::ModelSpec InventedEncoderDecoder(int num_layers) {
  model::ModelSpec spec = InventedSpec(num_layers);
  spec.decoder_start_token = 0;
  for (int i = 0; i < num_layers; ++i) {
    model::LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    layer.cross_attention = layer.attention;
    layer.moe->top_k = 1;
    if (i % 2 == 1) continue;
    layer.moe.reset();
    layer.dense_intermediate_size = 2048;
  }
  spec.encoder_layers = spec.layers;
  for (model::LayerSpec& layer : spec.encoder_layers) {
    layer.cross_attention.reset();
    layer.attention.causal = false;
  }
  return spec;
}

// Tasks read weights at 10 GB/s and compute at 100 GFLOP/s; an exchange takes 20 us and its bytes
// at `link_bytes_per_second`. None of that is wrong.
inline cost::StepCosts InventedCosts(int num_ranks, double link_bytes_per_second,
                                     const std::string& weights = "bf16") {
  cost::StepCosts costs;
  costs.num_ranks = num_ranks;
  costs.weights = weights;
  costs.reference = {.read_bytes_per_second = 1e10, .dot_operations_per_second = 1e11};
  for (auto& task : costs.tasks) {
    task = cost::TaskCost{};
    task->once = 2e-6;
    task->per_row_byte = 1e-10;
    // As long as weights are read, or 10 ps for each FLOP.
    task->per_weight_byte = {.at = {10, 1e6}, .value = {1e-10, 1e-5}};
    task->per_score = {.at = {1, 1e6}, .value = {1e-11, 1e-11}};
    task->balance = 10;
    task->most_flops = task->most_row_bytes = task->most_groups = task->most_score_flops = 1e18;
  }
  costs.exchange.seconds = {.at = {1, 1e9}, .value = {2e-5, 2e-5 + 1e9 / link_bytes_per_second}};
  costs.step_once = 1e-4;
  costs.held_out.fill(cost::HeldOut{});
  costs.exchange_held_out = cost::HeldOut{};
  costs.overlapped_held_out = cost::HeldOut{};
  return costs;
}

}  // namespace convene::planner
