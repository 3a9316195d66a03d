// Reproduces the figures of "Optimizing End to End Inference Time on MoE models" (experts in
// slices beside expert parallelism with a capacity factor) in simulation, from a preset, beside
// what its text publishes. Nothing is fitted to these figures: prices are those of cost/presets.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/check.h"
#include "bench/papers/paper_models.h"
#include "cost/operator_costs.h"

namespace convene::papers {
namespace {

// Section 6.1 and 6.3.1: four A100 with NVLink, Switch Transformers (base), sequences of 120.
constexpr int kRanks = 4;
constexpr int kSequence = 120;
constexpr int kBatch = 250;  // of all ranks together; their own arithmetic takes it so (6.3.3)
constexpr int kLeastCapacity = 4;  // DeepSpeed's min_capacity

// What the CPU takes to start an operator of PyTorch, as is commonly reported for eager mode; the
// paper calls this its bottleneck (section 4.4) and gives no number.
constexpr double kLaunchSeconds = 10e-6;
constexpr int kLaunchesOfExpert = 3;  // two products and what is between them
// Router, permutations, sizes and three exchanges; of block-sparse products besides: sorting,
// counting and their topology, whatever the number of experts.
constexpr int kLaunchesOfLayer = 20;
constexpr int kLaunchesOfBlocks = 20;

model::ModelSpec SwitchLayer(int num_experts) {
  model::ModelSpec spec = Model("Mixtral-8x7B");
  spec.hidden_size = 768;
  model::LayerSpec layer = spec.layers.front();
  layer.attention.num_heads = layer.attention.num_kv_heads = 12;
  layer.attention.head_dim = layer.attention.value_dim = 64;
  layer.moe->num_experts = num_experts;
  layer.moe->top_k = 1;
  layer.moe->intermediate_size = 3072;
  layer.moe->activation.kind = model::Activation::kRelu;
  spec.layers = {layer};
  return spec;
}

// A layer without its attention, of `tokens` tokens of each rank.
double LayerSeconds(int num_experts, double tokens, const planner::ExpertStrategy& strategy,
                    cost::ExpertsOrder order) {
  static const cost::MachineProfile machine = Machine("a100-nvlink");
  const model::ModelSpec spec = SwitchLayer(num_experts);
  const planner::PriceStep price = planner::PriceOn(machine, {.order = order});
  const std::vector<planner::AttentionStrategy> attention = {{1, kRanks}};
  const std::vector<planner::ExpertStrategy> experts = {strategy};
  const auto tables = planner::PriceLayers(
      {.spec = spec, .attention = attention, .experts = experts, .price = price},
      {.batch = kRanks, .tokens = tokens, .first_position = 0, .prompt_length = 0});
  CHECK(tables.ok(), "{}", tables.error().message);
  return tables->layer.experts[0] + tables->layer.between[0][0];
}

// Every expert gets its whole capacity, used or not: rows are padded to it (section 6.3.3), so the
// skew of the router changes nothing.
double WithCapacity(int num_experts, double tokens, double factor) {
  const double capacity =
      std::max<double>(kLeastCapacity, std::ceil(factor * tokens / num_experts));
  const int launches = kLaunchesOfLayer + kLaunchesOfExpert * num_experts / kRanks;
  return LayerSeconds(num_experts, capacity * num_experts, {kRanks, 1},
                      cost::ExpertsOrder::kDense) +
         launches * kLaunchSeconds;
}

// The basic algorithm: a product for each expert and each rank whose rows it gets.
double Sliced(int num_experts, double tokens) {
  const int launches = kLaunchesOfLayer + kLaunchesOfExpert * num_experts * kRanks;
  return LayerSeconds(num_experts, tokens, {1, kRanks}, cost::ExpertsOrder::kDense) +
         launches * kLaunchSeconds;
}

// All slices in one block-sparse product.
double MegaBlocks(int num_experts, double tokens) {
  const int launches = kLaunchesOfLayer + kLaunchesOfBlocks + kLaunchesOfExpert;
  return LayerSeconds(num_experts, tokens, {1, kRanks}, cost::ExpertsOrder::kGrouped) +
         launches * kLaunchSeconds;
}

struct Gains {
  double sliced = 0;
  double blocks = 0;
  double most() const { return std::max(sliced, blocks); }
};

Gains GainsOf(int num_experts, int batch, double factor) {
  const double tokens = double(batch) * kSequence / kRanks;
  const double baseline = WithCapacity(num_experts, tokens, factor);
  const Gains gains = {baseline / Sliced(num_experts, tokens),
                       baseline / MegaBlocks(num_experts, tokens)};
  fmt::print("| {} | {} | {:.0f} | {:.2f} | {:.2f} | {:.2f} |\n", num_experts, batch, factor,
             1e3 * baseline, gains.sliced, gains.blocks);
  return gains;
}

void PrintHead(const char* title) {
  fmt::print(
      "\n## {}\n\n| experts | batch | capacity factor | baseline ms | sliced | MegaBlocks |\n"
      "|---:|---:|---:|---:|---:|---:|\n",
      title);
}

void PrintScore(const char* what, double published, double predicted) {
  fmt::print("\n{}: published {:.2f}, predicted {:.2f}, error of the gain {:.0f} %\n", what,
             published, predicted, 100 * ErrorOfGain(predicted, published));
}

int Run() {
  PrintHead("Fig. 6.2: number of experts, router skew 0.6");
  double most = 0;
  Gains last;
  for (const int num_experts : {8, 16, 32, 64, 128, 256}) {
    last = GainsOf(num_experts, kBatch, std::min(num_experts, 50));
    most = std::max(most, last.most());
  }
  PrintScore("The greatest gain", 6.84, most);
  PrintScore("MegaBlocks with 256 experts, encoder", 2.94, last.blocks);

  PrintHead("Fig. 6.3: batches, 128 experts");
  std::string slower;
  for (const int batch : {5, 10, 25, 50, 75, 100, 150, 200, 250, 300}) {
    const Gains gains = GainsOf(128, batch, 50);
    if (gains.sliced < 1) slower += fmt::format(" sliced at {};", batch);
    if (gains.blocks < 1) slower += fmt::format(" MegaBlocks at {};", batch);
  }
  fmt::print("\nPublished: slower below a batch of 100. Predicted slower:{}\n",
             slower.empty() ? " nowhere" : slower);

  PrintHead("Fig. 6.4: router skew, from 0 to 1 (the same at all of them)");
  GainsOf(128, kBatch, 50);
  PrintHead("Fig. 6.5: number of skewed experts (the same at all of them), capacity factor 90");
  GainsOf(128, kBatch, 90);
  return 0;
}

}  // namespace
}  // namespace convene::papers

int main() { return convene::papers::Run(); }
