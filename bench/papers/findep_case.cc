#include "bench/papers/findep_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "bench/papers/paper_models.h"
#include "planner/disaggregated_lines.h"
#include "planner/layer_shapes.h"
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

cost::MachineProfile TestbedOf(char testbed) {
  return Machine(fmt::format("findep-{}", static_cast<char>(testbed - 'A' + 'a')));
}

cost::MachineProfile TestbedOf(char testbed, const Assumptions& assumptions) {
  cost::MachineProfile machine = TestbedOf(testbed);
  for (size_t i = 0; i < machine.links.size(); ++i) {
    if (!machine.links[i].name.starts_with("PCI")) continue;
    machine.links[i].bytes_per_second *= assumptions.pcie_share;
    if (assumptions.gpus_of_uplink == 0) continue;
    cost::LinkLevel within_switch = machine.links[i];
    within_switch.num_ranks = assumptions.gpus_of_uplink;
    machine.links[i].name = "uplink of a switch";
    machine.links[i].shared_by = cost::LinkSharing::kHost;
    machine.links.insert(machine.links.begin() + static_cast<std::ptrdiff_t>(i), within_switch);
    break;
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

int RankTokens(char testbed, const Assumptions& assumptions) {
  const bool is_hopper = testbed == 'C' || testbed == 'D';
  return assumptions.rank_tokens * (is_hopper ? assumptions.more_on_hopper : 1);
}

Groups GroupsOf(char testbed, const std::string& model) {
  if (testbed == 'D') return {8, 24};
  return model == "DeepSeek-V2" ? Groups{3, 5} : Groups{4, 4};
}

std::vector<Groups> DivisionsOf(char testbed, const model::ModelSpec& spec) {
  // What is left is for activations, keys and values.
  constexpr double kOfMemory = 0.9;
  constexpr double kElementBytes = 2;
  const double room = kOfMemory * static_cast<double>(TestbedOf(testbed).device->memory_bytes);
  const int ranks = testbed == 'D' ? 32 : 8;
  const int step = testbed == 'D' ? 4 : 1;
  std::vector<Groups> divisions;
  for (int attention = step; attention < ranks; attention += step) {
    double bytes = 0;
    for (const model::LayerSpec& layer : spec.layers) {
      if (!layer.moe) continue;
      const int experts = (layer.moe->num_experts + ranks - attention - 1) / (ranks - attention);
      bytes += kElementBytes * experts * 3.0 * spec.hidden_size * layer.moe->intermediate_size;
    }
    if (bytes <= room) divisions.push_back({attention, ranks - attention});
  }
  CHECK(!divisions.empty(), "{} does not fit testbed {}", spec.layers.size(), testbed);
  return divisions;
}

model::ModelSpec SmallModel(char testbed, const std::string& model) {
  const bool is_deepseek = model == "DeepSeek-V2";
  if (testbed == 'A') return WithLayers(model, 0, is_deepseek ? 8 : 24);
  if (testbed == 'B') return WithLayers(model, 0, is_deepseek ? 4 : 12);
  return WithLayers(model, 0, is_deepseek ? 16 : 48);
}

model::ModelSpec TwoLayers() { return WithLayers("DeepSeek-V2", 1, 2); }

Case::Pricer::Pricer(cost::MachineProfile machine, const Assumptions& assumptions, Groups groups)
    : pricer_(std::move(machine), {.order = assumptions.as_in_paper ? cost::ExpertsOrder::kDense
                                                                    : cost::ExpertsOrder::kFaster}),
      assumptions_(assumptions),
      groups_(groups) {}

void Case::Pricer::AddStarts(const model::ModelSpec& spec, const schedule::Schedule& schedule,
                             const schedule::ActivityGraph& graph, cost::Prices& prices) const {
  if (assumptions_.product_start <= 0) return;
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    const schedule::Task& task = schedule.tasks[id];
    double products = 0;
    if (task.kind == schedule::TaskKind::kAttention) products = 5;  // four and the scores (Eq. 10)
    if (task.kind == schedule::TaskKind::kShared) products = 3;
    if (task.kind == schedule::TaskKind::kExperts) {
      const int experts = spec.layers[static_cast<size_t>(task.layer)].moe->num_experts;
      products = 3.0 * experts / groups_.experts;
    }
    prices.fixed_seconds[static_cast<size_t>(graph.activity_of[id])] +=
        products * assumptions_.product_start;
  }
}

Result<planner::SchedulePrices> Case::Pricer::Price(const model::ModelSpec& spec,
                                                    const schedule::Schedule& schedule,
                                                    const schedule::ActivityGraph& graph,
                                                    const cost::Sizes& sizes) const {
  if (!assumptions_.as_in_paper) return pricer_.Price(spec, schedule, graph, sizes);
  Result<planner::SchedulePrices> priced =
      pricer_.Price(spec, schedule, graph, [&](schedule::Size size) {
        const bool is_sent = size.kind == schedule::SizeKind::kSent;
        if (!is_sent && size.kind != schedule::SizeKind::kReturned) return sizes(size);
        // All attention ranks are alike.
        if (is_sent) size.from = size.to;
        size.to = -1;
        size.kind = schedule::SizeKind::kSlots;
        return sizes(size) / groups_.attention;
      });
  if (priced) AddStarts(spec, schedule, graph, priced->prices);
  return priced;
}

Case::Case(char testbed, Groups groups, model::ModelSpec spec, const Assumptions& assumptions)
    : groups_(groups),
      spec_(std::move(spec)),
      layers_overlap_(assumptions.layers_overlap),
      baselines_overlap_(assumptions.baselines_overlap),
      pricer_(TestbedOf(testbed, assumptions), assumptions, groups),
      short_(planner::Shorten(spec_, {}, /*is_overlapping=*/true)) {}

planner::DisaggregatedQuestion Case::Ask(int length, int max_sequences, bool is_ping_pong) const {
  auto fitted = planner::FitDisaggregatedLines(
      {.spec = spec_,
       .roles = strategy::Roles::Disaggregated(groups_.attention, groups_.experts),
       .sequences = Sequences(length, max_sequences)},
      pricer_);
  CHECK(fitted.ok(), "{}", fitted.error().message);
  least_r2_ = std::min(least_r2_, fitted->least_r2);
  const bool overlaps = is_ping_pong ? baselines_overlap_ : layers_overlap_;
  if (!overlaps) fitted->lines.num_layers = 1;
  return {.lines = fitted->lines,
          .attention_ranks = groups_.attention,
          .max_sequences = max_sequences,
          .rows_per_sequence = static_cast<double>(length),
          .most_chunks = 64};
}

planner::PredictedStep Case::Predict(const model::ModelSpec& spec,
                                     const DisaggregatedPipeline& pipeline, int length,
                                     int sequences) const {
  strategy::StepOptions options;
  options.roles = strategy::Roles::Disaggregated(groups_.attention, groups_.experts);
  options.pipeline = planner::ToPipeline(pipeline);
  options.prunes_last_layer = false;
  const planner::StepQuestion question{
      .spec = spec,
      .options = options,
      .groups = std::vector(static_cast<size_t>(groups_.attention), Sequences(length, sequences))};
  Result<planner::PredictedStep> step = planner::PredictStep(question, pricer_);
  CHECK(step.ok(), "{}", step.error().message);
  return *std::move(step);
}

Case::Simulated Case::Simulate(const DisaggregatedPipeline& pipeline, int length,
                               int sequences) const {
  Simulated simulated;
  // FinDEP never waits for the shared expert.
  const bool overlaps = pipeline.dispatch_after_shared ? baselines_overlap_ : layers_overlap_;
  if (!overlaps) {
    for (const planner::LayerShape& shape : planner::LayerShapesOf(spec_, 1)) {
      const planner::PredictedStep step = Predict(shape.spec, pipeline, length, sequences);
      simulated.seconds += shape.count * step.seconds;
      simulated.exposed += shape.count * ExposedSeconds(step);
    }
    return simulated;
  }
  const planner::PredictedStep step = Predict(short_.spec, pipeline, length, sequences);
  simulated.seconds = planner::ExtendStep(short_, step).seconds;
  // The share of the simulated layers stands for all.
  simulated.exposed = ExposedSeconds(step) * simulated.seconds / step.seconds;
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
    if (there > best.throughput) best = {pipeline, sequences, there, groups_};
  }
  return best;
}

