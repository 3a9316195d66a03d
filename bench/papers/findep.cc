// Reproduces the tables of FinDEP (disaggregated experts in fine-grained pipelines) in simulation,
// from presets of its testbeds, beside what the paper publishes. Nothing is fitted to its
// speed-ups; what the paper does not say is assumed in findep_case.h, and
// docs/results/papers_findep.md says why.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/papers/findep_tables.h"

namespace convene::papers {
namespace {

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

std::string WordsOf(const TableReport& table) {
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
  for (const TableReport& table : as_above) fmt::print(" {} |", WordsOf(table));
  fmt::print("\n");
  for (const Other& other : others) {
    fmt::print("| {} |", other.name);
    for (const int number : kTables) {
      const bool depends =
          std::find(other.tables.begin(), other.tables.end(), number) != other.tables.end();
      fmt::print(" {} |", depends ? WordsOf(TableOf(number, other.assumptions, nullptr)) : "");
    }
    fmt::print("\n");
  }
}

}  // namespace
}  // namespace convene::papers

int main() {
  using namespace convene::papers;
  SolverReport solver;
  std::vector<TableReport> tables;
  for (const int number : kTables) {
    tables.push_back(TableOf(number, {}, &solver));
    fmt::print("\n{}", tables.back().text);
  }
  fmt::print("\n{}\n", solver.Words());
  PrintOthers(tables);
}
