#include "bench/papers/hap_phases.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "bench/papers/hap_case.h"

namespace convene::papers {
namespace {

using planner::HybridAnswer;
using planner::HybridCandidate;

// Seconds of a phase.
struct Breakdown {
  double attention = 0;
  double experts = 0;  // with router, shared expert and sums, as is attention of the busiest rank
  double between = 0;  // the rest: exchanges, as far as nothing is computed meanwhile

  double all() const { return attention + experts + between; }
};
constexpr int kLengthOfFigureTwo = 2048;

struct BothPhases {
  Breakdown prefill;
  Breakdown decode;  // of one step
};

BothPhases BreakdownOf(const model::ModelSpec& spec, const cost::MachineProfile& machine,
                       const HybridAnswer& answer, int num_ranks, int attention_tp, int expert_tp) {
  const double num_layers = spec.num_layers();
  const planner::ExpertStrategy experts = {num_ranks / expert_tp, expert_tp};
  for (size_t a = 0; a < answer.attention.size(); ++a) {
    if (answer.attention[a].tensor != attention_tp) continue;
    const auto of = [&](const planner::PhaseStep& step, double steps) -> Breakdown {
      const auto tables = PriceAsHap(spec, machine, answer.attention[a], experts, step);
      CHECK(tables.ok(), "{}", tables.error().message);
      const double times = num_layers * steps;
      return {times * tables->layer.attention[0] + steps * tables->ends[0],
              times * tables->layer.experts[0], times * tables->layer.between[0][0]};
    };
    return {of(answer.prefill[a], kLengthOfFigureTwo / answer.prefill[a].tokens),
            of(answer.decode, 1)};
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
  constexpr int kShownBatch = 8;
  const cost::MachineProfile machine = MachineOfHap("a6000-pcie4");
  fmt::print(
      "\n| Fig. 2, Mixtral-8x7B, 4 x A6000, 2,048 tokens, batch {} | attention ms | experts ms | "
      "exchanges ms | all ms |\n|---|---:|---:|---:|---:|\n",
      kShownBatch);
  int num_settings = 0;
  int with_replicas[std::size(kStatementsOfFigureTwo)] = {};
  int with_heads[std::size(kStatementsOfFigureTwo)] = {};
  for (const char* name : kModelsOfHap) {
    const model::ModelSpec spec = Model(name);
    for (const int batch : kBatchesOfHap) {
      const auto answer = SearchAsHap(spec, machine, kRanks, batch, kLengthOfFigureTwo, 1);
      CHECK(answer.ok(), "{}", answer.error().message);
      const BothPhases tensor = BreakdownOf(spec, machine, *answer, kRanks, kRanks, kRanks);
      const BothPhases replicas = BreakdownOf(spec, machine, *answer, kRanks, 1, 1);
      const BothPhases heads = BreakdownOf(spec, machine, *answer, kRanks, kRanks, 1);
      ++num_settings;
      for (size_t i = 0; i < std::size(kStatementsOfFigureTwo); ++i) {
        with_replicas[i] += kStatementsOfFigureTwo[i].holds(tensor, replicas);
        with_heads[i] += kStatementsOfFigureTwo[i].holds(tensor, heads);
      }
      if (name != kModelsOfHap[0] || batch != kShownBatch) continue;
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
  const cost::MachineProfile machine = MachineOfHap("a100-nvlink");
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
  const cost::MachineProfile machine = MachineOfHap("a6000-pcie4");
  const auto answer = SearchAsHap(spec, machine, 4, 8, 4096, 2048);
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

}  // namespace

void PrintPhasesOfHap() {
  fmt::print("\n## Seconds of both phases\n");
  PrintPhases();
  fmt::print("\n## Where the time goes\n");
  PrintBreakdown();
  fmt::print("\n## How good the models of operators are\n");
  PrintModelErrors();
}

}  // namespace convene::papers
