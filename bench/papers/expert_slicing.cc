// Reproduces the figures of "Optimizing End to End Inference Time on MoE models" (experts in
// slices beside expert parallelism with a capacity factor) in simulation, from a preset, beside
// the values that its authors publish. Nothing is fitted to these figures: prices are those of
// cost/presets.h, and what starting an operator takes was fixed before they were seen.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bench/papers/expert_slicing_published.h"
#include "bench/papers/paper_models.h"
#include "bench/papers/paper_program.h"
#include "cost/operator_costs.h"

namespace convene::papers {
namespace {

constexpr PaperProgram kExpertSlicing = {
    .name = "papers_expert_slicing",
    .title = "The figures of expert slicing, reproduced in simulation",
    .paper =
        "\"Optimizing End to End Inference Time on MoE models\" (André Espírito Santo, EPFL "
        "semester "
        "project, January 2025), Figs. 6.2 to 6.5; values behind the pictures are from the group's "
        "public repository (github.com/sacs-epfl/moe-inference). Not here: Fig. 6.1, how times "
        "vary "
        "from one iteration to the next, and Fig. 6.6, how long ranks wait for each other; a "
        "simulation with even routing has neither.",
    .simulated =
        "a layer with experts of Switch Transformers (base) on four A100 with NVLink, 250 "
        "sequences "
        "of 120 tokens on each: DeepSpeed's expert parallelism, padded to a capacity factor, and "
        "experts of which each rank has a slice, one product for each expert (sliced) or all in "
        "one "
        "(MegaBlocks).",
    .cells =
        "\"a / b\" is published / predicted; speed-ups are over DeepSpeed. Those of the "
        "encoder-decoder model are means over layers of both kinds; a layer of its decoder gets "
        "one "
        "token of each sequence.",
    .errors = kErrorOfGain,
    .words =
        "batch: sequences on each GPU; capacity factor: how many times its even share of tokens an "
        "expert has room for; router skew, skewed experts: how unevenly the router decides, which "
        "no "
        "predicted time depends on. Times have the relative error |predicted / published - 1|.",
    .duration = "a second",
    .document = "docs/results/papers_expert_slicing.md"};

// Section 6.1 and 6.3.1. The batch is of each GPU: so the public code's --help says, and a rank
// receives 368,641,536 bytes in a layer (outputs/), which are four times 30,000 rows of 768 float32
// and 1,536 bytes of counts.
constexpr int kRanks = 4;
constexpr int kSequence = 120;
constexpr int kExperts = 128;
constexpr int kCapacityFactor = 50;
constexpr int kLeastCapacity = 8;  // with which the public code makes DeepSpeed's gate

// Router, permutations, sizes and three exchanges; of block-sparse products besides: sorting,
// counting and their topology, whatever the number of experts.
constexpr int kOperatorsOfLayer = 20;
constexpr int kOperatorsOfBlocks = 20;
constexpr int kOperatorsOfExpert = 3;  // two products and what is between them
// In the public code (src/moe_layer.py) for each expert, whatever computes it: its rows are found
// and taken (2), concatenated over ranks (1), and put back (5); and for each expert and each rank
// two bounds are read and the rows between them sliced, before the experts (3) and behind them (3).
constexpr int kOperatorsOfRegrouping = 2 + 1 + 5 + kRanks * (3 + 3);

struct SlicingAssumptions {
  // What the CPU takes to start an operator of PyTorch, as is commonly reported for eager mode; the
  // paper calls this its bottleneck (section 4.4) and gives no number.
  double start_seconds = 10e-6;
  // Operators are counted as the public code starts them. False: as section 5 describes the
  // algorithms, which leaves out how rows are regrouped.
  bool as_public_code = false;
  // Products of float32 use TF32, as in NVIDIA's images of PyTorch, which the public code runs in.
  bool tensor_cores = true;
};

// A100 with float32 in place of bf16. Tables of operators have no float32: its products reach the
// share of their limits that those of bf16 do. An element has twice the bytes, which is the same as
// half of the rate of memory and links.
cost::MachineProfile MachineOfFloats(bool tensor_cores) {
  constexpr double kTf32Flops = 156e12;  // NVIDIA A100 data sheet, as the next
  constexpr double kFloatFlops = 19.5e12;
  cost::MachineProfile machine = Machine("a100-nvlink");
  const cost::OtherMachine whole = {*machine.device, machine.links.front().bytes_per_second};
  for (const auto& [name, model] : machine.operators) machine.measured_on.try_emplace(name, whole);
  machine.device->flops["bf16"] = tensor_cores ? kTf32Flops : kFloatFlops;
  machine.device->memory_bytes_per_second /= 2;
  for (cost::LinkLevel& link : machine.links) link.bytes_per_second /= 2;
  return machine;
}

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

class SwitchLayers {
 public:
  explicit SwitchLayers(const SlicingAssumptions& assumptions)
      : assumptions_(assumptions), machine_(MachineOfFloats(assumptions.tensor_cores)) {}

