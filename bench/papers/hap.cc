// Reproduces the figures of HAP (hybrid adaptive parallelism) in simulation, from presets, beside
// what the paper publishes: speed-ups over tensor parallelism, with the time that the integer
// program's solver takes on this machine, as the paper counts it. Nothing is fitted to these
// figures: prices are those of cost/presets.h, with what is known of the paper's engine.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "bench/papers/hap_case.h"
#include "bench/papers/hap_phases.h"
#include "bench/papers/paper_models.h"
#include "bench/papers/paper_program.h"
#include "planner/cbc/solve_hybrid.h"

namespace convene::papers {
namespace {

constexpr PaperProgram kHap = {
    .name = "papers_hap",
    .title = "HAP's figures, reproduced in simulation",
    .paper =
        "\"HAP: Hybrid Adaptive Parallelism for Efficient Mixture-of-Experts Inference\", sections "
        "III-A1, IV-B and IV-C1 to IV-C4.",
    .simulated =
        "the layouts that planner/hybrid_search.h chooses for prefill and decode of three models "
        "on 4 A6000, 4 and 8 A100 and 8 V100, priced from presets, with what is known of the "
        "paper's engine (bench/papers/hap_case.h).",
    .cells =
        "a speed-up is the time of tensor parallelism (attention and experts both divided among "
        "all "
        "ranks) by the time of the chosen layout, for all prompts and all generated tokens of a "
        "batch. Published is what the paper's text gives, predicted what the simulation gives. The "
        "paper adds the run time of its integer program's solver to its own latencies, so "
        "predicted "
        "speed-ups have it too, as measured here and now; beside them stand those without it and "
        "those with the whole search, which also simulates the layers.",
    .errors = kErrorOfGain,
    .words =
        "layouts are attention / experts, and \"> ... (by)\" is another layout of the experts in "
        "decode, with the way of the transition; tp4 divides each matrix among 4 ranks, dp4 gives "
        "each of 4 ranks its own sequences, ep4 gives each of 4 ranks whole experts.",
    .duration = "about two minutes, most of which are variants",
    .document = "docs/results/papers_hap.md"};

using planner::HybridAnswer;
using planner::HybridCandidate;

struct Setting {
  const char* figure;
  const char* scenario;
  int prompt_tokens;
  int gen_tokens;
  const char* machine;
  const char* preset;
  int num_ranks;
};
constexpr Setting kSettingsOfHap[] = {
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
// The greatest speed-up over tensor parallelism, over batches, that the text gives; of all models,
// or of both machines, together where it does not say of which.
enum class OverModels { kGreatest, kLeast };
struct Published {
  const char* figure;
  const char* machine;  // empty: the greatest of both machines
  const char* model;    // empty: over all models
  double most;
  OverModels over_models = OverModels::kGreatest;
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
    {"Fig. 7", "4 x A6000", "", 1.21, OverModels::kLeast},
    {"Fig. 7", "4 x A100", "", 1.77},
    {"Fig. 8a", "8 x A100", "Mixtral-8x7B", 1.29},
    {"Fig. 8b", "8 x V100", "Mixtral-8x7B", 1.57},
    {"Fig. 9", "", "", 1.13},
};

// Over tensor parallelism.
struct Speedup {
  double with_solver = 0;
  double alone = 0;        // of the chosen layout, as if it were known
  double with_search = 0;  // with all that a search does: it simulates layers and solves
};
struct Point {
  const Setting* setting = nullptr;
  const char* model = nullptr;
  int batch = 0;
  Speedup speedup = {};
  std::string text = {};
};

struct Waiting {
  double solver = 0;  // seconds, as the next
  double search = 0;
};

// No speed-up where tensor parallelism does not fit, or this model cannot be divided so.
void SetSpeedup(const HybridAnswer& answer, int num_ranks, const Waiting& waiting, Point& point) {
  for (const HybridCandidate& candidate : answer.candidates) {
    if (!IsTensorParallel(candidate, num_ranks)) continue;
    if (!candidate.rejected.empty()) {
      point.text = "tensor parallelism: " + candidate.rejected;
      return;
    }
    const HybridCandidate& chosen = answer.candidates[answer.chosen];
    point.speedup = {.with_solver = candidate.seconds / (chosen.seconds + waiting.solver),
                     .alone = candidate.seconds / chosen.seconds,
                     .with_search = candidate.seconds / (chosen.seconds + waiting.search)};
    point.text = ShortText(chosen);
    return;
  }
  point.text = "tensor parallelism does not divide it";
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Point PointOf(const Setting& setting, const cost::MachineProfile& machine, const char* name,
              int batch, const ReadingOfHap& reading, Waiting& longest) {
  const model::ModelSpec spec = Model(name);
  Point point{.setting = &setting, .model = name, .batch = batch};
  Waiting waiting;
  auto start = std::chrono::steady_clock::now();
  const Result<HybridAnswer> answer = SearchAsHap(
      spec, machine, setting.num_ranks, batch, setting.prompt_tokens, setting.gen_tokens, reading);
  waiting.search = SecondsSince(start);
  if (!answer.ok()) {
    point.text = answer.error().message.substr(0, 40);
    return point;
  }
  // The search does this, too; here it is done once more, by itself.
  start = std::chrono::steady_clock::now();
  const auto solved = planner::SolveHybrid(answer->program);
  waiting.solver = SecondsSince(start);
  CHECK(solved.ok(), "{}", solved.error().message);
  SetSpeedup(*answer, setting.num_ranks, waiting, point);
  longest = {std::max(longest.solver, waiting.solver), std::max(longest.search, waiting.search)};
  return point;
}

std::vector<Point> SearchPoints(const ReadingOfHap& reading, Waiting& longest) {
  std::vector<Point> points;
  for (const Setting& setting : kSettingsOfHap) {
    const cost::MachineProfile machine = MachineOfHap(setting.preset, reading);
    for (const char* name : kModelsOfHap) {
      if (setting.num_ranks == 8 && std::string(name) != "Mixtral-8x7B") continue;
      for (const int batch : kBatchesOfHap) {
        points.push_back(PointOf(setting, machine, name, batch, reading, longest));
      }
    }
  }
  return points;
}

void PrintPoints(const std::vector<Point>& points, const Waiting& longest) {
  fmt::print(
      "\n## All points\n\n| figure | machine | model | batch | speed-up with the solver's time | "
      "without it | with the whole search | chosen: attention / experts |\n"
      "|---|---|---|---:|---:|---:|---:|---|\n");
  const auto text = [](double speedup) {
    return speedup > 0 ? fmt::format("{:.3f}", speedup) : "-";
  };
  for (const Point& point : points) {
    fmt::print("| {} | {} | {} | {} | {} | {} | {} | {} |\n", point.setting->figure,
               point.setting->machine, point.model, point.batch, text(point.speedup.with_solver),
               text(point.speedup.alone), text(point.speedup.with_search), point.text);
  }
  fmt::print(
      "\nThe solver ({}) took {:.1f} ms at most, a whole search {:.2f} s; both are times of this "
      "run.\n",
      planner::HybridSolver(), 1e3 * longest.solver, longest.search);
}

// What stands beside a published number: over batches the greatest, of each of the speed-ups.
double PredictedOf(const std::vector<Point>& points, const Published& published,
                   double Speedup::*which) {
  double over_models = 0;
  for (const char* model : kModelsOfHap) {
    if (*published.model != '\0' && std::string(published.model) != model) continue;
    double most = 0;
    for (const Point& point : points) {
      const bool is_machine =
          *published.machine == '\0' || std::string(published.machine) == point.setting->machine;
      if (std::string(published.figure) != point.setting->figure || !is_machine ||
          std::string(model) != point.model) {
        continue;
      }
      most = std::max(most, point.speedup.*which);
    }
    const bool is_least = published.over_models == OverModels::kLeast;
    over_models = is_least && over_models > 0 ? std::min(over_models, most)
                  : is_least                  ? most
                                              : std::max(over_models, most);
  }
  return over_models;
}

void PrintPublished(const std::vector<Point>& points) {
  fmt::print(
      "\n## Published and predicted: the greatest speed-up over batches of 1, 2, 4, 8, 16 and "
      "32\n\n"
      "| figure | machine | model | published | predicted, with the solver's time | error of the "
      "gain | without it | with the whole search |\n|---|---|---|---:|---:|---:|---:|---:|\n");
  struct Score {
    const char* what;
    double Speedup::*which;
    std::vector<double> predicted = {};
    std::vector<double> errors = {};
  };
  Score scores[] = {{"with the solver's time, as the paper counts it", &Speedup::with_solver},
                    {"without it", &Speedup::alone},
                    {"with the whole search", &Speedup::with_search}};
  std::vector<double> published;
  for (const Published& point : kPublished) {
    published.push_back(point.most);
    for (Score& score : scores) {
      score.predicted.push_back(PredictedOf(points, point, score.which));
      score.errors.push_back(ErrorOfGain(score.predicted.back(), point.most));
    }
    const char* models = point.over_models == OverModels::kLeast ? "all, the least" : "all";
    fmt::print("| {} | {} | {} | {:.3f} | {:.3f} | {:.0f} % | {:.3f} | {:.3f} |\n", point.figure,
               *point.machine != '\0' ? point.machine : "either",
               *point.model != '\0' ? point.model : models, point.most, scores[0].predicted.back(),
               100 * scores[0].errors.back(), scores[1].predicted.back(),
               scores[2].predicted.back());
  }
  for (const Score& score : scores) {
    fmt::print("\nMedian error of the gain, {}: {:.0f} %; rank correlation: {:.2f}; {} values\n",
               score.what, 100 * Median(score.errors), RankCorrelation(score.predicted, published),
               published.size());
  }
}

// Whether slow links gain more than fast ones, in the text and as predicted.
void PrintLinks(const std::vector<Point>& points) {
  fmt::print(
      "\n## PCI Express beside NVLink: greatest speed-ups, published / predicted\n\n"
      "| figure | model | PCI Express | NVLink | greater, published | greater, predicted |\n"
      "|---|---|---:|---:|---|---|\n");
  struct Link {
    const char* slow_machine;
    const char* fast_machine;
    const char* slow_figure;  // empty: any that both machines are in
    const char* fast_figure;
  };
  constexpr Link kLinks[] = {{"4 x A6000", "4 x A100", "", ""},
                             {"8 x V100", "8 x A100", "Fig. 8b", "Fig. 8a"}};
  const auto greater = [](double slow, double fast) {
    return slow == fast ? "neither" : slow > fast ? "PCI Express" : "NVLink";
  };
  for (const Link& link : kLinks) {
    for (const Published& slow : kPublished) {
      if (std::string(slow.machine) != link.slow_machine) continue;
      for (const Published& fast : kPublished) {
        const bool is_same = *link.slow_figure == '\0'
                                 ? std::string(slow.figure) == fast.figure
                                 : std::string(fast.figure) == link.fast_figure;
        if (std::string(fast.machine) != link.fast_machine || !is_same ||
            std::string(fast.model) != slow.model || slow.over_models != fast.over_models) {
          continue;
        }
        const double on_slow = PredictedOf(points, slow, &Speedup::with_solver);
        const double on_fast = PredictedOf(points, fast, &Speedup::with_solver);
        fmt::print("| {} | {} | {:.3f} / {:.3f} | {:.3f} / {:.3f} | {} | {} |\n", slow.figure,
                   *slow.model != '\0' ? slow.model : "all", slow.most, on_slow, fast.most, on_fast,
                   greater(slow.most, fast.most), greater(on_slow, on_fast));
      }
    }
  }
}

// How far readings are from what is published that leave out some of what is known.
void PrintReadings() {
  struct Variant {
    std::string what;
    ReadingOfHap reading;
  };
  constexpr ReadingOfHap kNothing = {false, false, false, false, false, false, false, true};
  struct Part {
    const char* what;
    bool ReadingOfHap::*which;
  };
  constexpr Part kParts[] = {
      {"head and shared experts divided", &ReadingOfHap::divides_rest},
      {"the engine's exchanges", &ReadingOfHap::has_engines_exchanges},
      {"nothing computed beside an exchange", &ReadingOfHap::has_sums},
      {"experts always grouped, by CUTLASS", &ReadingOfHap::has_cutlass},
      {"steps of 768 tokens for each replica of attention", &ReadingOfHap::has_own_steps},
      {"8 V100 on two switches", &ReadingOfHap::has_switches},
      {"Mixtral's experts as often as counted", &ReadingOfHap::has_counted_shares}};
  std::vector<Variant> variants = {{"all, as above", {}}, {"none", kNothing}};
  for (const Part& part : kParts) {
    variants.push_back({fmt::format("{}, alone", part.what), kNothing});
    variants.back().reading.*part.which = true;
  }
  for (const Part& part : kParts) {
    variants.push_back({fmt::format("all but: {}", part.what), {}});
    variants.back().reading.*part.which = false;
  }
  variants.push_back({"all, with all prompts in one step", {}});
  variants.back().reading.has_steps = false;
  fmt::print(
      "\n## What each part of the reading does, without the solver's time\n\n| figure | machine | "
      "model | published |");
  for (size_t i = 0; i < variants.size(); ++i) fmt::print(" {} |", i);
  fmt::print("\n|---|---|---|---:|");
  for (size_t i = 0; i < variants.size(); ++i) fmt::print("---:|");
  std::vector<std::vector<double>> predicted;  // by variant
  std::vector<double> published;
  for (const Published& point : kPublished) published.push_back(point.most);
  for (const Variant& variant : variants) {
    Waiting longest;
    const std::vector<Point> points = SearchPoints(variant.reading, longest);
    std::vector<double>& of = predicted.emplace_back();
    for (const Published& point : kPublished) {
      of.push_back(PredictedOf(points, point, &Speedup::alone));
    }
  }
  for (size_t i = 0; i < std::size(kPublished); ++i) {
    const Published& point = kPublished[i];
    const char* models = point.over_models == OverModels::kLeast ? "all, the least" : "all";
    fmt::print("\n| {} | {} | {} | {:.3f} |", point.figure,
               *point.machine != '\0' ? point.machine : "either",
               *point.model != '\0' ? point.model : models, point.most);
    for (const std::vector<double>& of : predicted) fmt::print(" {:.3f} |", of[i]);
  }
  fmt::print(
      "\n\n| | reading | median error of the gain | rank correlation |\n|---:|---|---:|---:|\n");
  for (size_t v = 0; v < variants.size(); ++v) {
    std::vector<double> errors;
    for (size_t i = 0; i < published.size(); ++i) {
      errors.push_back(ErrorOfGain(predicted[v][i], published[i]));
    }
    fmt::print("| {} | {} | {:.0f} % | {:.2f} |\n", v, variants[v].what, 100 * Median(errors),
               RankCorrelation(predicted[v], published));
  }
}

// What the greatest batch decides, which the text does not name.
void PrintBatches(const std::vector<Point>& points) {
  fmt::print(
      "\n## By the greatest batch\n\n| batches up to | median error of the gain | rank correlation "
      "|\n|---:|---:|---:|\n");
  for (const int most : kBatchesOfHap) {
    std::vector<Point> some;
    std::ranges::copy_if(points, std::back_inserter(some),
                         [&](const Point& point) { return point.batch <= most; });
    std::vector<double> predicted;
    std::vector<double> published;
    std::vector<double> errors;
    for (const Published& point : kPublished) {
      published.push_back(point.most);
      predicted.push_back(PredictedOf(some, point, &Speedup::with_solver));
      errors.push_back(ErrorOfGain(predicted.back(), point.most));
    }
    fmt::print("| {} | {:.0f} % | {:.2f} |\n", most, 100 * Median(errors),
               RankCorrelation(predicted, published));
  }
}

int RunHap() {
  Waiting longest;
  const std::vector<Point> points = SearchPoints(/*reading=*/{}, longest);
  PrintPublished(points);
  PrintBatches(points);
  PrintReadings();
  PrintLinks(points);
  PrintPhasesOfHap();
  PrintPoints(points, longest);
  return 0;
}

}  // namespace
}  // namespace convene::papers

int main(int argc, char** argv) {
  using namespace convene::papers;
  const std::optional<int> status = Begin(kHap, argc, argv);
  return status ? *status : RunHap();
}
