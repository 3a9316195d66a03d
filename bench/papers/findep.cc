// Reproduces the tables of FinDEP (disaggregated experts in fine-grained pipelines) in simulation,
// from presets of its testbeds, beside what the paper publishes. Nothing is fitted to these tables:
// prices are those of cost/presets.h. What the paper's text has lost is assumed, here, before
// anything is computed; docs/results/papers_findep.md says why.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bench/papers/findep_published.h"
#include "bench/papers/paper_models.h"
#include "planner/disaggregated_lines.h"
#include "planner/disaggregated_solver.h"
#include "planner/operator_pricer.h"
#include "planner/whole_step.h"
#include "schedule/activity_graph.h"
#include "simulate/simulate.h"

namespace convene::papers {
namespace {

using planner::DisaggregatedChoice;
using planner::DisaggregatedPipeline;
using planner::DisaggregatedQuestion;

constexpr char kTestbeds[] = {'A', 'B', 'C', 'D'};

// --- Assumed.

struct Groups {
  int attention = 0;
  int experts = 0;
};
Groups GroupsOf(char testbed, const std::string& model) {
  if (testbed == 'D') return {8, 24};
  return model == "DeepSeek-V2" ? Groups{3, 5} : Groups{4, 4};
}
// Tokens that an attention rank has room for at once: the longest sequence that is measured.
constexpr int kRankTokens = 8192;
// Of sequences of Table 6, on each attention rank.
constexpr int kArrived = 4;

// --- Given (section 5.4).

int LayersOf(char testbed, const std::string& model) {
  const bool is_deepseek = model == "DeepSeek-V2";
  if (testbed == 'A') return is_deepseek ? 8 : 24;
  if (testbed == 'B') return is_deepseek ? 4 : 12;
  return is_deepseek ? 16 : 48;
}

// The first layers of a model.
model::ModelSpec Smaller(const std::string& name, int num_layers) {
  model::ModelSpec spec = Model(name);
  spec.layers.resize(static_cast<size_t>(num_layers));
  spec.tensors.clear();
  return spec;
}

// As the paper has it (section 3.1): a row travels once for each of its experts and returns as
// often, so that a chunk's bytes are m_e for each expert of a rank (Eq. 4), and experts are computed
// one after the other, three products each (Eq. 3). convene itself sends a row once to each rank,
// returns sums, and computes experts in whichever order is faster.
class PaperPricer : public planner::StepPricer {
 public:
  PaperPricer(char testbed, int attention_ranks)
      : pricer_(Machine(fmt::format("findep-{}", static_cast<char>(testbed - 'A' + 'a'))),
                {.order = cost::ExpertsOrder::kDense}),
        attention_ranks_(attention_ranks) {}

  Result<planner::SchedulePrices> Price(const model::ModelSpec& spec,
                                        const schedule::Schedule& schedule,
                                        const schedule::ActivityGraph& graph,
                                        const cost::Sizes& sizes) const override {
    return pricer_.Price(spec, schedule, graph, [&](schedule::Size size) {
      const bool is_sent = size.kind == schedule::SizeKind::kSent;
      if (!is_sent && size.kind != schedule::SizeKind::kReturned) return sizes(size);
      // All attention ranks are alike.
      if (is_sent) size.from = size.to;
      size.to = -1;
      size.kind = schedule::SizeKind::kSlots;
      return sizes(size) / attention_ranks_;
    });
  }
  cost::StepErrors Errors() const override { return pricer_.Errors(); }

 private:
  planner::OperatorPricer pricer_;
  int attention_ranks_;
};

// One model on one testbed.
class Case {
 public:
  Case(char testbed, const std::string& name, model::ModelSpec spec)
      : groups_(GroupsOf(testbed, name)),
        spec_(std::move(spec)),
        pricer_(testbed, groups_.attention),
        short_{planner::Shorten(spec_, {}, /*is_overlapping=*/true)} {}

  const Groups& groups() const { return groups_; }

