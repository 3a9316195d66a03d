#include "planner/whole_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "planner/layer_shapes.h"
#include "schedule/activity_graph.h"
#include "simulate/simulate.h"
#include "strategy/transition.h"

namespace convene::planner {
namespace {

constexpr size_t kMostLikeShape = 6;  // parts of the layers of one shape, by their shares
constexpr size_t kCopies = 4;         // layers of such a part, where layers overlap

std::string ShapeOf(const model::AttentionSpec& attention) {
  std::string shape = fmt::format(
      "{} {} {} {} {} {} {}", attention.num_heads, attention.num_kv_heads, attention.head_dim,
      attention.value_dim, attention.window, attention.causal, static_cast<int>(attention.qk_norm));
  if (attention.latent) {
    shape +=
        fmt::format(" latent {} {} {} {}", attention.latent->query_rank, attention.latent->kv_rank,
                    attention.latent->nope_dim, attention.latent->rope_dim);
  }
  return shape;
}

// Whatever the work of a layer depends on.
std::string ShapeOf(const model::LayerSpec& layer) {
  std::string shape = ShapeOf(layer.attention);
  if (layer.cross_attention) shape += " cross " + ShapeOf(*layer.cross_attention);
  if (layer.moe) {
    return shape + fmt::format(" experts {} {} {} {} {}", layer.moe->num_experts, layer.moe->top_k,
                               layer.moe->intermediate_size, layer.moe->shared_intermediate_size,
                               layer.moe->activation.gated());
  }
  return shape +
         fmt::format(" dense {} {}", layer.dense_intermediate_size, layer.dense_activation.gated());
}

// The probability that two visits are to one expert, up to a factor: how concentrated they are.
double Concentration(const cost::ExpertShares& shares) {
  return std::inner_product(shares.begin(), shares.end(), shares.begin(), 0.0);
}

// Which of some layers, in order, stand for all of them, with how many each does. Where layers
// overlap, those in the middle do: the first ones of a step fill what overlaps, and the last ones
// drain it.
void AddRepresentatives(const std::vector<int>& layers, size_t copies,
                        std::map<int, double>& counts) {
  const size_t chosen = std::min(copies, layers.size());
  const size_t first = (layers.size() - chosen) / 2;
  const size_t ends = copies < 3 || chosen < copies ? 0 : 2;
  for (size_t i = 0; i < chosen; ++i) {
    const bool is_end = ends > 0 && (i == 0 || i + 1 == chosen);
    counts[layers[first + i]] =
        is_end ? 1 : static_cast<double>(layers.size() - ends) / static_cast<double>(chosen - ends);
  }
}

// By layer that stands for others: how many.
std::map<int, double> Representatives(const std::vector<model::LayerSpec>& layers_of_model,
                                      const std::vector<cost::ExpertShares>& shares,
                                      bool is_overlapping) {
  const int last = static_cast<int>(std::ssize(layers_of_model)) - 1;
  std::map<int, double> counts = {{0, 1}};
  counts[last] = 1;
  std::map<std::string, std::vector<int>> by_shape;
  for (int layer = 1; layer < last; ++layer)
    by_shape[ShapeOf(layers_of_model[layer])].push_back(layer);
  for (auto& [shape, layers] : by_shape) {
    const size_t parts = shares.size() > 1 ? std::min(kMostLikeShape, layers.size()) : 1;
    if (parts > 1) {
      std::stable_sort(layers.begin(), layers.end(), [&](int a, int b) {
        return Concentration(shares[a]) < Concentration(shares[b]);
      });
    }
    for (size_t part = 0; part < parts; ++part) {
      const auto begin = layers.begin() + static_cast<ptrdiff_t>(layers.size() * part / parts);
      const auto end = layers.begin() + static_cast<ptrdiff_t>(layers.size() * (part + 1) / parts);
      AddRepresentatives({begin, end}, is_overlapping ? kCopies : 1, counts);
    }
  }
  return counts;
}

// By layer of the short model, when all tasks of it and of those before it are done.
std::vector<double> EndsOfLayers(const ShortModel& model, const PredictedStep& step) {
  std::vector<double> ends(model.counts.size(), 0);
  for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
    const schedule::Task& task = step.schedule.tasks[id];
    if (task.layer < 0 || task.encoder != model.is_encoder) continue;
    ends[task.layer] = std::max(ends[task.layer], step.timeline.tasks[id].end);
  }
  for (size_t layer = 1; layer < ends.size(); ++layer) {
    ends[layer] = std::max(ends[layer], ends[layer - 1]);
  }
  return ends;
}

// Over the ranks that have experts: others have attention alone. `waits`: how much longer than
// expected the busiest rank takes, since routing is not its mean (others take as much less).
double ImbalanceOf(const ShortModel& model, const PredictedStep& step, double waits) {
  std::map<int, double> seconds;  // by rank
  for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
    const schedule::Task& task = step.schedule.tasks[id];
    if (task.kind != schedule::TaskKind::kExperts) continue;
    seconds[task.lane.rank] += model.counts[task.layer] * step.timeline.tasks[id].seconds();
  }
  double sum = 0;
  double most = 0;
  for (const auto& [rank, of_rank] : seconds) {
    sum += of_rank;
    most = std::max(most, of_rank);
  }
  return sum > 0 ? (most + waits) * static_cast<double>(seconds.size()) / sum : 1;
}

}  // namespace

