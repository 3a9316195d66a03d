#include "planner/hybrid_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace convene::planner {
namespace {

bool AreCosts(const std::vector<double>& values, size_t size) {
  return values.size() == size && std::all_of(values.begin(), values.end(), [](double value) {
           return std::isfinite(value) && value >= 0;
         });
}

bool IsOfTriples(const TripleTable& table, size_t num_attention, size_t num_experts) {
  bool fits = table.size() == num_attention;
  for (const auto& of_attention : table) {
    fits = fits && of_attention.size() == num_experts;
    for (const auto& of_prefill : of_attention) {
      fits = fits && of_prefill.size() == num_experts &&
             std::all_of(of_prefill.begin(), of_prefill.end(),
                         [](double value) { return value >= 0; });  // false of NaN
    }
  }
  return fits;
}

Status CheckPhase(const PhaseCosts& costs, size_t num_attention, size_t num_experts,
                  const char* phase) {
  bool fits = AreCosts(costs.attention, num_attention) && AreCosts(costs.experts, num_experts) &&
              costs.between.size() == num_attention;
  for (const std::vector<double>& row : costs.between) {
    fits = fits && row.size() == num_experts &&
           std::all_of(row.begin(), row.end(), [](double value) { return std::isfinite(value); });
  }
  if (fits) return {};
  return Error{fmt::format("the costs of {} are not {} of attention, {} of experts and all pairs",
                           phase, num_attention, num_experts)};
}

}  // namespace

Status CheckProgram(const HybridProgram& program) {
  const size_t num_attention = program.prefill.attention.size();
  const size_t num_experts = program.prefill.experts.size();
  for (const auto& [costs, phase] :
       {std::pair(&program.prefill, "prefill"), std::pair(&program.decode, "decode")}) {
    if (const Status fits = CheckPhase(*costs, num_attention, num_experts, phase); !fits) {
      return fits;
    }
  }
  if (!IsOfTriples(program.transition, num_attention, num_experts))
    return Error{"the costs of transitions are not of all triples, or below 0"};
  for (const MemoryRow& row : program.memory) {
    if (AreCosts(row.attention, num_attention) && AreCosts(row.prefill, num_experts) &&
        AreCosts(row.decode, num_experts) && row.capacity > 0 &&
        (row.together.empty() || IsOfTriples(row.together, num_attention, num_experts))) {
      continue;
    }
    return Error{fmt::format("the memory row {} is not of all strategies", row.name)};
  }
  return {};
}

double SecondsOf(const HybridProgram& program, const HybridTriple& triple) {
  const auto& [a, p, d] = triple;
  return program.num_layers * (program.prefill_steps * program.prefill.LayerSeconds(a, p) +
                               program.decode_steps * program.decode.LayerSeconds(a, d)) +
         program.transition[a][p][d];
}

const MemoryRow* RowExceeded(const HybridProgram& program, const HybridTriple& triple) {
  const auto found =
      std::find_if(program.memory.begin(), program.memory.end(),
                   [&](const MemoryRow& row) { return row.BytesOf(triple) > row.capacity; });
  return found == program.memory.end() ? nullptr : &*found;
}

bool IsFeasible(const HybridProgram& program, const HybridTriple& triple) {
  return std::isfinite(program.transition[triple.attention][triple.prefill][triple.decode]) &&
         RowExceeded(program, triple) == nullptr;
}

std::optional<HybridTriple> SolveByEnumeration(const HybridProgram& program) {
  std::optional<HybridTriple> best;
  for (int a = 0; a < program.num_attention(); ++a) {
    for (int p = 0; p < program.num_experts(); ++p) {
      for (int d = 0; d < program.num_experts(); ++d) {
        const HybridTriple triple = {a, p, d};
        if (!IsFeasible(program, triple)) continue;
        if (!best || SecondsOf(program, triple) < SecondsOf(program, *best)) best = triple;
      }
    }
  }
  return best;
}

}  // namespace convene::planner
