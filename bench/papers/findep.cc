// Reproduces the tables of FinDEP (disaggregated experts in fine-grained pipelines) in simulation,
// from presets of its testbeds, beside what the paper publishes. Nothing is fitted to its
// speed-ups; what the paper's text has lost is assumed in findep_case.h, and
// docs/results/papers_findep.md says why.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "bench/papers/findep_case.h"
#include "bench/papers/findep_published.h"
#include "bench/papers/paper_models.h"

namespace convene::papers {
namespace {

using planner::DisaggregatedChoice;
using planner::DisaggregatedPipeline;
using planner::DisaggregatedQuestion;

struct Scored {
  std::vector<double> published;
  std::vector<double> predicted;
  std::vector<double> errors;

  std::string Add(double is, double says) {
    published.push_back(is);
    predicted.push_back(says);
    errors.push_back(ErrorOfGain(says, is));
    return fmt::format("{:.2f} / {:.2f}", is, says);
  }
  std::string Words() const {
    return fmt::format("{:.0f} %; rank correlation: {:.2f}; {} values", 100 * Median(errors),
                       RankCorrelation(predicted, published), errors.size());
  }
  void Print(const std::string& what) const {
    fmt::print("\nMedian error of {}: {}.\n", what, Words());
  }
};

// What the solver was asked: how long it took, how far from brute force it was, and how much better
// in simulation another of its proposals was than its first one.
class SolverReport {
 public:
  std::vector<DisaggregatedChoice> Solve(const DisaggregatedQuestion& question) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<DisaggregatedChoice> choices = planner::ProposeDisaggregated(question);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    longest_ms_ = std::max(longest_ms_, took.count());
    const double best = planner::SolveByBruteForce(question).rows_per_second;
    worst_gap_ = std::max(worst_gap_, best / choices.front().rows_per_second - 1);
    return choices;
  }
  void Compare(double first, double best) { regrets_.push_back(best / first - 1); }
  void Print() const {
    fmt::print(
        "\nThe solver took {:.2f} ms at most in {} searches; brute force found {:.3f} % more at "
        "best. In simulation the best of its proposals was faster than its first one by {:.1f} % "
        "in "
        "the median and {:.1f} % at most.\n",
        longest_ms_, regrets_.size(), 100 * worst_gap_, 100 * Median(regrets_),
        100 * *std::max_element(regrets_.begin(), regrets_.end()));
  }

