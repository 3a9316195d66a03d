#include "planner/cbc/solve_hybrid.h"

namespace convene::planner {

std::string_view HybridSolver() { return "enumeration (CBC was not there when convene was built)"; }

Result<std::optional<HybridTriple>> SolveHybrid(const HybridProgram& program) {
  if (const Status checked = CheckProgram(program); !checked) return checked.error();
  return SolveByEnumeration(program);
}

}  // namespace convene::planner
