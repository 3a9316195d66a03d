#include "weights/random_weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "weights/weight_layout.h"

namespace convene::weights {
namespace {

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

void FillFfn(bool has_bias, FfnWeights& ffn) {
  if (!has_bias) return;
  ffn.up_bias.assign(static_cast<size_t>(ffn.up.rows), 0.0f);
  ffn.down_bias.assign(static_cast<size_t>(ffn.down.rows), 0.0f);
}

void FillMoe(const model::MoeSpec& spec, Random& of_routers, MoeWeights& moe) {
  if (moe.router.rows > 0) FillFloat(moe.router, 0.05f, of_routers);
  if (spec.router_bias) moe.router_bias.assign(static_cast<size_t>(moe.router.rows), 0.0f);
  if (spec.correction_bias) {
    moe.correction_bias.assign(static_cast<size_t>(spec.num_experts), 0.0f);
  }
  for (FfnWeights& expert : moe.experts) FillFfn(spec.expert_bias, expert);
}

void FillVectors(const model::ModelSpec& spec, const model::LayerSpec& layer, LayerWeights& at) {
  const auto hidden = static_cast<size_t>(spec.hidden_size);
  const model::AttentionSpec& attention = layer.attention;
  at.attention_norm.assign(hidden, 1.0f);
  at.ffn_norm.assign(hidden, 1.0f);
  const auto [queries, keys] = NormSizes(attention);
  at.query_norm.assign(static_cast<size_t>(queries), 1.0f);
  at.key_norm.assign(static_cast<size_t>(keys), 1.0f);
  if (attention.qkv_bias) at.qkv_bias.assign(static_cast<size_t>(at.qkv.rows), 0.0f);
  if (attention.output_bias) at.output_bias.assign(hidden, 0.0f);
  if (attention.sinks) at.sinks.assign(static_cast<size_t>(attention.num_heads), 0.0f);
}

}  // namespace

Result<ModelWeights> RandomWeights(const model::ModelSpec& whole, const WeightFormats& formats,
                                   const Share& share, int rank, memory::Ledger& ledger) {
  if (whole.has_encoder()) {
    return Error{"random weights are made of decoders alone: take a checkpoint of this model"};
  }
  const Result<model::ModelSpec> local = LocalSpec(whole, share, formats);
  if (!local) return local.error();
  ModelWeights weights;
  Result<memory::Reservation> storage =
      ledger.Allocate(memory::Use::kWeights, LayOut(*local, formats, nullptr, &weights, share));
  if (!storage) return storage.error();
  LayOut(*local, formats, storage->data(), &weights, share);
  FillBf16(storage->bytes(), static_cast<uint64_t>(rank) + 1);
  weights.storage = *std::move(storage);
  weights.bytes = weights.storage.bytes();
  weights.final_norm.assign(static_cast<size_t>(whole.hidden_size), 1.0f);
  // Routers decide alike on all ranks only if they are alike.
  Random of_routers(7);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const model::LayerSpec& layer = weights.spec.layers[i];
    FillVectors(whole, layer, weights.layers[i]);
    if (layer.moe) FillMoe(*layer.moe, of_routers, *weights.layers[i].moe);
  }
  return weights;
}

}  // namespace convene::weights