 private:
  double longest_ms_ = 0;
  double worst_gap_ = 0;
  std::vector<double> regrets_;
};

// What is counted of a step that was cut into m_a and r1: all orders and chunks by lines, the best
// of these simulated.
double BestThroughput(const Case& on, int length, int sequences, int micro_batches) {
  const DisaggregatedQuestion question = on.Ask(length, sequences * micro_batches);
  const double rows = static_cast<double>(sequences) * length;
  double most = 0;
  for (const auto order : {strategy::AttentionOrder::kAsas, strategy::AttentionOrder::kAass}) {
    DisaggregatedPipeline pipeline{.micro_batches = micro_batches, .order = order};
    pipeline.chunks = planner::BestChunks(question.lines, pipeline, rows, question.most_chunks);
    most = std::max(most, on.Throughput(pipeline, length, sequences * micro_batches));
  }
  return most;
}

void RisingTables() {
  constexpr int kCounts[] = {1, 2, 4};
  for (const bool by_sequences : {true, false}) {
    fmt::print("\n## Table {}: throughput over that with {} = 1, published / predicted\n\n",
               by_sequences ? 3 : 4, by_sequences ? "m_a" : "r1");
    fmt::print("| testbed | length | 1: thousand tokens/s | 2 | 4 |\n|---|---:|---:|---:|---:|\n");
    Scored scored;
    Scored absolute;
    for (const RisingRow& row : RisingRows()) {
      const Case on(row.testbed, "DeepSeek-V2", TwoLayers());
      const double* published = by_sequences ? row.of_sequences : row.of_micro_batches;
      fmt::print("| {} | {} |", row.testbed, row.length);
      double first = 0;
      for (int i = 0; i < 3; ++i) {
        const double there = BestThroughput(on, row.length, by_sequences ? kCounts[i] : 1,
                                            by_sequences ? 1 : kCounts[i]);
        absolute.Add(published[i], there);
        if (i == 0) {
          first = there;
          fmt::print(" {:.1f} / {:.1f} |", published[0], there);
          continue;
        }
        fmt::print(" {} |", scored.Add(published[i] / published[0], there / first));
      }
      fmt::print("\n");
    }
    scored.Print("the gains");
    fmt::print("Rank correlation of the throughputs themselves: {:.2f}.\n",
               RankCorrelation(absolute.predicted, absolute.published));
  }
}

// One cell of Table 5.
struct Compared {
  Configured ping_pong = {};
  Configured fine = {};
  double first_throughput = 0;  // of what the solver proposes first
  double least_r2 = 1;
  double gain() const { return fine.throughput / ping_pong.throughput; }
};

Compared Compare(char testbed, const ComparedRow& row, const Assumptions& assumptions,
                 SolverReport& solver) {
  const Case on(testbed, row.model, SmallModel(testbed, row.model), assumptions);
  const int most = std::max(1, assumptions.rank_tokens / row.tokens);
  const std::vector<DisaggregatedChoice> proposals = solver.Solve(on.Ask(row.tokens, most));
  Compared cell{.ping_pong = on.BestPingPong(row.tokens, most),
                .fine = on.BestFine(row.tokens, proposals),
                .first_throughput = on.BestFine(row.tokens, {proposals.front()}).throughput,
                .least_r2 = on.least_r2()};
  solver.Compare(cell.first_throughput, cell.fine.throughput);
  return cell;
}

void TableFive(SolverReport& solver) {
  fmt::print("\n## Table 5: speed-up over PPPipe, published / predicted, and what was chosen\n\n");
  fmt::print("| model | length | A | B | C | D |\n|---|---:|---:|---:|---:|---:|\n");
  std::map<std::string, Scored> by;
  std::string chosen;
  double least_r2 = 1;
  for (const ComparedRow& row : OfflineRows()) {
    fmt::print("| {} | {} |", row.model, row.tokens);
    for (int i = 0; i < 4; ++i) {
      const Compared cell = Compare(kTestbeds[i], row, {}, solver);
      const double published = row.fine[i] / row.ping_pong[i];
      fmt::print(" {} |", by["all"].Add(published, cell.gain()));
      by[row.model].Add(published, cell.gain());
      by["throughput"].Add(row.fine[i], cell.fine.throughput);
      if (row.model != "DeepSeek-V2" && i < 3) by["Qwen on A to C"].Add(published, cell.gain());
      chosen += fmt::format(
          "| {} | {} | {} | {:.1f} / {:.1f} | {:.1f} / {:.1f} | {} of {} | {} of "
          "{} |\n",
          row.model, row.tokens, kTestbeds[i], row.ping_pong[i], cell.ping_pong.throughput,
          row.fine[i], cell.fine.throughput, planner::Words(cell.ping_pong.pipeline),
          cell.ping_pong.sequences, planner::Words(cell.fine.pipeline), cell.fine.sequences);
      least_r2 = std::min(least_r2, cell.least_r2);
    }
    fmt::print("\n");
  }
  for (const char* key : {"all", "DeepSeek-V2", "Qwen3-235B-A22B", "Qwen on A to C"}) {
    by[key].Print(fmt::format("the gains ({})", key));
  }
  fmt::print("Rank correlation of FinDEP's throughputs: {:.2f}. The worst R2 of a line: {:.4f}.\n",
             RankCorrelation(by["throughput"].predicted, by["throughput"].published), least_r2);
  fmt::print(
      "\n| model | length | testbed | PPPipe, thousand tokens/s | FinDEP | PPPipe's choice of "
      "sequences | FinDEP's |\n|---|---:|---|---:|---:|---|---|\n{}",
      chosen);
}

void TableSix() {
  fmt::print(
      "\n## Table 6: speed-up over PPPipe as it is best with sequences of 2,048, published / "
      "predicted\n\n| model | tokens | A | B | C | D |\n|---|---:|---:|---:|---:|---:|\n");
  constexpr int kTunedAt = 2048;
  const Assumptions assumptions;
  const int arrived = assumptions.arrived;
  Scored scored;
  for (const ComparedRow& row : OnlineRows()) {
    fmt::print("| {} | {} |", row.model, row.tokens);
    for (int i = 0; i < 4; ++i) {
      const Case on(kTestbeds[i], row.model, SmallModel(kTestbeds[i], row.model));
      const DisaggregatedPipeline held =
          on.BestPingPong(kTunedAt, assumptions.rank_tokens / kTunedAt).pipeline;
      const int length = row.tokens / (on.groups().attention * arrived);
      const Configured fine =
          on.BestFine(length, planner::ProposeDisaggregated(on.Ask(length, arrived)));
      const double gain = fine.throughput / on.Throughput(held, length, arrived);
      const double published = row.fine[i] / row.ping_pong[i];
      if (IsSlip(row, i)) {
        fmt::print(" (slip) / {:.2f} |", gain);
      } else {
        fmt::print(" {} |", scored.Add(published, gain));
      }
    }
    fmt::print("\n");
  }
  scored.Print("the gains");
}

void TableSeven() {
  fmt::print(
      "\n## Table 7: communication that is not overlapped, testbed A, DeepSeek-V2, published / "
      "predicted\n\n| length | naive ms | PPPipe ms | FinDEP ms | naive / FinDEP | PPPipe / FinDEP "
      "|\n|---:|---:|---:|---:|---:|---:|\n");
  Scored scored;
  Scored absolute;
  const Assumptions assumptions;
  const Case on('A', "DeepSeek-V2", SmallModel('A', "DeepSeek-V2"));
  for (const ExposedRow& row : ExposedRows()) {
    const int most = assumptions.rank_tokens / row.length;
    const auto exposed_ms = [&](const DisaggregatedPipeline& pipeline, int sequences) {
      return 1e3 * on.Simulate(pipeline, row.length, sequences).exposed;
    };
    const Configured coarse = on.BestPingPong(row.length, most);
    const Configured fine =
        on.BestFine(row.length, planner::ProposeDisaggregated(on.Ask(row.length, most)));
    const double of_naive = exposed_ms({.dispatch_after_shared = true}, most);
    const double of_coarse = exposed_ms(coarse.pipeline, coarse.sequences);
    const double of_fine = exposed_ms(fine.pipeline, fine.sequences);
    absolute.Add(row.naive, of_naive);
    absolute.Add(row.ping_pong, of_coarse);
    absolute.Add(row.fine, of_fine);
    fmt::print("| {} | {:.0f} / {:.0f} | {:.0f} / {:.0f} | {:.0f} / {:.0f} |", row.length,
               row.naive, of_naive, row.ping_pong, of_coarse, row.fine, of_fine);
    fmt::print(" {} |", scored.Add(row.naive / row.fine, of_naive / of_fine));
    fmt::print(" {} |\n", scored.Add(row.ping_pong / row.fine, of_coarse / of_fine));
  }
  scored.Print("the ratios");
  fmt::print("Rank correlation of the nine times: {:.2f}.\n",
             RankCorrelation(absolute.predicted, absolute.published));
}

// Table 5 under other assumptions; none of this is scored.
void OtherAssumptions() {
  const std::vector<std::pair<std::string, Assumptions>> others = {
      {"as above", {}},
      {"16,384 tokens of each attention rank", {.rank_tokens = 16384}},
      {"rows and products as convene has them", {.as_in_paper = false}},
      {"half of the rate of PCI Express", {.pcie_share = 0.5}},
      {"a third of the rate of PCI Express", {.pcie_share = 1.0 / 3}},
      {"a third, and 16,384 tokens", {.rank_tokens = 16384, .pcie_share = 1.0 / 3}},
  };
  fmt::print(
      "\n## Table 5 under other assumptions, not scored\n\n| | error of the gains in the median | "
      "rank correlation | the same of FinDEP's throughputs |\n|---|---:|---:|---:|\n");
  for (const auto& [name, assumptions] : others) {
    SolverReport ignored;
    Scored gains;
    Scored throughputs;
    for (const ComparedRow& row : OfflineRows()) {
      for (int i = 0; i < 4; ++i) {
        const Compared cell = Compare(kTestbeds[i], row, assumptions, ignored);
        gains.Add(row.fine[i] / row.ping_pong[i], cell.gain());
        throughputs.Add(row.fine[i], cell.fine.throughput);
      }
    }
    fmt::print("| {} | {:.0f} % | {:.2f} | {:.2f} |\n", name, 100 * Median(gains.errors),
               RankCorrelation(gains.predicted, gains.published),
               RankCorrelation(throughputs.predicted, throughputs.published));
  }
}

}  // namespace
}  // namespace convene::papers

int main() {
  using namespace convene::papers;
  SolverReport solver;
  RisingTables();
  TableFive(solver);
  TableSix();
  TableSeven();
  solver.Print();
  OtherAssumptions();
}
