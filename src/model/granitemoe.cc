// Granite MoE (IBM, 2024; transformers models/granitemoe): mixtral with multipliers of the
// embeddings, the scores, what is added to the residual stream, and the logits.
#include "model/decoder_config.h"
#include "model/decoder_tensors.h"
#include "model/family.h"

namespace convene::model {
namespace {

// One tensor for gate and up of all experts, one for down.
void BindExperts(ModelSpec& spec, int layer, const std::string& prefix) {
  const MoeSpec& moe = *spec.layers[layer].moe;
  const int64_t width = moe.intermediate_size;
  const int64_t hidden = spec.hidden_size;
  const auto bind = [&](TensorRole role, int expert, std::string_view name, int64_t stored_rows,
                        int64_t first_row, int64_t rows, int64_t cols) {
    spec.tensors.push_back({.role = role,
                            .layer = layer,
                            .expert = expert,
                            .name = fmt::format("{}{}.weight", prefix, name),
                            .stored_shape = {moe.num_experts, stored_rows, cols},
                            .rows = rows,
                            .cols = cols,
                            .first_row = expert * stored_rows + first_row});
  };
  for (int expert = 0; expert < moe.num_experts; ++expert) {
    bind(TensorRole::kExpertGate, expert, "input_linear", 2 * width, 0, width, hidden);
    bind(TensorRole::kExpertUp, expert, "input_linear", 2 * width, width, width, hidden);
    bind(TensorRole::kExpertDown, expert, "output_linear", hidden, 0, hidden, width);
  }
}

}  // namespace

Result<ModelSpec> ReadGraniteMoe(ConfigFields& config) {
  DecoderConfig decoder = ReadDecoder(config, {.vocab_size = 32000,
                                               .hidden_size = 4096,
                                               .num_layers = 32,
                                               .num_heads = 32,
                                               .num_kv_heads = 0,
                                               .max_positions = 2048,
                                               .norm_epsilon = 1e-6,
                                               .rope_theta = 1e4});
  const auto multiplier = [&](std::string_view name) {
    return config.Number(name, 1, kMultiplier);
  };
  ModelSpec& spec = decoder.spec;
  spec.embedding_scale = static_cast<float>(multiplier("embedding_multiplier"));
  spec.residual_scale = static_cast<float>(multiplier("residual_multiplier"));
  spec.logits_scale = static_cast<float>(1 / multiplier("logits_scaling"));
  decoder.attention.scale = static_cast<float>(multiplier("attention_multiplier"));
  decoder.attention.qkv_bias = config.Boolean("attention_bias", false);
  decoder.attention.output_bias = decoder.attention.qkv_bias;
  // The softmax is over the chosen experts' logits, which is that over all divided by their sum.
  const MoeSpec moe = {
      .num_experts = config.Integer({"num_local_experts", "num_experts"}, 8, kExpertCount),
      .top_k = config.Integer("num_experts_per_tok", 2, kExpertCount),
      .intermediate_size = config.Integer("intermediate_size", 11008, kIntermediate),
      .router_norm = RouterNorm::kSum,
  };
  CheckExperts(config, moe, decoder.num_layers);
  if (!config.ok()) return config.error();

  spec.layers.assign(decoder.num_layers, {.attention = decoder.attention, .moe = moe});
  BindDecoder(spec,
              {.block = "block_sparse_moe", .router = "router.layer", .bind_experts = BindExperts});
  return std::move(spec);
}

}  // namespace convene::model
