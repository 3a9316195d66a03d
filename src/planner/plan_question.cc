#include "planner/plan_question.h"

namespace convene::planner {

PlanQuestion WithWorkload(const PlanQuestion& question, const Workload& workload) {
  return {.spec = question.spec,
          .workload = workload,
          .source = question.source,
          .num_ranks = question.num_ranks,
          .step_tokens = question.step_tokens,
          .formats = question.formats,
          .expand_from_tokens = question.expand_from_tokens,
          .one_host = question.one_host,
          .allowed = question.allowed,
          .constraints = question.constraints,
          .present = question.present,
          .memory_of = question.memory_of,
          .experts_that_fit = question.experts_that_fit,
          .spilled_that_fit = question.spilled_that_fit,
          .memory_per_rank = question.memory_per_rank,
          .rank_memory = question.rank_memory,
          .bytes_of = question.bytes_of,
          .clock = question.clock,
          .passes_off = question.passes_off};
}

}  // namespace convene::planner
