// Reproduces the tables of FinDEP (disaggregated experts in fine-grained pipelines) in simulation,
// from presets of its testbeds, beside what the paper publishes. Nothing is fitted to its
// speed-ups; what the paper does not say is assumed in findep_case.h, and
// docs/results/papers_findep.md says why.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "bench/papers/findep_tables.h"
#include "bench/papers/paper_program.h"

namespace convene::papers {
namespace {

constexpr PaperProgram kFinDep = {
    .name = "papers_findep",
    .title = "FinDEP's tables, reproduced in simulation",
    .paper =
        "\"Efficient MoE Inference with Fine-Grained Scheduling of Disaggregated Expert "
        "Parallelism\" (Pan et al., arXiv 2512.21487), Tables 3 to 7.",
    .simulated =
        "prefill of the first layers of DeepSeek-V2 and Qwen3-235B-A22B on testbeds A (8 A6000), B "
        "(8 A10), C (8 H20) and D (32 H20), where some ranks have attention and the others the "
        "routed experts; pipelines are proposed by planner/disaggregated_solver.h.",
    .cells =
        "\"a / b\" is published / predicted. Throughputs are thousands of tokens per second of all "
        "ranks; a speed-up is over PPPipe, the baseline, which has micro-batches without chunks.",
    .errors = kErrorOfGain,
    .words =
        "m_a: sequences of a micro-batch on each attention rank; r1: micro-batches; r2: chunks of "
        "the "
        "experts' work within one; ASAS, AASS: attention and shared expert of the micro-batches in "
        "turn, or all attention first; R2: how well lines fit simulated prices (1: exactly).",
    .duration = "some minutes",
    .document = "docs/results/papers_findep.md"};

constexpr int kTables[] = {3, 4, 5, 6, 7};

TableReport TableOf(int number, const Assumptions& assumptions, SolverReport* solver) {
  switch (number) {
    case 5:
      return TableFive(assumptions, solver);
    case 6:
      return TableSix(assumptions);
    case 7:
      return TableSeven(assumptions);
    default:
      return RisingTable(number, assumptions);
  }
}

struct Other {
  std::string name;
  Assumptions assumptions;
  std::vector<int> tables;  // that depend on it
};

std::string WordsOfScores(const TableReport& table) {
  return fmt::format("{:.0f} %, {:.2f}; {:.0f} %, {:.2f}", 100 * table.gains.error(),
                     table.gains.correlation(), 100 * table.throughputs.error_of_values(),
                     table.throughputs.correlation());
}

// Scores alone.
void PrintOthers(const std::vector<TableReport>& as_above) {
  const std::vector<Other> others = {
      {"each GPU of A and B has its own 16 lanes", {.gpus_of_uplink = 0}, {5, 6, 7}},
      {"two of them share 16 lanes", {.gpus_of_uplink = 2}, {5, 6, 7}},
      {"groups of Table 6 in all tables", {.best_groups = false}, {5, 7}},
      {"both: own lanes, groups of Table 6",
       {.best_groups = false, .gpus_of_uplink = 0},
       {5, 6, 7}},
      {"8,192 tokens of each attention rank, on C and D too", {.more_on_hopper = 1}, {5, 6}},
      {"16,384 on all", {.rank_tokens = 16384, .more_on_hopper = 1}, {5, 6, 7}},
      {"rows and products as convene has them", {.as_in_paper = false}, {3, 4, 5, 6, 7}},
      {"products start in 0.043 ms", {.product_start = 0.0426e-3}, {3, 4, 5, 6, 7}},
      {"products start in 0.17 ms", {.product_start = 0.17e-3}, {3, 4, 5, 6, 7}},
      {"layers do not overlap",
       {.layers_overlap = false, .baselines_overlap = false},
       {3, 4, 5, 6, 7}},
      {"they do not, and products start in 0.043 ms",
       {.layers_overlap = false, .baselines_overlap = false, .product_start = 0.0426e-3},
       {3, 4, 5, 6, 7}},
      {"they do in FinDEP alone", {.baselines_overlap = false}, {5, 6, 7}},
      {"the same, own lanes, groups of Table 6",
       {.best_groups = false, .baselines_overlap = false, .gpus_of_uplink = 0},
       {5, 6, 7}},
      {"tokens of Table 6 are those of all attention ranks", {.arrive_on_each = false}, {6}},
      {"2 sequences share the tokens of Table 6", {.arrived = 2}, {6}},
      {"2 sequences of any length in Table 7", {.exposed_sequences = 2}, {7}},
      {"the same, and layers do not overlap",
       {.exposed_sequences = 2, .layers_overlap = false, .baselines_overlap = false},
       {7}},
  };
  fmt::print(
      "\n## The same under other assumptions, not scored\n\nMedian error of the gains and their "
      "rank "
      "correlation; the same of FinDEP's throughputs (of Tables 3 and 4: of all; of Table 7: of "
      "the "
      "times).\n\n| | Table 3 | "
      "Table 4 | Table 5 | Table 6 | Table 7 |\n|---|---:|---:|---:|---:|---:|\n| as above |");
  for (const TableReport& table : as_above) fmt::print(" {} |", WordsOfScores(table));
  fmt::print("\n");
  for (const Other& other : others) {
    fmt::print("| {} |", other.name);
    for (const int number : kTables) {
      const bool depends =
          std::find(other.tables.begin(), other.tables.end(), number) != other.tables.end();
      fmt::print(" {} |",
                 depends ? WordsOfScores(TableOf(number, other.assumptions, nullptr)) : "");
    }
    fmt::print("\n");
  }
}

}  // namespace
}  // namespace convene::papers

int main(int argc, char** argv) {
  using namespace convene::papers;
  if (const std::optional<int> status = Begin(kFinDep, argc, argv)) return *status;
  SolverReport solver;
  std::vector<TableReport> tables;
  for (const int number : kTables) {
    tables.push_back(TableOf(number, {}, &solver));
    fmt::print("\n{}", tables.back().text);
    std::fflush(stdout);
  }
  fmt::print("\n{}\n", solver.Words());
  PrintOthers(tables);
}
