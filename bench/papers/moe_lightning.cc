// Reproduces figures and tables of MoE-Lightning in simulation, beside what the paper publishes,
// under three sets of constants (moe_lightning_case.h). Of A and B no constant was chosen by the
// throughputs that are scored; that of C was, so it is scored without the runs that it was read
// from, too.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/papers/moe_lightning_case.h"
#include "bench/papers/moe_lightning_figures.h"
#include "bench/papers/paper_models.h"
#include "bench/papers/paper_program.h"

namespace convene::papers {
namespace {

constexpr PaperProgram kMoeLightning = {
    .name = "papers_moe_lightning",
    .title = "MoE-Lightning's figures, reproduced in simulation",
    .paper =
        "\"MoE-Lightning: High-Throughput MoE Inference on Memory-constrained GPUs\" (Cao et al., "
        "ASPLOS 2025), Figs. 1, 4, 7, 8, 9, 10 and Tables 4 and 5; values and policies behind the "
        "pictures are from its public code (github.com/caoshiyi/artifacts, branch asplos25).",
    .simulated =
        "generation with Mixtral 8x7B, 8x22B and DBRX whose weights lie in a host's memory, on one "
        "T4 or L4 and on 2 or 4 T4, by the orders of strategy/offload_pipeline.h: CGOPipe for "
        "MoE-Lightning, S4 for FlexGen, S3 for FlexGen(c), layer by layer for DeepSpeed; three "
        "times, with constants A, B and C.",
    .cells =
        "published is what the paper's text, tables and code give, predicted what the simulation "
        "gives; factor is predicted / published. Throughputs are generated tokens by the seconds "
        "of "
        "prefill and decode together.",
    .errors = kErrorOfGain,
    .words =
        "(p): prompts padded to the longest; FlexGen(c): with attention on the host; in, out: "
        "tokens "
        "of a prompt and of an answer; N: sequences of a step, in micro-batches of so many; "
        "resident: the share of the experts' weights that stays on the device; step: one token of "
        "all N sequences.",
    .duration = "under a minute",
    .document = "docs/results/papers_moe_lightning.md"};

// --- Scores.

struct Score {
  std::vector<double> predicted = {};
  std::vector<double> published = {};
  std::vector<double> gain_errors = {};

  void Add(double of_prediction, double of_paper) {
    predicted.push_back(of_prediction);
    published.push_back(of_paper);
    gain_errors.push_back(ErrorOfGain(of_prediction, of_paper));
  }
  double Factor(size_t i) const { return predicted[i] / published[i]; }
};

// Of all runs, and of those from which no constant was read.
struct Scores {
  Score all;
  Score independent;

  void Add(double of_prediction, double of_paper, bool is_calibration) {
    all.Add(of_prediction, of_paper);
    if (!is_calibration) independent.Add(of_prediction, of_paper);
  }
};
constexpr const char* kIndependent = "without the runs on S1 and S2, from which C was read";

// A published run and what is predicted of it.
struct RunOfBoth {
  const PublishedRun* run = nullptr;
  SimulatedRun simulated = {};

  double predicted() const { return simulated.tokens_per_second; }
  double published() const { return run->tokens_per_second; }
};

class Runs {
 public:
  explicit Runs(Constants constants) {
    for (const PublishedRun& run : PublishedRuns()) {
      runs_.push_back({&run, SimulateRun(run, OrderOf(run.system), constants)});
    }
  }

  const std::vector<RunOfBoth>& all() const { return runs_; }

  // Null: there is none.
  const RunOfBoth* Find(const std::string& where, const std::string& setting, int gen_tokens,
                        PaperSystem system) const {
    for (const RunOfBoth& run : runs_) {
      if (where == run.run->where && setting == run.run->setting &&
          gen_tokens == run.run->gen_tokens && system == run.run->system) {
        return &run;
      }
    }
    return nullptr;
  }