ShortModel Shorten(const model::ModelSpec& spec, const std::vector<cost::ExpertShares>& shares,
                   bool is_overlapping) {
  ShortModel model;
  if (shares.size() == 1) model.shares = shares;
  std::vector<model::LayerSpec> layers;
  for (const auto& [layer, count] : Representatives(spec.layers, shares, is_overlapping)) {
    layers.push_back(spec.layers[layer]);
    model.counts.push_back(count);
    if (shares.size() > 1) model.shares.push_back(shares[layer]);
  }
  model.spec = DecoderOf(spec, std::move(layers));
  return model;
}

ShortModel ShortenEncoder(const model::ModelSpec& spec,
                          const std::vector<cost::ExpertShares>& shares, bool is_overlapping) {
  ShortModel model{.spec = DecoderOf(spec, spec.layers), .counts = {}, .is_encoder = true};
  if (shares.size() == 1) model.shares = shares;
  for (const auto& [layer, count] :
       Representatives(spec.encoder_layers, model.shares, is_overlapping)) {
    model.spec.encoder_layers.push_back(spec.encoder_layers[layer]);
    model.counts.push_back(count);
  }
  return model;
}

ShortModel Unshortened(const model::ModelSpec& spec,
                       const std::vector<cost::ExpertShares>& shares) {
  return {.spec = DecoderOf(spec, spec.layers),
          .counts = std::vector<double>(spec.layers.size(), 1),
          .shares = shares};
}