  // In milliseconds, `tokens` of each rank.
  SlicingTimes Times(int num_experts, double tokens, double factor) const {
    return {.baseline = 1e3 * WithCapacity(num_experts, tokens, factor),
            .sliced = 1e3 * Sliced(num_experts, tokens),
            .blocks = 1e3 * Blocks(num_experts, tokens)};
  }

 private:
  // A layer without its attention, of `tokens` tokens of each rank.
  double LayerSeconds(int num_experts, double tokens, const planner::ExpertStrategy& strategy,
                      cost::ExpertsOrder order, int operators) const {
    const model::ModelSpec spec = SwitchLayer(num_experts);
    const planner::PriceStep price = planner::PriceOn(machine_, {.order = order});
    const std::vector<planner::AttentionStrategy> attention = {{1, kRanks}};
    const std::vector<planner::ExpertStrategy> experts = {strategy};
    const auto tables = planner::PriceLayers(
        {.spec = spec, .attention = attention, .experts = experts, .price = price},
        {.batch = kRanks, .tokens = tokens, .first_position = 0, .prompt_length = 0});
    CHECK(tables.ok(), "{}", tables.error().message);
    return tables->layer.experts[0] + tables->layer.between[0][0] +
           operators * assumptions_.start_seconds;
  }

  // Every expert gets its whole capacity, used or not: rows are padded to it (section 6.3.3), so
  // the skew of the router changes nothing.
  double WithCapacity(int num_experts, double tokens, double factor) const {
    const double capacity =
        std::max<double>(kLeastCapacity, std::ceil(factor * tokens / num_experts));
    return LayerSeconds(num_experts, capacity * num_experts, {kRanks, 1},
                        cost::ExpertsOrder::kDense,
                        kOperatorsOfLayer + kOperatorsOfExpert * num_experts / kRanks);
  }

  // A product for each expert and, in the basic algorithm, each rank whose rows it gets.
  double Sliced(int num_experts, double tokens) const {
    const int of_expert = assumptions_.as_public_code ? kOperatorsOfExpert + kOperatorsOfRegrouping
                                                      : kOperatorsOfExpert * kRanks;
    return LayerSeconds(num_experts, tokens, {1, kRanks}, cost::ExpertsOrder::kDense,
                        kOperatorsOfLayer + of_expert * num_experts);
  }

  // All slices in one block-sparse product.
  double Blocks(int num_experts, double tokens) const {
    const int regrouping = assumptions_.as_public_code ? kOperatorsOfRegrouping * num_experts : 0;
    return LayerSeconds(num_experts, tokens, {1, kRanks}, cost::ExpertsOrder::kGrouped,
                        kOperatorsOfLayer + kOperatorsOfBlocks + kOperatorsOfExpert + regrouping);
  }