  // With lines for up to so many sequences of each attention rank.
  DisaggregatedQuestion Ask(int length, int max_sequences) const {
    const planner::LinesQuestion question{.spec = spec_,
                                          .roles = strategy::Roles::Disaggregated(
                                              groups_.attention, groups_.experts),
                                          .sequences = Sequences(length, max_sequences)};
    const auto fitted = planner::FitDisaggregatedLines(question, pricer_);
    CHECK(fitted.ok(), "{}", fitted.error().message);
    least_r2_ = std::min(least_r2_, fitted->least_r2);
    return {.lines = fitted->lines,
            .attention_ranks = groups_.attention,
            .max_sequences = max_sequences,
            .rows_per_sequence = static_cast<double>(length),
            .most_chunks = 64};
  }

  struct Simulated {
    double seconds = 0;
    double exposed = 0;
  };
  // A step of the whole model with so many sequences of each attention rank.
  Simulated Simulate(const DisaggregatedPipeline& pipeline, int length, int sequences) const {
    planner::PredictedStep step;
    const strategy::StepOptions options{
        .roles = strategy::Roles::Disaggregated(groups_.attention, groups_.experts),
        .pipeline = {.chunks = pipeline.chunks, .micro_batches = pipeline.micro_batches},
        .prunes_last_layer = false};
    step.schedule = strategy::BuildDisaggregatedExperts(
        short_.spec, {.attention_ranks = groups_.attention,
                      .expert_ranks = groups_.experts,
                      .micro_batches = pipeline.micro_batches,
                      .chunks = pipeline.chunks,
                      .order = pipeline.order,
                      .dispatch_after_shared = pipeline.dispatch_after_shared});
    const cost::ExpectedSizes expected =
        planner::ExpectSizes({.spec = short_.spec,
                              .options = options,
                              .groups = std::vector(static_cast<size_t>(groups_.attention),
                                                    Sequences(length, sequences))});
    const schedule::ActivityGraph graph = schedule::BuildActivityGraph(step.schedule);
    const auto priced = pricer_.Price(short_.spec, step.schedule, graph,
                                      [&](const auto& size) { return expected.at(size); });
    CHECK(priced.ok(), "{}", priced.error().message);
    step.timeline = simulate::Simulate(step.schedule, graph, priced->prices);
    step.seconds = step.timeline.seconds();
    Simulated simulated{.seconds = planner::ExtendStep(short_, step).seconds};
    // The share of the simulated layers stands for all.
    simulated.exposed = ExposedSeconds(step) * simulated.seconds / step.seconds;
    return simulated;
  }

  double Throughput(const DisaggregatedPipeline& pipeline, int length, int sequences) const {
    return 1e-3 * length * sequences * groups_.attention /
           Simulate(pipeline, length, sequences).seconds;
  }

  // Simulated, not by lines: PPPipe is configured as well as it can be.
  std::pair<DisaggregatedPipeline, int> BestPingPong(int length, int max_sequences) const {
    std::pair<DisaggregatedPipeline, int> best;
    double most = 0;
    for (int r1 = 1; r1 <= max_sequences; ++r1) {
      const int sequences = max_sequences / r1 * r1;
      const DisaggregatedPipeline pipeline{.micro_batches = r1, .dispatch_after_shared = true};
      const double there = Throughput(pipeline, length, sequences);
      if (there <= most) continue;
      most = there;
      best = {pipeline, sequences};
    }
    return best;
  }

  double least_r2() const { return least_r2_; }

 private:
  static std::vector<strategy::SequenceRows> Sequences(int length, int count) {
    return std::vector(
        static_cast<size_t>(count),
        strategy::SequenceRows{.num_tokens = length, .is_expanded = true, .prompt_length = length});
  }

  // Seconds in which no rank computes.
  static double ExposedSeconds(const planner::PredictedStep& step) {
    std::vector<std::pair<double, double>> spans;
    for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
      if (IsCommunication(step.schedule.tasks[id].kind)) continue;
      spans.emplace_back(step.timeline.tasks[id].start, step.timeline.tasks[id].end);
    }
    std::sort(spans.begin(), spans.end());
    double busy = 0;
    double until = 0;
    for (const auto& [start, end] : spans) {
      busy += std::max(0.0, end - std::max(until, start));
      until = std::max(until, end);
    }
    return step.seconds - busy;
  }

