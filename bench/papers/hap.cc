// Reproduces the figures of HAP (hybrid adaptive parallelism) in simulation, from presets, beside
// what the paper publishes. Nothing is fitted to these figures: prices are those of cost/presets.h.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <utility>
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

// On the paper's engine, which computes so many tokens at once.
Result<HybridAnswer> Search(const model::ModelSpec& spec, const cost::MachineProfile& machine,
                            int num_ranks, int batch, int prompt_tokens, int gen_tokens) {
  planner::HybridQuestion question =
      AskHybrid(spec, machine, num_ranks, batch, prompt_tokens, gen_tokens);
  question.step_tokens = kStepTokens / num_ranks;
  return planner::SearchHybrid(question);
}

bool IsExpertParallel(const HybridCandidate& candidate, int num_ranks) {
  return candidate.prefill.attention_dp == num_ranks && candidate.prefill.expert_ep == num_ranks &&
         candidate.decode.expert_ep == num_ranks;
}

// Seconds of a phase.
struct Breakdown {
  double attention = 0;
  double experts = 0;  // with router, shared expert and sums, as is attention of the busiest rank
  double between = 0;  // the rest: exchanges, as far as nothing is computed meanwhile

  double all() const { return attention + experts + between; }
};
struct BothPhases {
  Breakdown prefill;
  Breakdown decode;  // of one step
};

BothPhases BreakdownOf(const HybridAnswer& answer, int attention_tp, int expert_tp) {
  const planner::HybridProgram& program = answer.program;
  for (const HybridCandidate& candidate : answer.candidates) {
    const auto& [a, p, d] = candidate.triple;
    if (candidate.prefill.attention_tp != attention_tp || p != d ||
        candidate.prefill.expert_tp != expert_tp) {
      continue;
    }
    const auto of = [a = a, p = p](const planner::PhaseCosts& costs, double times) -> Breakdown {
      return {times * costs.attention[a], times * costs.experts[p], times * costs.between[a][p]};
    };
    return {of(program.prefill, program.num_layers * program.prefill_steps),
            of(program.decode, program.num_layers)};
  }
  CHECK(false, "no attention tp{} with experts tp{}", attention_tp, expert_tp);
  return {};
}

bool AttentionDiffersLess(const Breakdown& x, const Breakdown& y) {
  return std::abs(x.attention - y.attention) <
         std::abs(x.experts - y.experts) + std::abs(x.between - y.between);
}

// What the text says that Fig. 2 shows.
struct Statement {
  const char* what;
  bool (*holds)(const BothPhases& tensor, const BothPhases& expert);
};
constexpr Statement kStatementsOfFigureTwo[] = {
    {"prefill: tensor parallelism exchanges longer",
     [](const BothPhases& tensor, const BothPhases& expert) {
       return tensor.prefill.between > expert.prefill.between;
     }},
    {"prefill: expert parallelism is faster",
     [](const BothPhases& tensor, const BothPhases& expert) {
       return expert.prefill.all() < tensor.prefill.all();
     }},
    {"decode: experts take longer with expert parallelism",
     [](const BothPhases& tensor, const BothPhases& expert) {
       return expert.decode.experts > tensor.decode.experts;
     }},
    {"decode: tensor parallelism is faster",
     [](const BothPhases& tensor, const BothPhases& expert) {
       return tensor.decode.all() < expert.decode.all();
     }},
    {"prefill: attention is the smaller part of the difference",
     [](const BothPhases& tensor, const BothPhases& expert) {
       return AttentionDiffersLess(tensor.prefill, expert.prefill);
     }},
    {"decode: attention is the smaller part of the difference",
     [](const BothPhases& tensor, const BothPhases& expert) {
       return AttentionDiffersLess(tensor.decode, expert.decode);
     }},
};