  SlicingAssumptions assumptions_;
  cost::MachineProfile machine_;
};

// Speed-ups over the baseline: of the encoder-only model, and of the encoder-decoder model.
struct SlicingGains {
  double sliced_encoder = 0;
  double blocks_encoder = 0;
  double sliced_both = 0;
  double blocks_both = 0;
};

SlicingGains GainsOf(const SwitchLayers& layers, int num_experts, double batch, double factor) {
  const SlicingTimes encoder = layers.Times(num_experts, batch * kSequence, factor);
  const SlicingTimes decoder = layers.Times(num_experts, batch, factor);
  const double sliced = encoder.baseline / encoder.sliced;
  const double blocks = encoder.baseline / encoder.blocks;
  return {.sliced_encoder = sliced,
          .blocks_encoder = blocks,
          .sliced_both = (sliced + decoder.baseline / decoder.sliced) / 2,
          .blocks_both = (blocks + decoder.baseline / decoder.blocks) / 2};
}

struct SlicingScore {
  std::vector<double> published = {};
  std::vector<double> predicted = {};

  // "published / predicted"
  std::string Add(double is, double says) {
    published.push_back(is);
    predicted.push_back(says);
    return fmt::format("{:.2f} / {:.2f}", is, says);
  }
  double ErrorOfGains() const { return MedianOf(&ErrorOfGain); }
  double ErrorOfTimes() const {
    return MedianOf([](double says, double is) { return std::abs(says / is - 1); });
  }
  double correlation() const { return RankCorrelation(predicted, published); }