 private:
  std::vector<RunOfBoth> runs_;
};

void PrintThroughputs(const Runs& runs) {
  fmt::print(
      "\n| where | setting | system | in | out | N | micro-batch | resident | prefill s | "
      "step s | published tokens/s | predicted | factor |\n");
  fmt::print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
  Scores scores;
  for (const RunOfBoth& both : runs.all()) {
    const PublishedRun& run = *both.run;
    const SimulatedRun& simulated = both.simulated;
    scores.Add(both.predicted(), both.published(), IsCalibrationRun(run));
    fmt::print(
        "| {} | {} | {} | {} | {} | {} | {} | {:.2f} | {:.1f} | {:.2f} | {} | {:.2f} | "
        "{:.2f} |\n",
        run.where, run.setting, NameOf(run.system), run.prompt_tokens, run.gen_tokens,
        simulated.policy.batch, simulated.policy.micro_batch, simulated.policy.weights_resident,
        simulated.prefill, simulated.step, run.tokens_per_second, simulated.tokens_per_second,
        both.predicted() / both.published());
  }
  const auto print = [](const char* which, const Score& score) {
    std::vector<double> factors;
    int within_two = 0;
    for (size_t i = 0; i < score.published.size(); ++i) {
      factors.push_back(score.Factor(i));
      within_two += factors.back() <= 2 && factors.back() >= 0.5;
    }
    fmt::print(
        "\nThroughputs{}: within a factor of 2: {} of {}; median factor {:.2f}; rank correlation "
        "{:.2f}\n",
        which, within_two, factors.size(), Median(factors),
        RankCorrelation(score.predicted, score.published));
  };
  print("", scores.all);
  print(fmt::format(" {}", kIndependent).c_str(), scores.independent);
}

class Gains {
 public:
  Gains() {
    fmt::print("\n| where | speed-up | published | predicted | error of the gain |\n");
    fmt::print("|---|---|---:|---:|---:|\n");
  }

  void Print(const std::string& what, const RunOfBoth& over, const RunOfBoth& under) {
    const double predicted = over.predicted() / under.predicted();
    const double published = over.published() / under.published();
    scores_.Add(predicted, published, IsCalibrationRun(*over.run) || IsCalibrationRun(*under.run));
    const PublishedRun& run = *under.run;
    fmt::print("| {}, {}, {} | {} | {:.2f} | {:.2f} | {:.0f} % |\n", run.where, run.setting,
               run.gen_tokens, what, published, predicted, 100 * scores_.all.gain_errors.back());
  }

  void PrintScores() const {
    const auto print = [](const char* which, const Score& score) {
      fmt::print(
          "\nMedian error of the gain{}: {:.0f} %, the largest {:.0f} %; rank correlation: {:.3f}; "
          "{} speed-ups\n",
          which, 100 * Median(score.gain_errors),
          100 * *std::max_element(score.gain_errors.begin(), score.gain_errors.end()),
          RankCorrelation(score.predicted, score.published), score.published.size());
    };
    print("", scores_.all);
    print(fmt::format(" {}", kIndependent).c_str(), scores_.independent);
  }

