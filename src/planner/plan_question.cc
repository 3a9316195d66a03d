#include "planner/plan_question.h"

namespace convene::planner {

int FewestTogether(const Workload& workload) {
  const bool is_found = workload.objective == Objective::kGoodput || workload.arrival_rate > 0;
  return is_found ? 1 : workload.batch;
}

double WeightBytesOf(const PlanQuestion& question, const RankSetup& setup) {
  if (!question.one_host || !question.memory_of) return 0;
  const plan::Plan usual{.layout = plan::DefaultLayout(setup.num_ranks)};
  const Result<RankMemory> memory = question.memory_of(setup, usual, /*batch=*/1);
  if (!memory) return 0;
  return static_cast<double>(memory->weights_bytes) * setup.num_ranks;
}

bool IsOff(const PlanQuestion& question, std::string_view pass) {
  return std::ranges::find(question.passes_off, pass) != question.passes_off.end();
}

cost::Outline OutlineOfScore(const PlanFigures& figures) {
  const double own_seconds = figures.score - figures.waiting_seconds;
  const double stretch = own_seconds > 0 ? figures.score / own_seconds : 1;
  cost::Outline outline{.seconds = figures.score,
                        .by_kind = figures.path,
                        .overlapped_seconds = stretch * figures.overlapped_seconds};
  for (double& seconds : outline.by_kind) seconds *= stretch;
  return outline;
}

PlanQuestion WithWorkload(const PlanQuestion& question, const Workload& workload) {
  return {.spec = question.spec,
          .workload = workload,
          .source = question.source,
          .num_ranks = question.num_ranks,
          .step_tokens = question.step_tokens,
          .formats = question.formats,
          .int8_kv = question.int8_kv,
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