WholeStep ExtendStep(const ShortModel& model, const PredictedStep& step) {
  WholeStep whole{.seconds = step.seconds,
                  .once_seconds = step.once_seconds,
                  .extrapolated_share = step.extrapolated_share};
  double waits = 0;
  for (size_t layer = 0; layer < step.routing_waits.size(); ++layer) {
    waits += model.counts[layer] * step.routing_waits[layer];
  }
  whole.imbalance = ImbalanceOf(model, step, waits);
  const bool has_one_lane = std::ranges::all_of(step.schedule.tasks, [](const auto& task) {
    return task.lane.rank == 0 && task.lane.kind == schedule::LaneKind::kCompute;
  });
  if (has_one_lane) {
    // One task after the other: what is repeated is added.
    for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
      const schedule::Task& task = step.schedule.tasks[id];
      const double seconds = step.timeline.tasks[id].seconds();
      const double times = task.layer >= 0 ? model.counts[task.layer] : 1;
      whole.seconds += (times - 1) * seconds;
      whole.path[static_cast<size_t>(task.kind)] += times * seconds;
    }
    return whole;
  }
  const std::vector<double> ends = EndsOfLayers(model, step);
  double before = 0;  // the embedding
  for (size_t id = 0; id < step.schedule.tasks.size(); ++id) {
    if (step.schedule.tasks[id].kind != schedule::TaskKind::kEmbed) continue;
    before = std::max(before, step.timeline.tasks[id].end);
  }
  for (size_t layer = 0; layer < ends.size(); ++layer) {
    const double wait = step.routing_waits.empty() ? 0 : step.routing_waits[layer];
    whole.seconds += (model.counts[layer] - 1) * (std::max(0.0, ends[layer] - before) + wait);
    before = std::max(before, ends[layer]);
  }
  double sum = 0;
  for (const schedule::TaskId id : CriticalPath(step.schedule, step.timeline)) {
    const schedule::Task& task = step.schedule.tasks[id];
    const double times = task.layer >= 0 ? model.counts[task.layer] : 1;
    const double seconds = times * step.timeline.tasks[id].seconds();
    whole.path[static_cast<size_t>(task.kind)] += seconds;
    sum += seconds;
  }
  const double scale = sum > 0 ? (whole.seconds - whole.once_seconds - waits) / sum : 1;
  for (double& seconds : whole.path) seconds *= scale;
  // Others wait for the rank that has more experts than they, which no overlap hides.
  whole.path[static_cast<size_t>(schedule::TaskKind::kExperts)] += waits;
  if (cost::Overlaps(step.schedule)) whole.overlapped_seconds = whole.seconds;
  return whole;
}

Result<WholeStep> PredictWholeStep(const ShortModel& model, const strategy::StepOptions& options,
                                   const std::vector<std::vector<strategy::SequenceRows>>& groups,
                                   const StepPricer& pricer) {
  const Result<PredictedStep> step = PredictStep({.spec = model.spec,
                                                  .options = options,
                                                  .groups = groups,
                                                  .shares = model.shares,
                                                  .is_encoder = model.is_encoder},
                                                 pricer);
  if (!step) return step.error();
  return ExtendStep(model, *step);
}

namespace {

// Of a schedule that changes experts and has no rows.
Result<WholeStep> PredictChange(const ShortModel& model, schedule::Schedule change,
                                const StepPricer& pricer) {
  PredictedStep step;
  step.schedule = std::move(change);
  if (step.schedule.tasks.empty()) return WholeStep{};
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(step.schedule);
  const Result<SchedulePrices> priced =
      pricer.Price(model.spec, step.schedule, graph, [](const schedule::Size&) { return 0.0; });
  if (!priced) return priced.error();
  step.timeline = simulate::Simulate(step.schedule, graph, priced->prices);
  step.seconds = step.timeline.seconds();
  return ExtendStep(model, step);
}

}  // namespace

Result<WholeStep> PredictTransition(const ShortModel& model, const strategy::Layout& from,
                                    const strategy::Layout& to, double bytes,
                                    const StepPricer& pricer) {
  return PredictChange(model, strategy::BuildTransition(model.spec, from, to, bytes), pricer);
}

Result<WholeStep> PredictLoads(const ShortModel& model, const strategy::ExpertLoads& loads,
                               const StepPricer& pricer) {
  return PredictChange(model, strategy::BuildLoads(model.spec, loads), pricer);
}

void Add(const WholeStep& step, double times, WholeStep& sum) {
  const double before = sum.seconds;
  sum.seconds += times * step.seconds;
  sum.once_seconds += times * step.once_seconds;
  sum.overlapped_seconds += times * step.overlapped_seconds;
  for (size_t kind = 0; kind < sum.path.size(); ++kind) sum.path[kind] += times * step.path[kind];
  if (!(sum.seconds > 0)) return;
  const auto mean = [&](double first, double second) {
    return (before * first + times * step.seconds * second) / sum.seconds;
  };
  sum.extrapolated_share = mean(sum.extrapolated_share, step.extrapolated_share);
  sum.imbalance = mean(sum.imbalance, step.imbalance);
}

cost::Outline OutlineOf(const WholeStep& step) {
  return {.seconds = step.seconds,
          .by_kind = step.path,
          .overlapped_seconds = step.overlapped_seconds,
          .extrapolated_share = step.extrapolated_share};
}

}  // namespace convene::planner
