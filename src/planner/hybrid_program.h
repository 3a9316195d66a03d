// The choice of hybrid parallelism as an integer program (HAP, section III-C; systems: hybrid
// adaptive parallelism): one strategy for attention, one for the experts in prefill and one for
// them in decode, by tables of what they cost. Where the tables come from is hybrid_costs.h; who
// solves the program is cbc/, or without it without_cbc/.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace convene::planner {

// Indices of strategies: of attention, of the experts in prefill, of the experts in decode.
struct HybridTriple {
  int attention = 0;
  int prefill = 0;
  int decode = 0;

  bool operator==(const HybridTriple&) const = default;
};

// By [attention][prefill][decode].
using TripleTable = std::vector<std::vector<std::vector<double>>>;

// What a rank has to hold at some time, by strategy: attention + prefill + decode <= capacity, and
// what is no sum of these besides.
struct MemoryRow {
  std::string name;  // "prefill"
  std::vector<double> attention = {};
  std::vector<double> prefill = {};
  std::vector<double> decode = {};
  double capacity = 0;
  TripleTable together = {};  // none: nothing

  double BytesOf(const HybridTriple& triple) const {
    const auto& [a, p, d] = triple;
    return attention[a] + prefill[p] + decode[d] + (together.empty() ? 0 : together[a][p][d]);
  }
};

// Of a phase, in seconds of a layer: attention by a, experts by e, and what is between both (the
// exchanges) by [a][e].
struct PhaseCosts {
  std::vector<double> attention;
  std::vector<double> experts;
  std::vector<std::vector<double>> between;

  double LayerSeconds(int a, int e) const { return attention[a] + experts[e] + between[a][e]; }
};

// Minimise layers (Ca_pre a + Ce_pre p + a' M_pre p) + steps layers (Ca_dec a + Ce_dec d + a' M_dec
// d) + X[a][p][d] over one-hot a, p and d, subject to the memory rows.
struct HybridProgram {
  double num_layers = 1;
  double prefill_steps = 1;
  double decode_steps = 1;  // generated tokens
  PhaseCosts prefill;
  PhaseCosts decode;
  // Seconds once. Infinite: not possible.
  TripleTable transition;
  std::vector<MemoryRow> memory = {};

  int num_attention() const { return static_cast<int>(prefill.attention.size()); }
  int num_experts() const { return static_cast<int>(prefill.experts.size()); }
};

// Errors: tables whose sizes do not belong together, numbers that are not finite or below 0, where
// they may not be (what is between attention and experts may be, where both overlap).
Status CheckProgram(const HybridProgram& program);

// What a triple costs, memory apart. Precondition, as of what follows: CheckProgram.
double SecondsOf(const HybridProgram& program, const HybridTriple& triple);

// Null: the triple meets all rows.
const MemoryRow* RowExceeded(const HybridProgram& program, const HybridTriple& triple);

// Not possible, or beyond memory.
bool IsFeasible(const HybridProgram& program, const HybridTriple& triple);

// The first of the best by trying all. Nothing: none is feasible.
std::optional<HybridTriple> SolveByEnumeration(const HybridProgram& program);

}  // namespace convene::planner
