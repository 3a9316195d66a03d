// Solves the integer program of hybrid parallelism: with COIN-OR's CBC here, by trying all triples
// in without_cbc/. It builds no tables.
#pragma once

#include <optional>
#include <string_view>

#include "base/result.h"
#include "planner/hybrid_program.h"

namespace convene::planner {

// "CBC 2.10.8", or what stands in its place.
std::string_view HybridSolver();

// The best triple; nothing: none is feasible. Errors: CheckProgram; the solver found no optimum
// that it could prove.
Result<std::optional<HybridTriple>> SolveHybrid(const HybridProgram& program);

}  // namespace convene::planner
