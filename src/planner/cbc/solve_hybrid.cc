#include "planner/cbc/solve_hybrid.h"

#include <coin/Cbc_C_Interface.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

namespace convene::planner {
namespace {

struct Deleter {
  void operator()(Cbc_Model* model) const { Cbc_deleteModel(model); }
};

// The columns of the program: one-hot a, p and d, then the triples, which are their products. Only
// the former have to be whole: with them, each triple is 1 or 0.
class Program {
 public:
  explicit Program(const HybridProgram& program)
      : program_(program),
        num_attention_(program.num_attention()),
        num_experts_(program.num_experts()),
        model_(Cbc_newModel()) {
    Cbc_setParameter(model_.get(), "log", "0");
    Cbc_setParameter(model_.get(), "ratioGap", "0");
    Cbc_setParameter(model_.get(), "allowableGap", "0");
    AddColumns();
    AddOneHots();
    AddProducts();
    AddMemory();
  }

  Result<std::optional<HybridTriple>> Solve() {
    Cbc_solve(model_.get());
    if (Cbc_isProvenInfeasible(model_.get())) return std::optional<HybridTriple>();
    if (!Cbc_isProvenOptimal(model_.get())) {
      return Internal(fmt::format("CBC ended with status {}", Cbc_status(model_.get())));
    }
    const double* values = Cbc_getColSolution(model_.get());
    const auto chosen = [&](int first, int count) {
      return static_cast<int>(std::max_element(values + first, values + first + count) -
                              (values + first));
    };
    return std::optional(HybridTriple{chosen(0, num_attention_), chosen(Prefill(0), num_experts_),
                                      chosen(Decode(0), num_experts_)});
  }

 private:
  int Prefill(int p) const { return num_attention_ + p; }
  int Decode(int d) const { return num_attention_ + num_experts_ + d; }
  int Triple(int a, int p, int d) const {
    return num_attention_ + 2 * num_experts_ + (a * num_experts_ + p) * num_experts_ + d;
  }

  // Seconds of a layer. Pairs that are impossible have none.
  double SlowestPair(const PhaseCosts& costs) const {
    double slowest = 0;
    for (int a = 0; a < num_attention_; ++a) {
      for (int e = 0; e < num_experts_; ++e) {
        const double seconds = costs.LayerSeconds(a, e);
        if (std::isfinite(seconds)) slowest = std::max(slowest, seconds);
      }
    }
    return slowest;
  }

  void AddColumn(double most, double seconds, bool is_whole) {
    Cbc_addCol(model_.get(), std::to_string(num_columns_++).c_str(), 0, most, seconds / scale_,
               is_whole, 0, nullptr, nullptr);
  }

  void AddColumns() {
    const double prefill = program_.num_layers * program_.prefill_steps;
    const double decode = program_.num_layers * program_.decode_steps;
    // The solver's tolerances are absolute: seconds are counted in units of the slowest triple's.
    scale_ = std::max(1e-12, prefill * SlowestPair(program_.prefill) +
                                 decode * SlowestPair(program_.decode)) /
             1e3;
    for (int a = 0; a < num_attention_; ++a) {
      AddColumn(1, prefill * program_.prefill.attention[a] + decode * program_.decode.attention[a],
                true);
    }
    for (int p = 0; p < num_experts_; ++p)
      AddColumn(1, prefill * program_.prefill.experts[p], true);
    for (int d = 0; d < num_experts_; ++d) AddColumn(1, decode * program_.decode.experts[d], true);
    for (int a = 0; a < num_attention_; ++a) {
      for (int p = 0; p < num_experts_; ++p) {
        for (int d = 0; d < num_experts_; ++d) {
          const double transition = program_.transition[a][p][d];
          const bool is_possible = std::isfinite(transition);
          const double between =
              prefill * program_.prefill.between[a][p] + decode * program_.decode.between[a][d];
          AddColumn(is_possible ? 1 : 0, between + (is_possible ? transition : 0), false);
        }
      }
    }
  }

  void AddRow(const std::vector<int>& columns, const std::vector<double>& factors, char sense,
              double right) {
    Cbc_addRow(model_.get(), std::to_string(num_rows_++).c_str(), static_cast<int>(columns.size()),
               columns.data(), factors.data(), sense, right);
  }

  void AddOneHots() {
    for (const auto& [first, count] :
         {std::pair(0, num_attention_), std::pair(Prefill(0), num_experts_),
          std::pair(Decode(0), num_experts_)}) {
      std::vector<int> columns(count);
      for (int i = 0; i < count; ++i) columns[i] = first + i;
      AddRow(columns, std::vector<double>(columns.size(), 1), 'E', 1);
    }
  }

  // The triples of a strategy sum to it: sum over p and d of t[a][p][d] = a, and so on.
  void AddProducts() {
    const auto add = [&](int column, std::vector<int> triples) {
      std::vector<double> factors(triples.size(), 1);
      triples.push_back(column);
      factors.push_back(-1);
      AddRow(triples, factors, 'E', 0);
    };
    for (int a = 0; a < num_attention_; ++a) {
      std::vector<int> triples;
      for (int p = 0; p < num_experts_; ++p) {
        for (int d = 0; d < num_experts_; ++d) triples.push_back(Triple(a, p, d));
      }
      add(a, std::move(triples));
    }
    for (int e = 0; e < num_experts_; ++e) {
      std::vector<int> of_prefill;
      std::vector<int> of_decode;
      for (int a = 0; a < num_attention_; ++a) {
        for (int other = 0; other < num_experts_; ++other) {
          of_prefill.push_back(Triple(a, e, other));
          of_decode.push_back(Triple(a, other, e));
        }
      }
      add(Prefill(e), std::move(of_prefill));
      add(Decode(e), std::move(of_decode));
    }
  }

  void AddTogether(const MemoryRow& row, std::vector<int>& columns,
                   std::vector<double>& factors) const {
    for (int a = 0; a < num_attention_; ++a) {
      for (int p = 0; p < num_experts_; ++p) {
        for (int d = 0; d < num_experts_; ++d) {
          columns.push_back(Triple(a, p, d));
          factors.push_back(row.together[a][p][d] / row.capacity);
        }
      }
    }
  }

  void AddMemory() {
    for (const MemoryRow& row : program_.memory) {
      std::vector<int> columns;
      std::vector<double> factors;
      const auto add = [&](int column, double bytes) {
        columns.push_back(column);
        factors.push_back(bytes / row.capacity);
      };
      for (int a = 0; a < num_attention_; ++a) add(a, row.attention[a]);
      for (int p = 0; p < num_experts_; ++p) add(Prefill(p), row.prefill[p]);
      for (int d = 0; d < num_experts_; ++d) add(Decode(d), row.decode[d]);
      if (!row.together.empty()) AddTogether(row, columns, factors);
      AddRow(columns, factors, 'L', 1);
    }
  }

  const HybridProgram& program_;
  int num_attention_;
  int num_experts_;
  std::unique_ptr<Cbc_Model, Deleter> model_;
  double scale_ = 1;
  int num_columns_ = 0;
  int num_rows_ = 0;
};

}  // namespace

std::string_view HybridSolver() {
  static const std::string name = fmt::format("CBC {}", Cbc_getVersion());
  return name;
}

Result<std::optional<HybridTriple>> SolveHybrid(const HybridProgram& program) {
  if (const Status checked = CheckProgram(program); !checked) return checked.error();
  return Program(program).Solve();
}

}  // namespace convene::planner