 private:
  template <class Error>
  double MedianOf(const Error& error) const {
    std::vector<double> errors;
    for (size_t i = 0; i < published.size(); ++i) {
      errors.push_back(error(predicted[i], published[i]));
    }
    return Median(errors);
  }
};

// A figure's points, all scored together; `text` gets its rows.
SlicingScore ScoreOf(const SwitchLayers& layers, const SlicingFigure& figure, std::string* text) {
  SlicingScore score;
  const auto better = [](double sliced, double blocks) {
    return sliced > blocks ? "sliced" : "MegaBlocks";
  };
  for (const PublishedSlicing& point : figure.points) {
    const SlicingGains gains =
        GainsOf(layers, point.num_experts, point.batch, point.capacity_factor);
    const std::string cells[] = {score.Add(point.sliced_encoder, gains.sliced_encoder),
                                 score.Add(point.blocks_encoder, gains.blocks_encoder),
                                 score.Add(point.sliced_both, gains.sliced_both),
                                 score.Add(point.blocks_both, gains.blocks_both)};
    if (text == nullptr) continue;
    *text += fmt::format("| {} | {} | {} | {} | {} | {} / {} |\n", point.at, cells[0], cells[1],
                         cells[2], cells[3], better(point.sliced_encoder, point.blocks_encoder),
                         better(gains.sliced_encoder, gains.blocks_encoder));
  }
  return score;
}

void PrintSlicingFigures(const SwitchLayers& layers) {
  for (const SlicingFigure& figure : SlicingFigures()) {
    std::string text;
    const SlicingScore score = ScoreOf(layers, figure, &text);
    fmt::print(
        "\n## {}: speed-ups by {}, published / predicted\n\n| {} | sliced, encoder | MegaBlocks, "
        "encoder | sliced, encoder-decoder | MegaBlocks, encoder-decoder | better, encoder |\n"
        "|---:|---:|---:|---:|---:|---|\n{}"
        "\nMedian error of the gains: {:.0f} %; rank correlation: {:.2f}; {} values\n",
        figure.name, figure.varies, figure.varies, text, 100 * score.ErrorOfGains(),
        score.correlation(), score.published.size());
  }
}

// The least batch with which the encoder-only model is faster than the baseline.
std::string LeastBatchThatGains(const SwitchLayers& layers, double SlicingGains::*gain) {
  double low = 1;
  double high = 1000;
  const auto wins = [&](double batch) {
    return GainsOf(layers, kExperts, batch, kCapacityFactor).*gain >= 1;
  };
  if (wins(low)) return "every one";
  if (!wins(high)) return "none";
  while (high - low > 1) {
    const double middle = (low + high) / 2;
    (wins(middle) ? high : low) = middle;
  }
  return fmt::format("{:.0f}", high);
}

// The least number of experts with which MegaBlocks is better in the encoder-only model.
std::string BlocksWinFrom(const SwitchLayers& layers) {
  for (const PublishedSlicing& point : SlicingFigures().front().points) {
    const SlicingGains gains =
        GainsOf(layers, point.num_experts, point.batch, point.capacity_factor);
    if (gains.blocks_encoder > gains.sliced_encoder) return fmt::format("{}", point.num_experts);
  }
  return "none";
}

void PrintClaims(const SwitchLayers& layers) {
  const SlicingFigure& by_experts = SlicingFigures().front();
  double most = 0;
  SlicingGains last;
  for (const PublishedSlicing& point : by_experts.points) {
    last = GainsOf(layers, point.num_experts, point.batch, point.capacity_factor);
    most = std::max({most, last.sliced_encoder, last.blocks_encoder});
  }
  constexpr double kMost = 6.84;
  constexpr double kLastBoth = 1.26;
  fmt::print(
      "\n## What the text says\n\n| | published | predicted | error of the gain |\n"
      "|---|---:|---:|---:|\n");
  fmt::print("| the greatest speed-up (section 6.3.1) | {:.2f} | {:.2f} | {:.0f} % |\n", kMost,
             most, 100 * ErrorOfGain(most, kMost));
  fmt::print(
      "| MegaBlocks, 256 experts, encoder-decoder (section 6.3.1) | {:.2f} | {:.2f} | {:.0f} % |\n",
      kLastBoth, last.blocks_both, 100 * ErrorOfGain(last.blocks_both, kLastBoth));
  // The text's 194 % for the encoder-only model is 1.94, sliced's speed-up, in the authors' values.
  const PublishedSlicing& of_last = by_experts.points.back();
  fmt::print(
      "| MegaBlocks, 256 experts, encoder (the text says 2.94, the authors' values {:.2f}) | "
      "{:.2f} "
      "| {:.2f} | {:.0f} % |\n",
      of_last.blocks_encoder, of_last.blocks_encoder, last.blocks_encoder,
      100 * ErrorOfGain(last.blocks_encoder, of_last.blocks_encoder));
  fmt::print(
      "| the least batch that gains, encoder: sliced (section 6.3.2; the authors' values: above "
      "10, at most 100) | 100 | {} | |\n",
      LeastBatchThatGains(layers, &SlicingGains::sliced_encoder));
  fmt::print("| the least batch that gains, encoder: MegaBlocks | 100 | {} | |\n",
             LeastBatchThatGains(layers, &SlicingGains::blocks_encoder));
  fmt::print("| experts from which MegaBlocks is better (section 6.3.1) | 64 | {} | |\n",
             BlocksWinFrom(layers));
}

struct SlicingTimeScores {
  SlicingScore baseline = {};
  SlicingScore sliced = {};
  SlicingScore blocks = {};

