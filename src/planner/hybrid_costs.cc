#include "planner/hybrid_costs.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "cost/operator_prices.h"
#include "planner/drawn_sizes.h"
#include "planner/layer_shapes.h"
#include "planner/predict_step.h"
#include "schedule/activity_graph.h"
#include "simulate/simulate.h"
#include "strategy/transition.h"

namespace convene::planner {
namespace {

using schedule::TaskKind;

bool IsOfAttention(TaskKind kind) {
  switch (kind) {
    case TaskKind::kNormalize:
    case TaskKind::kProject:
    case TaskKind::kAttention:
    case TaskKind::kAddPartials:
      return true;
    default:
      return false;
  }
}

struct SimulatedLayer {
  double seconds = 0;
  double attention = 0;  // of the rank that computes it longest, as is the next
  double experts = 0;
  double ends = 0;

  void Add(const SimulatedLayer& other, double weight) {
    seconds += weight * other.seconds;
    attention += weight * other.attention;
    experts += weight * other.experts;
    ends += weight * other.ends;
  }
};

SimulatedLayer Simulate(const model::ModelSpec& spec, const schedule::Schedule& schedule,
                        const schedule::ActivityGraph& graph, const cost::Prices& prices) {
  const schedule::Timeline timeline = simulate::Simulate(schedule, graph, prices);
  std::vector<double> end_of_layer(spec.layers.size(), 0);
  std::vector<double> attention(schedule.num_ranks, 0);
  std::vector<double> experts(schedule.num_ranks, 0);
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    const schedule::Task& task = schedule.tasks[id];
    if (task.layer < 0) continue;
    end_of_layer[task.layer] = std::max(end_of_layer[task.layer], timeline.tasks[id].end);
    if (task.layer == 0 || IsCollective(task.kind)) continue;
    const double seconds = timeline.tasks[id].end - timeline.tasks[id].start;
    (IsOfAttention(task.kind) ? attention : experts)[task.lane.rank] += seconds;
  }
  SimulatedLayer layer;
  layer.seconds = end_of_layer[1] - end_of_layer[0];
  layer.attention = *std::max_element(attention.begin(), attention.end());
  layer.experts = *std::max_element(experts.begin(), experts.end());
  layer.ends = std::max(0.0, timeline.seconds() - 2 * layer.seconds);
  return layer;
}

// `shares`: of all its layers; none: experts are alike.
Result<SimulatedLayer> SimulateLayer(const LayerCostsQuestion& question,
                                     const model::ModelSpec& spec, const strategy::Layout& layout,
                                     const PhaseStep& step,
                                     const std::vector<cost::ExpertShares>& shares_of_all) {
  strategy::StepOptions options;
  options.roles = layout;
  options.bytes = question.bytes;
  options.pipeline = question.pipeline;
  options.prunes_last_layer = false;
  options.head_chunks = strategy::HeadChunksOf(options.roles, step.batch);
  const StepQuestion of_step{.spec = spec,
                             .options = options,
                             .groups = Divide(step, layout.attention_dp),
                             .shares = shares_of_all};
  const PriceStep price = question.price_of ? question.price_of(layout) : question.price;
  const schedule::Schedule schedule = strategy::BuildStep(spec, of_step.options);
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(schedule);
  const cost::ExpectedSizes expected = ExpectSizes(of_step);
  const auto simulate = [&](const cost::Sizes& sizes) -> Result<SimulatedLayer> {
    const Result<cost::Prices> prices = price(spec, schedule, graph, sizes);
    if (!prices) return prices.error();
    return Simulate(spec, schedule, graph, *prices);
  };
  const std::optional<model::MoeSpec>& moe = spec.layers.front().moe;
  const bool is_cut = question.pipeline.chunks > 1 || question.pipeline.micro_batches > 1;
  // As the search does (routing_waits.h), so that tables and what is priced by it agree.
  const int num_draws =
      moe && !is_cut ? NumRoutingDraws(step.batch * step.tokens, moe->top_k, of_step.options.roles)
                     : 0;
  if (num_draws == 0) {
    return simulate([&](const schedule::Size& size) { return expected.at(size); });
  }
  const cost::ExpertShares shares = shares_of_all.empty()
                                        ? cost::UniformShares(moe->num_experts, moe->top_k)
                                        : shares_of_all.front();
  SimulatedLayer mean;
  for (int draw = 0; draw < num_draws; ++draw) {
    const DrawnSizes drawn(expected, of_step.options.roles, shares, moe->top_k,
                           static_cast<uint32_t>(draw));
    const Result<SimulatedLayer> layer =
        simulate([&](const schedule::Size& size) { return drawn.at(size); });
    if (!layer) return layer.error();
    mean.Add(*layer, 1.0 / num_draws);
  }
  return mean;
}

// The mean of the parts of the layers that have shares of their own.
Result<SimulatedLayer> SimulateMeanLayer(const LayerCostsQuestion& question,
                                         const model::ModelSpec& spec,
                                         const strategy::Layout& layout, const PhaseStep& step) {
  if (question.shares.empty()) return SimulateLayer(question, spec, layout, step, {});
  SimulatedLayer mean;
  for (const cost::ExpertShares& shares : question.shares) {
    const Result<SimulatedLayer> layer = SimulateLayer(question, spec, layout, step, {shares});
    if (!layer) return layer.error();
    mean.Add(*layer, 1.0 / static_cast<double>(question.shares.size()));
  }
  return mean;
}

}  // namespace

