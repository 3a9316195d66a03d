#include "bench/invented_model.h"

#include <cmath>
#include <cstring>

#include "weights/share.h"
#include "weights/weight_layout.h"

namespace convene::bench {
namespace {

constexpr int kVocab = 1024;
constexpr int kPositions = 4096;

model::ModelSpec Invent(const ModelShape& shape) {
  const int head_dim = shape.hidden / shape.heads;
  model::LayerSpec layer;
  layer.attention = {.num_heads = shape.heads,
                     .num_kv_heads = shape.heads,
                     .head_dim = head_dim,
                     .value_dim = head_dim,
                     .scale = 1 / std::sqrt(static_cast<float>(head_dim))};
  const auto activation = shape.gated ? model::Activation::kSiluMul : model::Activation::kRelu;
  layer.moe = model::MoeSpec{.num_experts = shape.experts,
                             .top_k = shape.top_k,
                             .intermediate_size = shape.intermediate,
                             .activation = {.kind = activation},
                             .shared_intermediate_size = shape.shared_intermediate};
  model::ModelSpec spec;
  spec.family = "invented";
  spec.vocab_size = kVocab;
  spec.hidden_size = shape.hidden;
  spec.max_positions = kPositions;
  spec.rope.rotary_dim = head_dim;
  spec.layers.assign(static_cast<size_t>(shape.layers), layer);
  return spec;
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
void FillBf16(std::byte* data, size_t size_bytes, Random& random) {
  for (size_t i = 0; i + 8 <= size_bytes; i += 8) {
    const uint64_t bits = (random.Next() & 0x807f807f807f807f) | 0x3c003c003c003c00;
    std::memcpy(data + i, &bits, sizeof(bits));
  }
}

void FillFloat(const kernels::PackedMatrix& matrix, float size, Random& random) {
  auto* values = reinterpret_cast<float*>(const_cast<std::byte*>(matrix.data));
  for (size_t i = 0; i < matrix.size_bytes() / sizeof(float); ++i) {
    values[i] = size * (static_cast<float>(random.Next() >> 40) * 0x1p-23f - 1);
  }
}

}  // namespace

Result<std::unique_ptr<InventedModel>> InventedModel::Create(const ModelShape& shape,
                                                             const strategy::Layout& layout,
                                                             int rank) {
  std::unique_ptr<InventedModel> model(new InventedModel);
  model->whole_ = Invent(shape);
  const weights::Share share = weights::ShareOf(layout, rank);
  const weights::WeightFormats formats;
  const Result<model::ModelSpec> local = weights::LocalSpec(model->whole_, share, formats);
  if (!local) return local.error();
  Result<hardware::HugeBuffer> memory = hardware::HugeBuffer::Allocate(
      weights::LayOut(*local, formats, nullptr, &model->weights_, share), "the invented weights");
  if (!memory) return memory.error();
  model->memory_ = *std::move(memory);
  weights::LayOut(*local, formats, model->memory_.data(), &model->weights_, share);
  model->Fill(static_cast<uint64_t>(rank) + 1);
  return model;
}

void InventedModel::Fill(uint64_t seed) {
  Random random(seed);
  FillBf16(memory_.data(), memory_.size_bytes(), random);
  const auto ones = [&](std::vector<float>& vector) {
    vector.assign(static_cast<size_t>(whole_.hidden_size), 1.0f);
  };
  ones(weights_.final_norm);
  // Routers decide alike on all ranks only if they are alike.
  Random of_routers(7);
  for (weights::LayerWeights& layer : weights_.layers) {
    ones(layer.attention_norm);
    ones(layer.ffn_norm);
    FillFloat(layer.moe->router, 0.05f, of_routers);
  }
}

}  // namespace convene::bench