  std::string Add(const SlicingTimes& is, const SlicingTimes& says) {
    return fmt::format("{} | {} | {}", baseline.Add(is.baseline, says.baseline),
                       sliced.Add(is.sliced, says.sliced), blocks.Add(is.blocks, says.blocks));
  }
};

SlicingTimeScores TimesOf(const SwitchLayers& layers, std::string* text) {
  SlicingTimeScores scores;
  for (const PublishedLayer& layer : PublishedLayers()) {
    const auto add = [&](const SlicingTimes& published, double tokens) {
      return scores.Add(published, layers.Times(layer.num_experts, tokens, layer.capacity_factor));
    };
    const std::string encoder = add(layer.encoder, double(layer.batch) * kSequence);
    const std::string decoder = add(layer.decoder, layer.batch);
    if (text == nullptr) continue;
    *text += fmt::format("| {} | {} | {} | {} | {} |\n", layer.num_experts, layer.batch,
                         layer.capacity_factor, encoder, decoder);
  }
  return scores;
}

void PrintTimes(const SwitchLayers& layers) {
  std::string text;
  const SlicingTimeScores scores = TimesOf(layers, &text);
  fmt::print(
      "\n## Times of a layer, ms, published / predicted\n\nPublished are medians over 100 "
      "iterations "
      "and six layers of rank 0 (outputs/ of the public repository).\n\n"
      "| experts | batch | capacity factor | encoder: DeepSpeed | sliced | MegaBlocks | decoder: "
      "DeepSpeed | sliced | MegaBlocks |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n{}"
      "\nMedian error of the times and rank correlation: DeepSpeed {:.0f} %, {:.2f}; sliced {:.0f} "
      "%, {:.2f}; MegaBlocks {:.0f} %, {:.2f}\n",
      text, 100 * scores.baseline.ErrorOfTimes(), scores.baseline.correlation(),
      100 * scores.sliced.ErrorOfTimes(), scores.sliced.correlation(),
      100 * scores.blocks.ErrorOfTimes(), scores.blocks.correlation());
}

void PrintSlicingVariants() {
  struct Variant {
    const char* name;
    SlicingAssumptions assumptions;
  };
  const Variant variants[] = {
      {"as above: 10 us", {}},
      {"5 us to start an operator", {.start_seconds = 5e-6}},
      {"20 us", {.start_seconds = 20e-6}},
      {"10 us, operators counted in the public code", {.as_public_code = true}},
      {"5 us, likewise", {.start_seconds = 5e-6, .as_public_code = true}},
      {"20 us, likewise", {.start_seconds = 20e-6, .as_public_code = true}},
      {"10 us, products without tensor cores", {.tensor_cores = false}},
  };
  fmt::print(
      "\n## The same under other assumptions\n\nThe number of operators in the public code was "
      "counted after its times had been seen, so what it gives is an explanation, no prediction. "
      "Of "
      "figures: the median error of the gains and the rank correlation; of times: the median "
      "error.\n\n"
      "| | Fig. 6.2 | Fig. 6.3 | Fig. 6.4 | Fig. 6.5 | time of DeepSpeed | sliced | MegaBlocks | "
      "least batch that gains: sliced | MegaBlocks | experts from which MegaBlocks is better |\n"
      "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const Variant& variant : variants) {
    const SwitchLayers layers(variant.assumptions);
    fmt::print("| {} |", variant.name);
    for (const SlicingFigure& figure : SlicingFigures()) {
      const SlicingScore score = ScoreOf(layers, figure, nullptr);
      fmt::print(" {:.0f} %, {:.2f} |", 100 * score.ErrorOfGains(), score.correlation());
    }
    const SlicingTimeScores times = TimesOf(layers, nullptr);
    fmt::print(" {:.0f} % | {:.0f} % | {:.0f} % | {} | {} | {} |\n",
               100 * times.baseline.ErrorOfTimes(), 100 * times.sliced.ErrorOfTimes(),
               100 * times.blocks.ErrorOfTimes(),
               LeastBatchThatGains(layers, &SlicingGains::sliced_encoder),
               LeastBatchThatGains(layers, &SlicingGains::blocks_encoder), BlocksWinFrom(layers));
  }
}

int RunExpertSlicing() {
  const SwitchLayers layers({});
  PrintClaims(layers);
  PrintSlicingFigures(layers);
  PrintTimes(layers);
  PrintSlicingVariants();
  return 0;
}

}  // namespace
}  // namespace convene::papers

int main(int argc, char** argv) {
  using namespace convene::papers;
  const std::optional<int> status = Begin(kExpertSlicing, argc, argv);
  return status ? *status : RunExpertSlicing();
}