Configured Case::BestFine(int length, const std::vector<DisaggregatedChoice>& proposals) const {
  Configured best;
  for (const DisaggregatedChoice& choice : proposals) {
    const auto sequences =
        static_cast<int>(std::lround(choice.sequences * choice.pipeline.micro_batches));
    DisaggregatedPipeline whole = choice.pipeline;
    whole.chunks = 1;
    for (const DisaggregatedPipeline& pipeline : {choice.pipeline, whole}) {
      const double there = Throughput(pipeline, length, sequences);
      if (there > best.throughput) best = {pipeline, sequences, there, groups_};
    }
  }
  return best;
}

std::vector<Groups> BestByLines(char testbed, const model::ModelSpec& spec, int length,
                                int max_sequences, bool is_ping_pong,
                                const Assumptions& assumptions) {
  constexpr size_t kSimulated = 3;
  std::vector<std::pair<double, Groups>> divisions;
  for (const Groups groups : DivisionsOf(testbed, spec)) {
    const Case on(testbed, groups, spec, assumptions);
    const planner::DisaggregatedQuestion question = on.Ask(length, max_sequences, is_ping_pong);
    const DisaggregatedChoice choice =
        is_ping_pong ? planner::SolvePingPong(question) : planner::SolveDisaggregated(question);
    divisions.emplace_back(choice.rows_per_second, groups);
  }
  std::stable_sort(divisions.begin(), divisions.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  if (divisions.size() > kSimulated) divisions.resize(kSimulated);
  std::vector<Groups> best;
  for (const auto& [rate, groups] : divisions) best.push_back(groups);
  return best;
}

}  // namespace convene::papers