// Fig. 2: where the time of prefill and decode goes. The values are in the picture alone. The text
// names neither the model nor the batch nor how attention is divided beside expert parallelism.
void PrintBreakdown() {
  constexpr int kRanks = 4;
  constexpr int kLength = 2048;
  constexpr int kShownBatch = 8;
  const cost::MachineProfile machine = Machine("a6000-pcie4");
  fmt::print(
      "\n| Fig. 2, Mixtral-8x7B, 4 x A6000, 2,048 tokens, batch {} | attention ms | experts ms | "
      "exchanges ms | all ms |\n|---|---:|---:|---:|---:|\n",
      kShownBatch);
  int num_settings = 0;
  int with_replicas[std::size(kStatementsOfFigureTwo)] = {};
  int with_heads[std::size(kStatementsOfFigureTwo)] = {};
  for (const char* name : kModels) {
    const model::ModelSpec spec = Model(name);
    for (const int batch : kBatches) {
      const auto answer = Search(spec, machine, kRanks, batch, kLength, 1);
      CHECK(answer.ok(), "{}", answer.error().message);
      const BothPhases tensor = BreakdownOf(*answer, kRanks, kRanks);
      const BothPhases replicas = BreakdownOf(*answer, 1, 1);
      const BothPhases heads = BreakdownOf(*answer, kRanks, 1);
      ++num_settings;
      for (size_t i = 0; i < std::size(kStatementsOfFigureTwo); ++i) {
        with_replicas[i] += kStatementsOfFigureTwo[i].holds(tensor, replicas);
        with_heads[i] += kStatementsOfFigureTwo[i].holds(tensor, heads);
      }
      if (name != kModels[0] || batch != kShownBatch) continue;
      const auto print = [](const char* what, const Breakdown& of) {
        fmt::print("| {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} |\n", what, 1e3 * of.attention,
                   1e3 * of.experts, 1e3 * of.between, 1e3 * of.all());
      };
      print("prefill, tp4 / tp4", tensor.prefill);
      print("prefill, dp4 / ep4", replicas.prefill);
      print("prefill, tp4 / ep4", heads.prefill);
      print("a step of decode, tp4 / tp4", tensor.decode);
      print("a step of decode, dp4 / ep4", replicas.decode);
      print("a step of decode, tp4 / ep4", heads.decode);
    }
  }
  fmt::print(
      "\n| Fig. 2: what the text says, in {} settings of model and batch | holds with dp4 / ep4 | "
      "with tp4 / ep4 |\n|---|---:|---:|\n",
      num_settings);
  for (size_t i = 0; i < std::size(kStatementsOfFigureTwo); ++i) {
    fmt::print("| {} | {} | {} |\n", kStatementsOfFigureTwo[i].what, with_replicas[i],
               with_heads[i]);
  }
}

// Fig. 5: how far models of operators are from points that they were not fitted to. Those of A6000
// are the models of A100: the presets have no points of A6000 to compare with.
void PrintModelErrors() {
  constexpr double kOfComputation = 0.10;
  constexpr double kOfCommunication = 0.05;
  const cost::MachineProfile machine = Machine("a100-nvlink");
  fmt::print(
      "\n| Fig. 5, A100: model of | points | published | median | mean | 95th percentile | forest: "
      "median |\n|---|---:|---:|---:|---:|---:|---:|\n");
  int within = 0;
  const std::pair<const char*, double> operators[] = {{"product bf16", kOfComputation},
                                                      {"grouped_product bf16", kOfComputation},
                                                      {"all_gather", kOfCommunication},
                                                      {"reduce_scatter", kOfCommunication},
                                                      {"all_to_all", kOfCommunication}};
  for (const auto& [name, bound] : operators) {
    const auto found = machine.operators.find(name);
    CHECK(found != machine.operators.end(), "no model of {}", name);
    const cost::OperatorModel& model = found->second;
    const cost::HeldOutErrors& errors = model.chosen();
    double forest = 0;
    for (const cost::HeldOutErrors& candidate : model.candidates) {
      if (candidate.kind == cost::CurveKind::kForest) forest = candidate.median;
    }
    within += errors.median < bound;
    fmt::print("| {} | {} | < {:.0f} % | {:.1f} % | {:.1f} % | {:.1f} % | {:.1f} % |\n", name,
               model.num_points, 100 * bound, 100 * errors.median, 100 * errors.mean,
               100 * errors.p95, 100 * forest);
  }
  fmt::print("\nMedians within what is published: {} of {}.\n", within, std::size(operators));
}

void PrintPhases() {
  // Fig. 8c: seconds of prefill and decode of tensor parallelism, expert parallelism and the
  // choice.
  const model::ModelSpec spec = Model("Mixtral-8x7B");
  const cost::MachineProfile machine = Machine("a6000-pcie4");
  const auto answer = Search(spec, machine, 4, 8, 4096, 2048);
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
    if (IsTensorParallel(candidate, 4)) print("tensor parallel", candidate);
    if (IsExpertParallel(candidate, 4)) print("expert parallel", candidate);
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
        const auto answer = Search(spec, machine, setting.num_ranks, batch, setting.prompt_tokens,
                                   setting.gen_tokens);
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
  PrintBreakdown();
  PrintModelErrors();
  return 0;
}

}  // namespace
}  // namespace convene::papers

int main() { return convene::papers::Run(); }
