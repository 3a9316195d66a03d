#include "planner/predict_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "planner/routing_waits.h"
#include "schedule/activity_graph.h"
#include "simulate/simulate.h"
#include "strategy/expert_cuts.h"

namespace convene::planner {
namespace {

using schedule::Size;
using strategy::SequenceRows;

// Rows of a group's sequences, and which of them are wanted, as parts of the group own them.
struct OwnedRows {
  double rows = 0;
  double wanted = 0;
};

OwnedRows RowsOfPart(const std::vector<SequenceRows>& sequences, int part, int parts) {
  int64_t all = 0;
  for (const SequenceRows& sequence : sequences) all += sequence.num_tokens;
  const strategy::Part own = strategy::PartOf(static_cast<int>(all), part, parts);
  OwnedRows owned{.rows = static_cast<double>(own.size)};
  int64_t end = 0;
  for (const SequenceRows& sequence : sequences) {
    end += sequence.num_tokens;
    const int64_t begin = end - std::min(sequence.num_wanted, sequence.num_tokens);
    const int64_t first = std::max<int64_t>(begin, own.first);
    const int64_t last = std::min<int64_t>(end, own.first + own.size);
    owned.wanted += static_cast<double>(std::max<int64_t>(0, last - first));
  }
  return owned;
}

int64_t NumWanted(const std::vector<std::vector<SequenceRows>>& groups) {
  int64_t num_wanted = 0;
  for (const std::vector<SequenceRows>& group : groups) {
    for (const SequenceRows& sequence : group) {
      num_wanted += std::min(sequence.num_wanted, sequence.num_tokens);
    }
  }
  return num_wanted;
}

const model::MoeSpec* MoeOf(const std::vector<model::LayerSpec>& layers) {
  for (const model::LayerSpec& layer : layers) {
    if (layer.moe) return &*layer.moe;
  }
  return nullptr;
}

void SetExperts(const StepQuestion& question, cost::ExpectedRouting& routing) {
  const model::MoeSpec* moe = MoeOf(question.layers());
  if (moe == nullptr) return;
  routing.top_k = moe->top_k;
  routing.shares = question.shares;
  if (routing.shares.empty()) routing.shares = {cost::UniformShares(moe->num_experts, moe->top_k)};
  strategy::Pipeline pipeline = question.options.pipeline;
  if (const auto& paging = question.options.paging) {
    pipeline = {.chunks = paging->chunks, .cut = strategy::ChunkCut::kExperts};
  }
  const bool by_experts = pipeline.chunks > 1 && pipeline.cut == strategy::ChunkCut::kExperts;
  routing.token_chunks = by_experts ? 1 : pipeline.chunks;
  const strategy::Roles& roles = question.options.roles;
  for (int rank = 0; rank < roles.num_ranks(); ++rank) {
    const strategy::Part experts = roles.ExpertsOf(rank, moe->num_experts);
    routing.experts.push_back(cost::CutIntoChunks(
        experts.first,
        strategy::ExpertEnds(by_experts ? pipeline : strategy::Pipeline{}, experts.size)));
  }
}

}  // namespace

cost::ExpectedSizes ExpectSizes(const StepQuestion& question) {
  const strategy::Roles& roles = question.options.roles;
  cost::ExpectedRouting routing;
  routing.micro_batches = question.options.pipeline.micro_batches;
  routing.rows_pass_through = roles.num_stages() > 1;
  SetExperts(question, routing);
  for (int rank = 0; rank < roles.num_ranks(); ++rank) {
    const auto& attention = roles.of(rank).attention;
    if (!attention) {
      for (auto* values : {&routing.rows, &routing.tokens, &routing.wanted}) values->push_back(0);
      continue;
    }
    const std::vector<SequenceRows>& sequences = question.groups[attention->group];
    const OwnedRows own = RowsOfPart(sequences, attention->part, attention->parts);
    routing.rows.push_back(own.rows);
    routing.wanted.push_back(own.wanted);
    routing.tokens.push_back(
        strategy::CountAttention(schedule::SizeKind::kTokens, false, {}, sequences));
  }
  if (question.options.prunes_last_layer && !question.is_encoder)
    routing.pruned_layer = question.spec.num_layers() - 1;
  routing.attention = [roles, groups = question.groups,
                       &layers = question.layers()](const Size& size) {
    const auto& attention = roles.of(size.from).attention;
    if (!attention) return 0.0;
    const strategy::AttentionShape shape{
        .window = size.layer >= 0 ? layers[size.layer].attention.window : 0,
        // An encoder's tokens see their whole input.
        .causal = layers.empty() || layers.front().attention.causal};
    return strategy::CountAttention(size.kind, size.wanted, shape, groups[attention->group]);
  };
  return cost::ExpectedSizes(std::move(routing));
}

Result<PredictedStep> PredictStep(const StepQuestion& question, const StepPricer& pricer) {
  if (std::ssize(question.groups) != question.options.roles.num_groups()) {
    return Error{fmt::format("a step for {} groups of ranks has the sequences of {}",
                             question.options.roles.num_groups(), question.groups.size())};
  }
  PredictedStep step;
  strategy::StepOptions options = question.options;
  options.head_chunks = strategy::HeadChunksOf(options.roles, NumWanted(question.groups));
  step.schedule = question.is_encoder ? strategy::BuildEncoderStep(question.spec, options)
                                      : strategy::BuildStep(question.spec, options);
  const cost::ExpectedSizes expected = ExpectSizes(question);
  const cost::Sizes sizes = [&](const Size& size) { return expected.at(size); };
  const schedule::ActivityGraph graph = schedule::BuildActivityGraph(step.schedule);
  const Result<SchedulePrices> priced = pricer.Price(question.spec, step.schedule, graph, sizes);
  if (!priced) return priced.error();
  step.timeline = simulate::Simulate(step.schedule, graph, priced->prices);
  step.once_seconds = priced->once_seconds;
  Result<std::vector<double>> waits = RoutingWaits(question, pricer);
  if (!waits) return waits.error();
  step.routing_waits = *std::move(waits);
  step.seconds = std::accumulate(step.routing_waits.begin(), step.routing_waits.end(),
                                 step.timeline.seconds() + priced->once_seconds);
  step.extrapolated_share = priced->extrapolated_share;
  return step;
}

cost::Outline OutlineOf(const PredictedStep& step) {
  return {.seconds = step.seconds,
          .by_kind = cost::SecondsOnPath(step.schedule, step.timeline),
          .overlapped_seconds = cost::Overlaps(step.schedule) ? step.seconds : 0,
          .extrapolated_share = step.extrapolated_share};
}

}  // namespace convene::planner
