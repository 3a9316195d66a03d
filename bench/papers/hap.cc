// Reproduces the figures of HAP (hybrid adaptive parallelism) in simulation, from presets, beside
// what the paper publishes. Nothing is fitted to these figures: prices are those of cost/presets.h.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "bench/papers/paper_models.h"

namespace convene::papers {
namespace {

using planner::HybridAnswer;
using planner::HybridCandidate;

// The paper does not name its batches; these were fixed before the first run.
constexpr int kBatches[] = {1, 2, 4, 8, 16, 32};

// Tokens of all ranks together that DeepSpeed-FastGen computes at once: its default
// max_ragged_batch_size.
constexpr int kStepTokens = 768;

struct Setting {
  const char* figure;
  const char* scenario;
  int prompt_tokens;
  int gen_tokens;
  const char* machine;
  const char* preset;
  int num_ranks;
};
constexpr Setting kSettings[] = {
    {"Fig. 4", "short, constrained", 256, 64, "4 x A6000", "a6000-pcie4", 4},
    {"Fig. 4", "short, constrained", 256, 64, "4 x A100", "a100-nvlink", 4},
    {"Fig. 6", "short, extended", 256, 2048, "4 x A6000", "a6000-pcie4", 4},
    {"Fig. 6", "short, extended", 256, 2048, "4 x A100", "a100-nvlink", 4},
    {"Fig. 7", "long, constrained", 4096, 64, "4 x A6000", "a6000-pcie4", 4},
    {"Fig. 7", "long, constrained", 4096, 64, "4 x A100", "a100-nvlink", 4},
    {"Fig. 8a", "2,048 in, constrained", 2048, 64, "8 x A100", "a100-nvlink", 8},
    {"Fig. 8b", "2,048 in, constrained", 2048, 64, "8 x V100", "v100-pcie3", 8},
    {"Fig. 9", "long, extended", 4096, 2048, "4 x A6000", "a6000-pcie4", 4},
    {"Fig. 9", "long, extended", 4096, 2048, "4 x A100", "a100-nvlink", 4},
};
const char* const kModels[] = {"Mixtral-8x7B", "Qwen1.5-MoE-A2.7B", "Qwen2-57B-A14B"};

// The greatest speed-up over tensor parallelism that the text gives; of all models together where
// it does not say of which.
struct Published {
  const char* figure;
  const char* machine;
  const char* model;  // empty: the greatest of all models
  double most;
};
constexpr Published kPublished[] = {
    {"Fig. 4", "4 x A6000", "Mixtral-8x7B", 1.13},
    {"Fig. 4", "4 x A6000", "Qwen1.5-MoE-A2.7B", 1.12},
    {"Fig. 4", "4 x A6000", "Qwen2-57B-A14B", 1.18},
    {"Fig. 4", "4 x A100", "Mixtral-8x7B", 1.16},
    {"Fig. 4", "4 x A100", "Qwen1.5-MoE-A2.7B", 1.37},
    {"Fig. 4", "4 x A100", "Qwen2-57B-A14B", 1.11},
    {"Fig. 6", "4 x A6000", "Mixtral-8x7B", 1.01},
    {"Fig. 6", "4 x A6000", "Qwen1.5-MoE-A2.7B", 1.10},
    {"Fig. 6", "4 x A6000", "Qwen2-57B-A14B", 1.036},
    {"Fig. 6", "4 x A100", "Mixtral-8x7B", 1.01},
    {"Fig. 6", "4 x A100", "Qwen1.5-MoE-A2.7B", 1.23},
    {"Fig. 6", "4 x A100", "Qwen2-57B-A14B", 1.05},
    {"Fig. 7", "4 x A6000", "", 1.68},
    {"Fig. 7", "4 x A100", "", 1.77},
    {"Fig. 8a", "8 x A100", "Mixtral-8x7B", 1.29},
    {"Fig. 8b", "8 x V100", "Mixtral-8x7B", 1.57},
    {"Fig. 9", "4 x A6000", "", 1.13},
};

bool IsTensorParallel(const HybridCandidate& candidate, int num_ranks) {
  return candidate.prefill.attention_tp == num_ranks && candidate.prefill.expert_tp == num_ranks &&
         candidate.decode.expert_tp == num_ranks;
}

std::string ShortText(const HybridCandidate& candidate) {
  const auto of = [](const strategy::Layout& layout) {
    return planner::ToText(planner::ExpertStrategy{layout.expert_ep, layout.expert_tp}).substr(8);
  };
  std::string text = planner::ToText(planner::AttentionStrategy{candidate.prefill.attention_tp,
                                                                candidate.prefill.attention_dp})
                         .substr(10);
  text += " / " + of(candidate.prefill);
  if (candidate.triple.prefill != candidate.triple.decode) {
    text += fmt::format(" > {} ({})", of(candidate.decode), candidate.transition_by);
  }
  return text;
}

struct Point {
  double speedup = 0;
  std::string text;
};

// Nothing where tensor parallelism does not fit, or this model cannot be divided so.
Point PointOf(const HybridAnswer& answer, int num_ranks) {
  for (const HybridCandidate& candidate : answer.candidates) {
    if (!IsTensorParallel(candidate, num_ranks)) continue;
    if (!candidate.rejected.empty()) return {0, "tensor parallelism: " + candidate.rejected};
    const HybridCandidate& chosen = answer.candidates[answer.chosen];
    return {candidate.seconds / chosen.seconds, ShortText(chosen)};
  }
  return {0, "tensor parallelism does not divide it"};
}

void PrintPhases() {
  // Fig. 8c: seconds of prefill and decode of tensor parallelism, expert parallelism and the
  // choice.
  const model::ModelSpec spec = Model("Mixtral-8x7B");
  const cost::MachineProfile machine = Machine("a6000-pcie4");
  const auto answer = planner::SearchHybrid(AskHybrid(spec, machine, 4, 8, 4096, 2048));
  CHECK(answer.ok(), "{}", answer.error().message);
  fmt::print(
      "\n| Fig. 8c, Mixtral-8x7B, 4 x A6000, batch 8 | prefill s | decode s | transition s |\n");
  fmt::print("|---|---:|---:|---:|\n");
  const auto print = [&](const char* name, const HybridCandidate& candidate) {
    fmt::print("| {} ({}) | {:.2f} | {:.2f} | {:.2f} |\n", name, ShortText(candidate),
               candidate.prefill_seconds, 2048 * candidate.token_seconds,
               candidate.transition_seconds);
  };
  for (const HybridCandidate& candidate : answer->candidates) {
    const bool is_expert_parallel = candidate.prefill.attention_dp == 4 &&
                                    candidate.prefill.expert_ep == 4 &&
                                    candidate.decode.expert_ep == 4;
    if (IsTensorParallel(candidate, 4)) print("tensor parallel", candidate);
    if (is_expert_parallel) print("expert parallel", candidate);
  }
  print("chosen", answer->candidates[answer->chosen]);
}

int Run() {
  std::map<std::string, double> most;  // by figure, machine and model
  double longest_search = 0;
  fmt::print("| figure | machine | model | batch | speed-up | chosen: attention / experts |\n");
  fmt::print("|---|---|---|---:|---:|---|\n");
  for (const Setting& setting : kSettings) {
    const cost::MachineProfile machine = Machine(setting.preset);
    for (const char* name : kModels) {
      if (setting.num_ranks == 8 && std::string(name) != "Mixtral-8x7B") continue;
      const model::ModelSpec spec = Model(name);
      for (const int batch : kBatches) {
        const auto start = std::chrono::steady_clock::now();
        planner::HybridQuestion question = AskHybrid(spec, machine, setting.num_ranks, batch,
                                                     setting.prompt_tokens, setting.gen_tokens);
        question.step_tokens = kStepTokens / setting.num_ranks;
        const auto answer = planner::SearchHybrid(question);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        longest_search = std::max(longest_search, took.count());
        const Point point = answer.ok() ? PointOf(*answer, setting.num_ranks)
                                        : Point{0, answer.error().message.substr(0, 40)};
        fmt::print("| {} | {} | {} | {} | {} | {} |\n", setting.figure, setting.machine, name,
                   batch, point.speedup > 0 ? fmt::format("{:.3f}", point.speedup) : "-",
                   point.text);
        for (const std::string& key : {fmt::format("{}{}{}", setting.figure, setting.machine, name),
                                       fmt::format("{}{}", setting.figure, setting.machine)}) {
          most[key] = std::max(most[key], point.speedup);
        }
      }
    }
  }
  fmt::print("\n| figure | machine | model | published | predicted | error of the gain |\n");
  fmt::print("|---|---|---|---:|---:|---:|\n");
  std::vector<double> predicted;
  std::vector<double> published;
  std::vector<double> errors;
  for (const Published& point : kPublished) {
    const double value = most[fmt::format("{}{}{}", point.figure, point.machine, point.model)];
    predicted.push_back(value);
    published.push_back(point.most);
    errors.push_back(ErrorOfGain(value, point.most));
    fmt::print("| {} | {} | {} | {:.3f} | {:.3f} | {:.0f} % |\n", point.figure, point.machine,
               *point.model != '\0' ? point.model : "all", point.most, value, 100 * errors.back());
  }
  fmt::print(
      "\nMedian error of the gain: {:.0f} %; rank correlation: {:.2f}; longest search: {:.2f} s\n",
      100 * Median(errors), RankCorrelation(predicted, published), longest_search);
  PrintPhases();
  return 0;
}

}  // namespace
}  // namespace convene::papers

int main() { return convene::papers::Run(); }
