// Any bytes as a config.json, a generation_config.json and a shard index: each must be refused or
// give something consistent, without large allocations.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/model_files.h"
#include "model/family.h"
#include "model/model_size.h"
#include "model/rope.h"

namespace {

namespace model = convene::model;

void CheckAttention(const model::AttentionSpec& attention) {
  CHECK(attention.num_heads > 0 && attention.num_kv_heads > 0 && attention.head_dim > 0 &&
        attention.value_dim > 0);
  CHECK(attention.num_heads % attention.num_kv_heads == 0, "{} heads, {} of keys",
        attention.num_heads, attention.num_kv_heads);
  CHECK(attention.window >= 0 && std::isfinite(attention.scale));
  if (!attention.latent) return;
  CHECK(attention.latent->kv_rank > 0 && attention.latent->query_rank >= 0);
  CHECK(attention.latent->nope_dim + attention.latent->rope_dim == attention.head_dim);
}

void CheckLayer(const model::LayerSpec& layer) {
  CheckAttention(layer.attention);
  if (layer.cross_attention) CheckAttention(*layer.cross_attention);
  if (!layer.moe) {
    CHECK(layer.dense_intermediate_size > 0);
    return;
  }
  const model::MoeSpec& moe = *layer.moe;
  CHECK(moe.top_k > 0 && moe.top_k <= moe.num_experts && moe.intermediate_size > 0);
  CHECK(moe.num_expert_groups > 0 && moe.num_experts % moe.num_expert_groups == 0);
  CHECK(moe.top_expert_groups > 0 && moe.top_expert_groups <= moe.num_expert_groups);
  // All that are chosen lie in the groups that are.
  CHECK(moe.num_experts / moe.num_expert_groups * moe.top_expert_groups >= moe.top_k);
  CHECK(moe.shared_intermediate_size >= 0 && std::isfinite(moe.routed_scale));
}

void CheckGeneration(const convene::checkpoint::GenerationConfig& config) {
  for (const int id : config.eos_token_ids) CHECK(id >= 0);
  CHECK(config.top_k.value_or(0) >= 0 && config.max_new_tokens.value_or(0) >= 0);
  const auto is_share = [](double value) { return value >= 0 && value <= 1; };
  CHECK(is_share(config.top_p.value_or(1)) && is_share(config.min_p.value_or(0)));
  CHECK(config.temperature.value_or(0) >= 0 && config.repetition_penalty.value_or(1) > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto shards = convene::checkpoint::ParseShardIndex(text)) {
    CHECK(!shards->empty());
    for (const std::string& shard : *shards) {
      CHECK(!shard.empty() && shard.find('/') == shard.npos && shard.find('\0') == shard.npos);
    }
  }
  const auto config = convene::ParseJson(text);
  if (!config) return 0;
  for (const auto* file : {&*config, static_cast<const nlohmann::json*>(nullptr)}) {
    const auto generation = convene::checkpoint::ReadGenerationConfig(file, *config);
    if (generation) CheckGeneration(*generation);
  }

  const auto spec = model::ModelSpecFromConfig(*config);
  if (!spec) return 0;
  CHECK(!spec->layers.empty() && !spec->tensors.empty());
  for (const model::LayerSpec& layer : spec->layers) CheckLayer(layer);
  for (const model::LayerSpec& layer : spec->encoder_layers) CheckLayer(layer);
  for (const model::TensorBinding& tensor : spec->tensors) {
    CHECK(tensor.rows > 0 && tensor.cols > 0 && tensor.first_row >= 0, "{}", tensor.name);
    // The stored tensor as a matrix; a vector is one column.
    const int64_t cols = tensor.stored_shape.size() == 1 ? 1 : tensor.stored_shape.back();
    int64_t rows = 1;
    for (const int64_t dimension : tensor.stored_shape) rows *= dimension;
    rows /= cols;
    const int64_t outputs = tensor.rows * tensor.row_step;
    const int64_t block_rows = tensor.transposed ? tensor.cols : outputs;
    CHECK(tensor.first_row + block_rows <= rows, "{}", tensor.name);
    CHECK((tensor.transposed ? outputs : tensor.cols) <= cols, "{}", tensor.name);
    CHECK(tensor.row_offset >= 0 && tensor.row_offset < tensor.row_step, "{}", tensor.name);
  }
  CHECK(model::ActivatedParameters(*spec) <= model::TotalParameters(*spec));
  const int last = spec->max_positions - 1;
  CHECK(model::FlopsOfToken(*spec, last, true).total() > 0);
  CHECK(model::AbsorbedScoreFlops(*spec, last) > 0);
  CHECK(model::FlopsOfInput(*spec, last).total() >= 0);
  const auto frequencies = model::InverseFrequencies(spec->rope, spec->max_positions);
  CHECK(static_cast<int>(frequencies.size()) * 2 == spec->rope.rotary_dim);
  for (const float frequency : frequencies) CHECK(std::isfinite(frequency), "{}", frequency);
  return 0;
}