PriceStep PriceOn(const cost::MachineProfile& machine, cost::OperatorCostsOptions options) {
  return [&machine, options = std::move(options)](
             const model::ModelSpec& spec, const schedule::Schedule& schedule,
             const schedule::ActivityGraph& graph,
             const cost::Sizes& sizes) -> Result<cost::Prices> {
    const Result<cost::OperatorCosts> costs = cost::OperatorCosts::Create(machine, spec, options);
    if (!costs) return costs.error();
    return cost::PriceSchedule(schedule, graph, *costs, sizes).prices;
  };
}

strategy::Layout LayoutOf(const AttentionStrategy& attention, const ExpertStrategy& experts) {
  return {.attention_tp = attention.tensor,
          .attention_dp = attention.data,
          .expert_ep = experts.expert,
          .expert_tp = experts.tensor};
}

strategy::Layout LayoutOf(const AttentionStrategy& attention, const ExpertStrategy& experts,
                          const model::ModelSpec& spec, bool divides_rest) {
  strategy::Layout layout = LayoutOf(attention, experts);
  if (!divides_rest || layout.num_ranks() == 1) return layout;
  layout.divides_head = true;
  layout.divides_shared =
      layout.expert_ep == 1 && std::ranges::any_of(spec.layers, [](const model::LayerSpec& layer) {
        return layer.moe && layer.moe->shared_intermediate_size > 0;
      });
  return layout;
}

std::vector<std::vector<strategy::SequenceRows>> Divide(const PhaseStep& step, int num_groups) {
  std::vector<std::vector<strategy::SequenceRows>> groups(num_groups);
  const auto tokens = static_cast<int64_t>(std::llround(step.tokens));
  for (int i = 0; i < step.batch; ++i) {
    groups[i % num_groups].push_back(
        {.first_position = static_cast<int64_t>(std::llround(step.first_position)),
         .num_tokens = tokens,
         .is_expanded = tokens > 1,
         .prompt_length = static_cast<int64_t>(std::llround(step.prompt_length))});
  }
  return groups;
}

Result<PhaseTables> PriceLayers(const LayerCostsQuestion& question, const PhaseStep& step) {
  const size_t num_attention = question.attention.size();
  const size_t num_experts = question.experts.size();
  PhaseTables tables{
      .layer = {.attention = std::vector<double>(num_attention, 0),
                .experts = std::vector<double>(num_experts, 0),
                .between = std::vector(num_attention, std::vector<double>(num_experts, 0))},
      .ends = std::vector<double>(num_attention, 0)};
  const auto num_layers = static_cast<double>(question.spec.num_layers());
  for (const LayerShape& shape : LayerShapesOf(question.spec, 2)) {
    const double share = shape.count / num_layers;
    const bool has_experts = shape.spec.layers.front().moe.has_value();
    for (size_t a = 0; a < num_attention; ++a) {
      // A layer without experts is the same with all strategies of experts.
      SimulatedLayer layer;
      for (size_t e = 0; e < num_experts; ++e) {
        if (e == 0 || has_experts) {
          const Result<SimulatedLayer> simulated =
              SimulateMeanLayer(question, shape.spec,
                                LayoutOf(question.attention[a], question.experts[e], question.spec,
                                         question.divides_rest),
                                step);
          if (!simulated) return simulated.error();
          layer = *simulated;
        }
        // What the experts take with the first strategy of attention stands for all of them; where
        // sequences lie otherwise, the difference goes to what is between.
        if (a == 0) tables.layer.experts[e] += share * layer.experts;
        if (e == 0) {
          tables.layer.attention[a] += share * layer.attention;
          tables.ends[a] = std::max(tables.ends[a], layer.ends);
        }
        tables.layer.between[a][e] += share * layer.seconds;
      }
    }
  }
  for (size_t a = 0; a < num_attention; ++a) {
    for (size_t e = 0; e < num_experts; ++e) {
      tables.layer.between[a][e] -= tables.layer.attention[a] + tables.layer.experts[e];
    }
  }
  return tables;
}

Result<TransitionCost> PriceTransition(const model::ModelSpec& spec, const strategy::Layout& from,
                                       const strategy::Layout& to, double weight_bytes,
                                       const PriceStep& price) {
  TransitionCost cost;
  for (const LayerShape& shape : LayerShapesOf(spec, 1)) {
    const schedule::Schedule moves = strategy::BuildTransition(shape.spec, from, to, weight_bytes);
    if (moves.tasks.empty()) continue;
    std::vector<double> received(moves.num_ranks, 0);
    for (const schedule::Task& task : moves.tasks) {
      for (const schedule::Term& term : task.work.link_bytes) {
        received[term.size.to] += term.factor;
      }
    }
    const schedule::ActivityGraph graph = schedule::BuildActivityGraph(moves);
    const Result<cost::Prices> prices =
        price(shape.spec, moves, graph, [](const schedule::Size&) { return 0.0; });
    if (!prices) return prices.error();
    // Layers move one after the other.
    cost.reshard_seconds += shape.count * simulate::Simulate(moves, graph, *prices).seconds();
    cost.missing_bytes += shape.count * *std::max_element(received.begin(), received.end());
  }
  return cost;
}

}  // namespace convene::planner
