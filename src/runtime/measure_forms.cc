#include "runtime/measure_forms.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "base/median.h"
#include "device/cpu/cpu_device.h"
#include "memory/ledger.h"
#include "runtime/transformer.h"
#include "weights/weight_layout.h"

namespace convene::runtime {
namespace {

constexpr std::array<int, 7> kLengths = {1, 4, 8, 16, 32, 64, 256};
constexpr int kLeastRepeats = 5;
constexpr int kHidden = 64;  // little beside attention
constexpr int kBlocks = kLengths.back() / device::kKvBlockTokens;

// Two layers, since the last one computes only rows whose logits are wanted: none.
model::ModelSpec InventedSpec() {
  const model::LatentSpec latent{.kv_rank = 512, .nope_dim = 128, .rope_dim = 64};
  const model::AttentionSpec attention{.num_heads = 16,
                                       .num_kv_heads = 16,
                                       .head_dim = latent.nope_dim + latent.rope_dim,
                                       .value_dim = 128,
                                       .latent = latent,
                                       .scale = 0.07f};
  model::LayerSpec layer;
  layer.attention = attention;
  layer.dense_intermediate_size = kHidden;
  model::ModelSpec spec;
  spec.family = "invented";
  spec.vocab_size = kHidden;
  spec.hidden_size = kHidden;
  spec.max_positions = kLengths.back();
  spec.rope.rotary_dim = latent.rope_dim;
  spec.layers = {layer, layer};
  return spec;
}

void InventVectors(weights::ModelWeights& weights) {
  weights.final_norm.assign(kHidden, 1);
  for (weights::LayerWeights& layer : weights.layers) {
    layer.attention_norm.assign(kHidden, 1);
    layer.ffn_norm.assign(kHidden, 1);
    layer.key_norm.assign(InventedSpec().layers.front().attention.latent->kv_rank, 1);
  }
}

// Seconds of one prompt of `length` tokens.
double Seconds(Transformer& transformer, int length) {
  const std::vector<int32_t> tokens(length, 1);
  std::array<int32_t, kBlocks> blocks;
  std::iota(blocks.begin(), blocks.end(), 0);
  const device::SequenceStep step{
      .tokens = tokens, .blocks = blocks, .prompt_length = length, .first_logits_token = length};
  const auto start = std::chrono::steady_clock::now();
  const Status done = transformer.Forward({&step, 1}, [](int, int, std::span<const float>) {});
  CHECK(done.ok(), "{}", done.error().message);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Result<int> MeasureExpandFromTokens(hardware::ThreadPool& pool, const kernels::KernelSet& kernels,
                                    double budget_s) {
  const model::ModelSpec spec = InventedSpec();
  const Formats formats = DefaultFormats(kernels::WeightFormat::kBf16);
  weights::ModelWeights weights;
  memory::Ledger ledger;  // nothing else is loaded
  Result<memory::Reservation> memory = ledger.Allocate(
      memory::Use::kWeights, weights::LayOut(spec, formats.weights, nullptr, &weights));
  if (!memory) return memory.error();
  // A small number in bf16.
  std::memset(memory->data(), 0x3c, memory->size_bytes());
  weights::LayOut(spec, formats.weights, memory->data(), &weights);
  InventVectors(weights);
  weights::ResidentWeights store(weights);
  const std::unique_ptr<device::Device> device = device::MakeCpuDevice(kernels, pool);
  const auto create = [&](int from) {
    return Transformer::Create(store, *device,
                               {.max_step_tokens = kLengths.back(),
                                .num_kv_blocks = kBlocks,
                                .activations = formats.activations,
                                .kv = formats.kv,
                                .parallel = {.roles = strategy::Roles().ExpandingFrom(from)}},
                               ledger);
  };
  Result<Transformer> expanding = create(1);
  if (!expanding) return expanding.error();
  Result<Transformer> absorbing = create(0);
  if (!absorbing) return absorbing.error();

  int from_tokens = 0;
  for (const int length : kLengths) {
    std::vector<double> ratios;
    double spent_s = 0;
    Seconds(*expanding, length);
    Seconds(*absorbing, length);
    while (std::ssize(ratios) < kLeastRepeats || spent_s < budget_s / kLengths.size()) {
      const double expanded = Seconds(*expanding, length);
      const double absorbed = Seconds(*absorbing, length);
      ratios.push_back(expanded / absorbed);
      spent_s += expanded + absorbed;
    }
    const bool expanded_is_faster = Median(ratios) < 1;
    if (!expanded_is_faster) from_tokens = 0;
    if (expanded_is_faster && from_tokens == 0) from_tokens = length;
  }
  return from_tokens;
}

}  // namespace convene::runtime
