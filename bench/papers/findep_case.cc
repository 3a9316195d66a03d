#include "bench/papers/findep_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "bench/papers/paper_models.h"
#include "planner/disaggregated_lines.h"
#include "planner/predict_step.h"
#include "schedule/activity_graph.h"
#include "simulate/simulate.h"

namespace convene::papers {
namespace {

using planner::DisaggregatedChoice;
using planner::DisaggregatedPipeline;

model::ModelSpec WithLayers(const std::string& name, int first, int count) {
  model::ModelSpec spec = Model(name);
  spec.layers = std::vector(spec.layers.begin() + first, spec.layers.begin() + first + count);
  spec.tensors.clear();
  return spec;
}

cost::MachineProfile TestbedOf(char testbed, const Assumptions& assumptions) {
  cost::MachineProfile machine =
      Machine(fmt::format("findep-{}", static_cast<char>(testbed - 'A' + 'a')));
  for (cost::LinkLevel& link : machine.links) {
    if (link.name.starts_with("PCI")) link.bytes_per_second *= assumptions.pcie_share;
  }
  return machine;
}

std::vector<strategy::SequenceRows> Sequences(int length, int count) {
  return std::vector(
      static_cast<size_t>(count),
      strategy::SequenceRows{.num_tokens = length, .is_expanded = true, .prompt_length = length});
}

// Seconds in which no rank computes.
double ExposedSeconds(const planner::PredictedStep& step) {
  std::vector<std::pair<double, double>> spans;
  for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
    if (IsCommunication(step.schedule.tasks[id].kind)) continue;
    spans.emplace_back(step.timeline.tasks[id].start, step.timeline.tasks[id].end);
  }
  std::sort(spans.begin(), spans.end());
  double busy = 0;
  double until = 0;
  for (const auto& [start, end] : spans) {
    busy += std::max(0.0, end - std::max(until, start));
    until = std::max(until, end);
  }
  return step.seconds - busy;
}

}  // namespace

Groups GroupsOf(char testbed, const std::string& model) {
  if (testbed == 'D') return {8, 24};
  return model == "DeepSeek-V2" ? Groups{3, 5} : Groups{4, 4};
}

model::ModelSpec SmallModel(char testbed, const std::string& model) {
  const bool is_deepseek = model == "DeepSeek-V2";
  if (testbed == 'A') return WithLayers(model, 0, is_deepseek ? 8 : 24);
  if (testbed == 'B') return WithLayers(model, 0, is_deepseek ? 4 : 12);
  return WithLayers(model, 0, is_deepseek ? 16 : 48);
}

model::ModelSpec TwoLayers() { return WithLayers("DeepSeek-V2", 1, 2); }

Case::Pricer::Pricer(cost::MachineProfile machine, bool as_in_paper, int attention_ranks)
    : pricer_(std::move(machine),
              {.order = as_in_paper ? cost::ExpertsOrder::kDense : cost::ExpertsOrder::kFaster}),
      as_in_paper_(as_in_paper),
      attention_ranks_(attention_ranks) {}

Result<planner::SchedulePrices> Case::Pricer::Price(const model::ModelSpec& spec,
                                                    const schedule::Schedule& schedule,
                                                    const schedule::ActivityGraph& graph,
                                                    const cost::Sizes& sizes) const {
  if (!as_in_paper_) return pricer_.Price(spec, schedule, graph, sizes);
  return pricer_.Price(spec, schedule, graph, [&](schedule::Size size) {
    const bool is_sent = size.kind == schedule::SizeKind::kSent;
    if (!is_sent && size.kind != schedule::SizeKind::kReturned) return sizes(size);
    // All attention ranks are alike.
    if (is_sent) size.from = size.to;
    size.to = -1;
    size.kind = schedule::SizeKind::kSlots;
    return sizes(size) / attention_ranks_;
  });
}

Case::Case(char testbed, const std::string& model, model::ModelSpec spec,
           const Assumptions& assumptions)
    : groups_(GroupsOf(testbed, model)),
      spec_(std::move(spec)),
      pricer_(TestbedOf(testbed, assumptions), assumptions.as_in_paper, groups_.attention),
      short_(planner::Shorten(spec_, {}, /*is_overlapping=*/true)) {}

planner::DisaggregatedQuestion Case::Ask(int length, int max_sequences) const {
  const auto fitted = planner::FitDisaggregatedLines(
      {.spec = spec_,
       .roles = strategy::Roles::Disaggregated(groups_.attention, groups_.experts),
       .sequences = Sequences(length, max_sequences)},
      pricer_);
  CHECK(fitted.ok(), "{}", fitted.error().message);
  least_r2_ = std::min(least_r2_, fitted->least_r2);
  return {.lines = fitted->lines,
          .attention_ranks = groups_.attention,
          .max_sequences = max_sequences,
          .rows_per_sequence = static_cast<double>(length),
          .most_chunks = 64};
}

Case::Simulated Case::Simulate(const DisaggregatedPipeline& pipeline, int length,
                               int sequences) const {
  strategy::StepOptions options;
  options.roles = strategy::Roles::Disaggregated(groups_.attention, groups_.experts);
  options.pipeline.micro_batches = pipeline.micro_batches;
  options.pipeline.chunks = pipeline.chunks;
  options.pipeline.order = pipeline.order;
  options.pipeline.dispatch_after_shared = pipeline.dispatch_after_shared;
  options.prunes_last_layer = false;
  const planner::StepQuestion question{
      .spec = short_.spec,
      .options = options,
      .groups = std::vector(static_cast<size_t>(groups_.attention), Sequences(length, sequences))};
  const Result<planner::PredictedStep> step = planner::PredictStep(question, pricer_);
  CHECK(step.ok(), "{}", step.error().message);
  Simulated simulated{.seconds = planner::ExtendStep(short_, *step).seconds};
  // The share of the simulated layers stands for all.
  simulated.exposed = ExposedSeconds(*step) * simulated.seconds / step->seconds;
  return simulated;
}

double Case::Throughput(const DisaggregatedPipeline& pipeline, int length, int sequences) const {
  return 1e-3 * length * sequences * groups_.attention /
         Simulate(pipeline, length, sequences).seconds;
}

Configured Case::BestPingPong(int length, int max_sequences) const {
  Configured best;
  for (int r1 = 1; r1 <= max_sequences; ++r1) {
    const int sequences = max_sequences / r1 * r1;
    const DisaggregatedPipeline pipeline{.micro_batches = r1, .dispatch_after_shared = true};
    const double there = Throughput(pipeline, length, sequences);
    if (there > best.throughput) best = {pipeline, sequences, there};
  }
  return best;
}

Configured Case::BestFine(int length, const std::vector<DisaggregatedChoice>& proposals) const {
  Configured best;
  for (const DisaggregatedChoice& choice : proposals) {
    const auto sequences =
        static_cast<int>(std::lround(choice.sequences * choice.pipeline.micro_batches));
    const double there = Throughput(choice.pipeline, length, sequences);
    if (there > best.throughput) best = {choice.pipeline, sequences, there};
  }
  return best;
}

}  // namespace convene::papers
