#include "planner/routing_waits.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "planner/drawn_sizes.h"
#include "planner/layer_shapes.h"
#include "schedule/activity_graph.h"
#include "simulate/simulate.h"

namespace convene::planner {
namespace {

using schedule::Size;

// Of one layer.
Result<double> WaitOf(const StepQuestion& question, const cost::ExpertShares& shares, int top_k,
                      int num_draws, const StepPricer& pricer) {
  const schedule::Schedule schedule = strategy::BuildStep(question.spec, question.options);
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(schedule);
  const cost::ExpectedSizes expected = ExpectSizes(question);
  const auto seconds = [&](const cost::Sizes& sizes) -> Result<double> {
    const Result<SchedulePrices> priced = pricer.Price(question.spec, schedule, graph, sizes);
    if (!priced) return priced.error();
    return simulate::Simulate(schedule, graph, priced->prices).seconds();
  };
  const Result<double> even = seconds([&](const Size& size) { return expected.at(size); });
  if (!even) return even.error();
  double mean = 0;
  for (int draw = 0; draw < num_draws; ++draw) {
    const DrawnSizes drawn(expected, question.options.roles, shares, top_k,
                           static_cast<uint32_t>(draw));
    const Result<double> uneven = seconds([&](const Size& size) { return drawn.at(size); });
    if (!uneven) return uneven.error();
    mean += *uneven / num_draws;
  }
  return std::max(0.0, mean - *even);
}

// All that the wait of the question's one layer depends on besides the pricer. Neither chunks nor
// micro-batches are.
std::vector<double> KeyOf(const StepQuestion& question, const model::MoeSpec& moe) {
  const strategy::StepOptions& options = question.options;
  const model::AttentionSpec& heads = question.spec.layers.front().attention;
  const strategy::ElementBytes& bytes = options.bytes;
  std::vector<double> key = {bytes.weights,    bytes.activations, bytes.kv,
                             bytes.dispatched, bytes.returned,    bytes.sums};
  for (const int number :
       {question.spec.hidden_size, heads.num_heads, heads.num_kv_heads, heads.head_dim,
        heads.value_dim, heads.window, heads.latent ? heads.latent->kv_rank : 0, moe.num_experts,
        moe.top_k, moe.intermediate_size, moe.shared_intermediate_size}) {
    key.push_back(number);
  }
  for (int rank = 0; rank < options.roles.num_ranks(); ++rank) {
    const strategy::Role& role = options.roles.of(rank);
    const strategy::AttentionRole none{.group = -1, .parts = 0};
    const strategy::AttentionRole& attention = role.attention ? *role.attention : none;
    const strategy::Part experts = options.roles.ExpertsOf(rank, moe.num_experts);
    for (const int number :
         {attention.group, attention.part, attention.parts, attention.expand_from_tokens,
          experts.first, experts.size, role.experts ? role.experts->slice : -1}) {
      key.push_back(number);
    }
  }
  for (const auto& group : question.groups) {
    key.push_back(static_cast<double>(group.size()));
    for (const strategy::SequenceRows& rows : group) {
      for (const int64_t number :
           {rows.first_position, rows.num_tokens, rows.num_wanted, int64_t{rows.is_expanded},
            rows.prompt_length, rows.input_length}) {
        key.push_back(static_cast<double>(number));
      }
    }
  }
  const cost::ExpertShares& shares = question.shares.front();
  key.insert(key.end(), shares.begin(), shares.end());
  return key;
}

// WaitOf, or what it said before. Where experts are read or moved beside the step it is found anew.
Result<double> KnownWaitOf(const StepQuestion& question, const model::MoeSpec& moe, int num_draws,
                           const StepPricer& pricer) {
  const strategy::StepOptions& options = question.options;
  const auto find = [&] {
    return WaitOf(question, question.shares.front(), moe.top_k, num_draws, pricer);
  };
  if (options.paging || options.loads || options.spilled_kv) return find();
  const auto [known, is_new] = pricer.known_waits().try_emplace(KeyOf(question, moe));
  if (!is_new) return known->second;
  Result<double> found = find();
  if (found) {
    known->second = *found;
  } else {
    pricer.known_waits().erase(known);
  }
  return found;
}

}  // namespace

Result<std::vector<double>> RoutingWaits(const StepQuestion& question, const StepPricer& pricer) {
  std::vector<double> waits(question.layers().size(), 0);
  double rows = 0;
  for (const auto& group : question.groups) {
    for (const strategy::SequenceRows& each : group) rows += static_cast<double>(each.num_tokens);
  }
  // A layer of an encoder waits as it would among a decoder's.
  for (const LayerShape& shape : LayerShapesOf(question.spec, question.layers(), 1)) {
    const std::optional<model::MoeSpec>& moe = shape.spec.layers.front().moe;
    if (!moe) continue;
    const int num_draws = NumRoutingDraws(rows, moe->top_k, question.options.roles);
    if (num_draws == 0) continue;
    StepQuestion of_layer{
        .spec = shape.spec, .options = question.options, .groups = question.groups};
    of_layer.options.pipeline = {};
    of_layer.options.pipeline = strategy::PipelineOf(of_layer.options);
    of_layer.options.prunes_last_layer = false;
    // Layers of one shape that concentrate their tokens otherwise wait otherwise.
    const bool has_shares_by_layer = question.shares.size() > 1;
    std::optional<double> wait;
    for (size_t layer = 0; layer < waits.size(); ++layer) {
      if (!AreAlike(question.layers()[layer], shape.spec.layers.front())) continue;
      if (!wait || has_shares_by_layer) {
        of_layer.shares = {question.shares.empty()
                               ? cost::UniformShares(moe->num_experts, moe->top_k)
                               : question.shares.at(has_shares_by_layer ? layer : 0)};
        const Result<double> found = KnownWaitOf(of_layer, *moe, num_draws, pricer);
        if (!found) return found.error();
        wait = *found;
      }
      waits[layer] = *wait;
    }
  }
  return waits;
}

}  // namespace convene::planner
