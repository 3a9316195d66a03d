#include "evaluate/refine_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace convene::evaluate {
namespace {

double Sum(const schedule::Amount& amount) {
  double sum = 0;
  for (const schedule::Term& term : amount) sum += term.factor;  // a trace has values alone
  return sum;
}

}  // namespace

cost::MachineState StateOf(const drawing::TracedStep& step, const cost::ReferenceSpeed& reference) {
  if (!step.has_speed() || !(reference.read_bytes_per_second > 0) ||
      !(reference.dot_operations_per_second > 0)) {
    return {};
  }
  return reference.StateAt({.read_bytes_per_second = step.read_bytes_per_second,
                            .dot_operations_per_second = step.dot_operations_per_second});
}

std::vector<cost::TaskParts> PartsOf(const drawing::TracedStep& step) {
  std::vector<cost::TaskParts> parts;
  for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
    const schedule::Work& work = step.schedule.tasks[id].work;
    const drawing::TracedParts& told = step.parts[id];
    const double memory = Sum(work.memory_bytes);
    parts.push_back({.product_flops = std::max(0.0, Sum(work.flops) - told.score_flops),
                     .weight_bytes = told.weight_bytes,
                     .groups = told.groups,
                     .score_flops = told.score_flops,
                     .cache_bytes = told.cache_bytes,
                     .row_bytes = std::max(0.0, memory - told.weight_bytes - told.cache_bytes),
                     .link_bytes = Sum(work.link_bytes)});
  }
  return parts;
}

namespace {

// Steps that the same costs are of.
struct TracedSteps {
  cost::StepCosts* costs = nullptr;
  bool int8_kv = false;
  std::vector<const drawing::TracedStep*> steps;
  std::vector<std::string> runs;  // whose steps they are
};

}  // namespace

Result<std::vector<RefinedCosts>> RefineProfile(std::span<const drawing::Trace> traces,
                                                cost::MachineProfile* profile) {
  std::vector<TracedSteps> groups;
  for (const drawing::Trace& trace : traces) {
    for (const drawing::TracedStep& step : trace.steps) {
      if (step.measured.tasks.size() != step.schedule.tasks.size()) continue;  // only predicted
      if (trace.weights.empty() || trace.num_threads == 0 || step.parts.empty()) {
        return Error{
            "a trace does not tell of which weights, threads and parts of tasks it is: record it "
            "again with --trace of this version"};
      }
      const auto found = std::ranges::find_if(profile->steps, [&](const cost::StepCosts& costs) {
        return costs.num_ranks == step.schedule.num_ranks &&
               costs.num_threads == trace.num_threads && costs.weights == trace.weights;
      });
      if (found == profile->steps.end()) {
        return Error{fmt::format(
            "the profile has no costs of steps on {} of {} with weights in {}, which a trace is "
            "of: measure them first with convene measure, under mpirun where there are several "
            "ranks",
            FormatCount(static_cast<uint64_t>(step.schedule.num_ranks), "rank"),
            FormatCount(static_cast<uint64_t>(trace.num_threads), "thread"), trace.weights)};
      }
      if (trace.int8_kv && !found->int8_attention) {
        return Error{
            "a trace is of a run with an int8 KV cache, and the profile has no costs of attention "
            "with one: measure them first with convene measure"};
      }
      auto group = std::ranges::find_if(groups, [&](const TracedSteps& each) {
        return each.costs == &*found && each.int8_kv == trace.int8_kv;
      });
      if (group == groups.end()) {
        group = groups.insert(
            group, {.costs = &*found, .int8_kv = trace.int8_kv, .steps = {}, .runs = {}});
      }
      group->steps.push_back(&step);
      group->runs.push_back(trace.run);
    }
  }
  if (groups.empty()) return Error{"the traces have no step that ran"};
  std::vector<RefinedCosts> refined;
  for (const TracedSteps& group : groups) {
    std::vector<std::vector<cost::TaskParts>> parts;
    for (const drawing::TracedStep* step : group.steps) parts.push_back(PartsOf(*step));
    std::vector<cost::TracedCosts> traced;
    if (group.int8_kv) group.costs->SwapCaches();
    for (size_t i = 0; i < parts.size(); ++i) {
      traced.push_back({&group.steps[i]->schedule, &group.steps[i]->measured, parts[i],
                        StateOf(*group.steps[i], group.costs->reference)});
    }
    refined.push_back({.num_steps = static_cast<int>(traced.size()),
                       .refinement = cost::RefineStepCosts(
                           *group.costs, traced, profile->machine.last_level_cache_bytes)});
    if (group.int8_kv) refined.back().refinement.costs.SwapCaches();
    *group.costs = refined.back().refinement.costs;
    if (!refined.back().refinement.is_used()) continue;
    for (const std::string& run : group.runs) group.costs->LearntFrom(run);
  }
  return refined;
}

}  // namespace convene::evaluate