  Groups groups_;
  model::ModelSpec spec_;
  PaperPricer pricer_;
  planner::ShortModel short_;
  mutable double least_r2_ = 1;
};

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
  void Print(const std::string& what) const {
    fmt::print("\nMedian error of {}: {:.0f} %; rank correlation: {:.2f}; {} values.\n", what,
               100 * Median(errors), RankCorrelation(predicted, published), errors.size());
  }
};

// How long the solver took, and how far from brute force it was, over all that it was asked.
struct SolverReport {
  double longest_ms = 0;
  double worst_gap = 0;
  int num_solved = 0;

  DisaggregatedChoice Solve(const DisaggregatedQuestion& question) {
    const auto start = std::chrono::steady_clock::now();
    const DisaggregatedChoice choice = planner::SolveDisaggregated(question);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    longest_ms = std::max(longest_ms, took.count());
    const double best = planner::SolveByBruteForce(question).rows_per_second;
    worst_gap = std::max(worst_gap, best / choice.rows_per_second - 1);
    ++num_solved;
    return choice;
  }
};
SolverReport& Solver() {
  static SolverReport report;
  return report;
}

// What is counted of a step that was cut into m_a and r1: all orders and chunks by lines, the best
// of these simulated.
double BestThroughput(const Case& on, int length, int sequences, int micro_batches) {
  DisaggregatedQuestion question = on.Ask(length, sequences * micro_batches);
  const double rows = static_cast<double>(sequences) * length;
  DisaggregatedPipeline best;
  double least = 0;
  for (const auto order : {strategy::AttentionOrder::kAsas, strategy::AttentionOrder::kAass}) {
    DisaggregatedPipeline pipeline{.micro_batches = micro_batches, .order = order};
    pipeline.chunks = planner::BestChunks(question.lines, pipeline, rows, question.most_chunks);
    const double seconds = planner::RunLanes(question.lines, pipeline, rows).seconds;
    if (least > 0 && seconds >= least) continue;
    least = seconds;
    best = pipeline;
  }
  return on.Throughput(best, length, sequences * micro_batches);
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
      const Case on(row.testbed, "DeepSeek-V2", [] {
        model::ModelSpec spec = Smaller("DeepSeek-V2", 3);
        spec.layers.erase(spec.layers.begin());  // the dense one
        return spec;
      }());
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

void TableFive() {
  fmt::print("\n## Table 5: speed-up over PPPipe, published / predicted, and what was chosen\n\n");
  fmt::print("| model | length | A | B | C | D |\n|---|---:|---:|---:|---:|---:|\n");
  std::map<std::string, Scored> by;
  std::string chosen;
  double least_r2 = 1;
  for (const ComparedRow& row : OfflineRows()) {
    fmt::print("| {} | {} |", row.model, row.tokens);
    for (int i = 0; i < 4; ++i) {
      const Case on(kTestbeds[i], row.model, Smaller(row.model, LayersOf(kTestbeds[i], row.model)));
      const int most = std::max(1, kRankTokens / row.tokens);
      const DisaggregatedChoice fine = Solver().Solve(on.Ask(row.tokens, most));
      const auto [ping_pong, sequences] = on.BestPingPong(row.tokens, most);
      const double slow = on.Throughput(ping_pong, row.tokens, sequences);
      const int of_fine = static_cast<int>(fine.sequences) * fine.pipeline.micro_batches;
      const double fast = on.Throughput(fine.pipeline, row.tokens, of_fine);
      const double published = row.fine[i] / row.ping_pong[i];
      fmt::print(" {} |", by["all"].Add(published, fast / slow));
      by[row.model].Add(published, fast / slow);
      by["throughput"].Add(row.fine[i], fast);
      if (row.model != "DeepSeek-V2" && i < 3) by["Qwen on A to C"].Add(published, fast / slow);
      chosen += fmt::format(
          "| {} | {} | {} | {:.1f} / {:.1f} | {:.1f} / {:.1f} | {} of {} | {} of {} |\n", row.model,
          row.tokens, kTestbeds[i], row.ping_pong[i], slow, row.fine[i], fast,
          planner::Words(ping_pong), sequences, planner::Words(fine.pipeline), of_fine);
      least_r2 = std::min(least_r2, on.least_r2());
    }
    fmt::print("\n");
  }
  for (const char* key : {"all", "DeepSeek-V2", "Qwen3-235B-A22B", "Qwen on A to C"}) {
    by[key].Print(fmt::format("the gains ({})", key));
  }
  fmt::print("Rank correlation of FinDEP's throughputs: {:.2f}. The worst R2 of a line: {:.4f}.\n",
             RankCorrelation(by["throughput"].predicted, by["throughput"].published), least_r2);
  fmt::print(
      "\n| model | length | testbed | PPPipe, thousand tokens/s | FinDEP | PPPipe's choice | "
      "FinDEP's "
      "choice |\n|---|---:|---|---:|---:|---|---|\n{}",
      chosen);
}

void TableSix() {
  fmt::print(
      "\n## Table 6: speed-up over PPPipe as it is best with sequences of 2,048, published / "
      "predicted\n\n| model | tokens | A | B | C | D |\n|---|---:|---:|---:|---:|---:|\n");
  constexpr int kTunedAt = 2048;
  Scored scored;
  for (const ComparedRow& row : OnlineRows()) {
    fmt::print("| {} | {} |", row.model, row.tokens);
    for (int i = 0; i < 4; ++i) {
      const Case on(kTestbeds[i], row.model, Smaller(row.model, LayersOf(kTestbeds[i], row.model)));
      const DisaggregatedPipeline held = on.BestPingPong(kTunedAt, kRankTokens / kTunedAt).first;
      const int length = row.tokens / (on.groups().attention * kArrived);
      DisaggregatedQuestion question = on.Ask(length, kArrived);
      question.most_micro_batches = kArrived;
      const DisaggregatedChoice fine = planner::SolveStep(question, 1.0 * length * kArrived);
      const double gain =
          on.Throughput(fine.pipeline, length, kArrived) / on.Throughput(held, length, kArrived);
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
  const Case on('A', "DeepSeek-V2", Smaller("DeepSeek-V2", LayersOf('A', "DeepSeek-V2")));
  for (const ExposedRow& row : ExposedRows()) {
    const int most = kRankTokens / row.length;
    const DisaggregatedQuestion question = on.Ask(row.length, most);
    const DisaggregatedChoice fine = Solver().Solve(question);
    const auto [ping_pong, sequences] = on.BestPingPong(row.length, most);
    const double naive =
        1e3 * on.Simulate({.dispatch_after_shared = true}, row.length, most).exposed;
    const double coarse = 1e3 * on.Simulate(ping_pong, row.length, sequences).exposed;
    const double best =
        1e3 * on.Simulate(fine.pipeline, row.length,
                          static_cast<int>(fine.sequences) * fine.pipeline.micro_batches)
                  .exposed;
    fmt::print("| {} | {:.0f} / {:.0f} | {:.0f} / {:.0f} | {:.0f} / {:.0f} |", row.length,
               row.naive, naive, row.ping_pong, coarse, row.fine, best);
    fmt::print(" {} |", scored.Add(row.naive / row.fine, naive / best));
    fmt::print(" {} |\n", scored.Add(row.ping_pong / row.fine, coarse / best));
  }
  scored.Print("the ratios");
}

}  // namespace
}  // namespace convene::papers

int main() {
  using namespace convene::papers;
  RisingTables();
  TableFive();
  TableSix();
  TableSeven();
  fmt::print(
      "\nThe solver took {:.2f} ms at most in {} searches; brute force found {:.3f} % more at "
      "best.\n",
      Solver().longest_ms, Solver().num_solved, 100 * Solver().worst_gap);
}
