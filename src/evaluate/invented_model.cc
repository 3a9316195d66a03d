#include "evaluate/invented_model.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "weights/share.h"
#include "weights/weight_layout.h"

namespace convene::evaluate {
namespace {

constexpr int kPositions = 8192;
constexpr int kRotatedOfLatent = 64;

model::AttentionSpec InventAttention(const ModelShape& shape) {
  const int head_dim = shape.head_dim > 0 ? shape.head_dim : shape.hidden / shape.heads;
  model::AttentionSpec attention{.num_heads = shape.heads,
                                 .num_kv_heads = shape.kv_heads > 0 ? shape.kv_heads : shape.heads,
                                 .head_dim = head_dim,
                                 .value_dim = head_dim,
                                 .qk_norm = shape.qk_norm};
  if (shape.latent > 0) {
    attention.num_kv_heads = shape.heads;
    attention.head_dim = head_dim + kRotatedOfLatent;
    attention.latent = model::LatentSpec{
        .kv_rank = shape.latent, .nope_dim = head_dim, .rope_dim = kRotatedOfLatent};
  }
  attention.scale = 1 / std::sqrt(static_cast<float>(attention.head_dim));
  return attention;
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  uint64_t Next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }

 private:
  uint64_t state_;
};

// Of about the size 1/64: four bf16 numbers of random sign and mantissa.
void FillPart(std::span<std::byte> bytes, Random random) {
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t bits = (random.Next() & 0x807f807f807f807f) | 0x3c003c003c003c00;
    std::memcpy(bytes.data() + i, &bits, sizeof(bits));
  }
}

// The same bytes however many threads share it: one writes a few GB a second.
void FillBf16(std::span<std::byte> bytes, uint64_t seed) {
  constexpr size_t kPartBytes = size_t{64} << 20;
  const size_t num_parts = (bytes.size() + kPartBytes - 1) / kPartBytes;
  std::atomic<size_t> next = 0;
  const auto fill = [&] {
    for (size_t part = next++; part < num_parts; part = next++) {
      const size_t begin = part * kPartBytes;
      const size_t size_bytes = std::min(kPartBytes, bytes.size() - begin);
      FillPart(bytes.subspan(begin, size_bytes), Random(seed + part * 0x9e3779b97f4a7c15));
    }
  };
  std::vector<std::jthread> threads;
  const size_t most = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  for (size_t i = 1; i < std::min(most, num_parts); ++i) threads.emplace_back(fill);
  fill();
}

void FillFloat(const kernels::PackedMatrix& matrix, float size, Random& random) {
  auto* values = reinterpret_cast<float*>(const_cast<std::byte*>(matrix.data));
  for (size_t i = 0; i < matrix.size_bytes() / sizeof(float); ++i) {
    values[i] = size * (static_cast<float>(random.Next() >> 40) * 0x1p-23f - 1);
  }
}

// Elements of the norms of queries and keys.
std::pair<int, int> NormSizes(const model::AttentionSpec& attention) {
  if (attention.latent) return {0, attention.latent->kv_rank};
  if (attention.qk_norm == model::QkNorm::kPerHead) return {attention.head_dim, attention.head_dim};
  if (attention.qk_norm == model::QkNorm::kWholeProjection) {
    return {attention.query_dim(), attention.kv_dim()};
  }
  return {0, 0};
}

}  // namespace

model::ModelSpec InventSpec(const ModelShape& shape) {
  model::LayerSpec layer;
  layer.attention = InventAttention(shape);
  const auto activation = shape.gated ? model::Activation::kSiluMul : model::Activation::kRelu;
  layer.moe = model::MoeSpec{.num_experts = shape.experts,
                             .top_k = shape.top_k,
                             .intermediate_size = shape.intermediate,
                             .activation = {.kind = activation},
                             .shared_intermediate_size = shape.shared_intermediate};
  model::ModelSpec spec;
  spec.family = "invented";
  spec.vocab_size = shape.vocab;
  spec.hidden_size = shape.hidden;
  spec.max_positions = kPositions;
  spec.rope.rotary_dim = shape.latent > 0 ? kRotatedOfLatent : layer.attention.head_dim;
  spec.layers.assign(static_cast<size_t>(shape.layers), layer);
  if (shape.dense_intermediate > 0) {
    spec.layers.front().moe.reset();
    spec.layers.front().dense_intermediate_size = shape.dense_intermediate;
    spec.layers.front().dense_activation = {.kind = activation};
  }
  return spec;
}

Result<std::unique_ptr<InventedModel>> InventedModel::Create(const model::ModelSpec& whole,
                                                             const weights::WeightFormats& formats,
                                                             const strategy::Layout& layout,
                                                             int rank, memory::Ledger& ledger) {
  std::unique_ptr<InventedModel> model(new InventedModel);
  model->whole_ = whole;
  const weights::Share share = weights::ShareOf(layout, rank);
  const Result<model::ModelSpec> local = weights::LocalSpec(model->whole_, share, formats);
  if (!local) return local.error();
  Result<memory::Reservation> memory = ledger.Allocate(
      memory::Use::kWeights, weights::LayOut(*local, formats, nullptr, &model->weights_, share));
  if (!memory) return memory.error();
  model->memory_ = *std::move(memory);
  weights::LayOut(*local, formats, model->memory_.data(), &model->weights_, share);
  model->Fill(static_cast<uint64_t>(rank) + 1);
  return model;
}

void InventedModel::Fill(uint64_t seed) {
  FillBf16(memory_.bytes(), seed);
  const auto ones = [&](std::vector<float>& vector) {
    vector.assign(static_cast<size_t>(whole_.hidden_size), 1.0f);
  };
  ones(weights_.final_norm);
  // Routers decide alike on all ranks only if they are alike.
  Random of_routers(7);
  for (weights::LayerWeights& layer : weights_.layers) {
    ones(layer.attention_norm);
    ones(layer.ffn_norm);
    const model::AttentionSpec& attention =
        weights_.spec.layers[&layer - weights_.layers.data()].attention;
    const auto [queries, keys] = NormSizes(attention);
    layer.query_norm.assign(static_cast<size_t>(queries), 1.0f);
    layer.key_norm.assign(static_cast<size_t>(keys), 1.0f);
    if (layer.moe) FillFloat(layer.moe->router, 0.05f, of_routers);
  }
}

}  // namespace convene::evaluate