 private:
  Scores scores_;
};

// The headline: the most that MoE-Lightning gains over the best baseline on one GPU.
void PrintHeadline(const Runs& runs) {
  double most[2] = {};
  std::string where[2];
  for (const RunOfBoth& lightning : runs.all()) {
    if (lightning.run->system != PaperSystem::kLightning) continue;
    double best[2] = {};  // of the baselines; published, predicted
    for (const PaperSystem system :
         {PaperSystem::kFlexGen, PaperSystem::kFlexGenHost, PaperSystem::kDeepSpeed}) {
      const RunOfBoth* baseline = runs.Find(lightning.run->where, lightning.run->setting,
                                            lightning.run->gen_tokens, system);
      if (baseline == nullptr) continue;
      best[0] = std::max(best[0], baseline->published());
      best[1] = std::max(best[1], baseline->predicted());
    }
    if (best[0] == 0) continue;
    const double gains[] = {lightning.published() / best[0], lightning.predicted() / best[1]};
    for (int i = 0; i < 2; ++i) {
      if (gains[i] <= most[i]) continue;
      most[i] = gains[i];
      where[i] =
          fmt::format("{} with {} generated", lightning.run->setting, lightning.run->gen_tokens);
    }
  }
  fmt::print(
      "\nHeadline, MoE-Lightning over the best baseline on one GPU: published up to {:.1f} ({}), "
      "predicted up to {:.1f} ({}), error of the gain {:.0f} %\n",
      most[0], where[0], most[1], where[1], 100 * ErrorOfGain(most[1], most[0]));
}

void PrintGains(const Runs& runs) {
  Gains gains;
  for (const RunOfBoth& both : runs.all()) {
    const PublishedRun& run = *both.run;
    const auto find = [&](const std::string& setting, PaperSystem system) {
      return runs.Find(run.where, setting, run.gen_tokens, system);
    };
    const RunOfBoth* padded = find(run.setting, PaperSystem::kLightningPadded);
    const bool is_lightning =
        run.system == PaperSystem::kLightning || run.system == PaperSystem::kLightningPadded;
    if (!is_lightning && padded != nullptr) {
      gains.Print("MoE-Lightning(p) / " + NameOf(run.system), *padded, both);
    }
    if (run.system == PaperSystem::kLightning && padded != nullptr) {
      gains.Print("MoE-Lightning / MoE-Lightning(p)", both, *padded);
    }
    const RunOfBoth* flexgen = find(run.setting, PaperSystem::kFlexGen);
    if (run.system == PaperSystem::kLightning && flexgen != nullptr) {
      gains.Print("MoE-Lightning / FlexGen", both, *flexgen);
    }
    const std::string setting = run.setting;
    if (is_lightning && (setting == "S7" || setting == "S9")) {
      const RunOfBoth* smaller = find(setting == "S7" ? "S6" : "S8", run.system);
      gains.Print(NameOf(run.system) + ", 4 GPUs / 2", both, *smaller);
    }
  }
  // Table 5: FlexGen as it is in Fig. 7, and with MoE-Lightning's policies.
  const RunOfBoth& own = *runs.Find("Fig. 7", "S1", 128, PaperSystem::kFlexGen);
  const RunOfBoth& ours = *runs.Find("Table 5, our policy", "S1", 128, PaperSystem::kFlexGen);
  const RunOfBoth& larger = *runs.Find("Table 5, larger N", "S1", 128, PaperSystem::kFlexGen);
  gains.Print("Table 5: FlexGen with MoE-Lightning's policy / with its own", ours, own);
  gains.Print("Table 5: the same with a larger N / with its own", larger, own);
  gains.Print("Table 5: MoE-Lightning(p) / FlexGen, one policy",
              *runs.Find("Fig. 7", "S1", 128, PaperSystem::kLightningPadded), ours);
  gains.PrintScores();
  PrintHeadline(runs);
}

// Table 5: schedules of one policy, and the published ones.
void PrintSchedules(Constants constants) {
  fmt::print("\n| Table 5, S1, 128 generated, N 504, micro-batch 36 | tokens/s | over S4 |\n");
  fmt::print("|---|---:|---:|\n");
  const PublishedRun run = {"Table 5", "S1", PaperSystem::kLightningPadded, 418, 128, 504, 36,
                            -1,        30.12};
  struct Row {
    const char* name;
    OffloadOrder order;
  };
  constexpr Row kRows[] = {{"CGOPipe (published 30.12, 1.79)", OffloadOrder::kCgo},
                           {"S2", OffloadOrder::kS2},
                           {"S3", OffloadOrder::kS3},
                           {"S4 (published 16.816)", OffloadOrder::kS4},
                           {"layer by layer", OffloadOrder::kLayerwise}};
  const double s4 = SimulateRun(run, OffloadOrder::kS4, constants).tokens_per_second;
  for (const Row& row : kRows) {
    const double rate = SimulateRun(run, row.order, constants).tokens_per_second;
    fmt::print("| {} | {:.2f} | {:.2f} |\n", row.name, rate, rate / s4);
  }
}

void PrintConstants(Constants constants) {
  const Runs runs(constants);
  PrintThroughputs(runs);
  PrintGains(runs);
  PrintSchedules(constants);
}

// What the published times of MoE-Lightning's padded runs leave for prompts: of two lengths of
// answers that follow each other, the seconds of a step and of a sequence's prompt that explain
// both. This is what C was read from.
void PrintSecondsOfPrompts() {
  fmt::print(
      "\nWhat C was read from: published seconds of two lengths of answers, as N prompts and as "
      "many steps as tokens after the first; and the rate at which the prompts' products and "
      "scores "
      "are computed in the seconds that are left. C takes 8.1 TFLOP/s on T4 and 30.3 on L4.\n\n"
      "| Fig. 7, MoE-Lightning(p) | out | N | seconds | step s | prompts s | TFLOP/s |\n"
      "|---|---:|---:|---:|---:|---:|---:|\n");
  for (const char* setting : {"S1", "S2"}) {
    const planner::OffloadModel model = planner::OffloadModelOf(Model(SettingOf(setting).model));
    std::vector<const PublishedRun*> lengths;
    for (const PublishedRun& run : PublishedRuns()) {
      if (std::string(run.where) == "Fig. 7" && std::string(run.setting) == setting &&
          run.system == PaperSystem::kLightningPadded) {
        lengths.push_back(&run);
      }
    }
    const auto seconds = [](const PublishedRun& run) {
      return run.batch * double(run.gen_tokens) / run.tokens_per_second;
    };
    for (size_t i = 0; i + 1 < lengths.size(); ++i) {
      const PublishedRun& one = *lengths[i];
      const PublishedRun& next = *lengths[i + 1];
      // seconds(run) = N prompt + (out - 1) step, of both.
      const double step =
          (seconds(next) * one.batch - seconds(one) * next.batch) /
          ((next.gen_tokens - 1.0) * one.batch - (one.gen_tokens - 1.0) * next.batch);
      const double prompts = seconds(one) - (one.gen_tokens - 1) * step;
      const double tokens = double(one.batch) * one.prompt_tokens;
      const double flops = tokens * model.token_flops + model.StreamedFlops(tokens) +
                           one.batch * model.PromptScoreFlops(one.prompt_tokens);
      fmt::print("| {} | {} and {} | {} | {:.0f} | {:.1f} | {:.0f} | {:.1f} |\n", setting,
                 one.gen_tokens, next.gen_tokens, one.batch, seconds(one), step, prompts,
                 1e-12 * flops / prompts);
    }
  }
}

int RunMoeLightning() {
  fmt::print("\n## A: all throughputs and speed-ups, constants of the public code\n");
  PrintConstants(Constants::kPeaks);
  fmt::print("\n## B: with the rates that the authors measured besides\n");
  const Shares shares = MeasuredShares();
  fmt::print(
      "\nOf the constants, Fig. 9 reaches: link {:.2f}, host's memory {:.2f}, device's memory "
      "{:.2f}\n",
      shares.link, shares.host_memory, shares.device_memory);
  PrintConstants(Constants::kProfiled);
  fmt::print("\n## C: calibrated: as B, and prompts without tensor cores\n");
  PrintSecondsOfPrompts();
  PrintConstants(Constants::kScalarPrompts);
  PrintFiguresOfMoeLightning();
  return 0;
}

}  // namespace
}  // namespace convene::papers

int main(int argc, char** argv) {
  using namespace convene::papers;
  const std::optional<int> status = Begin(kMoeLightning, argc, argv);
  return status ? *status : RunMoeLightning();
}
