#include "planner/expert_cuts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "cost/expected_sizes.h"
#include "strategy/expert_cuts.h"

namespace convene::planner {
namespace {

using schedule::SizeKind;
using strategy::ChunkCut;
using strategy::Pipeline;

// What the experts of a rank have up to each of some places, evenly from 0 to 1, of the whole.
using Curve = std::vector<double>;

constexpr int kPlaces = 256;

// Added to by each rank: what it has of one kind, by expert.
void AddToCuts(const std::vector<double>& by_expert, Curve& curve) {
  std::vector<double> before(1, 0);
  for (const double one : by_expert) before.push_back(before.back() + one);
  const double all = before.back();
  if (!(all > 0)) return;
  const auto num_experts = static_cast<double>(by_expert.size());
  for (int place = 0; place <= kPlaces; ++place) {
    const double at = num_experts * place / kPlaces;
    const auto whole = std::min(static_cast<size_t>(at), by_expert.size() - 1);
    curve[place] += (before[whole] + (at - static_cast<double>(whole)) * by_expert[whole]) / all;
  }
}

struct Curves {
  Curve flops = Curve(kPlaces + 1, 0);
  Curve sent = Curve(kPlaces + 1, 0);
  Curve returned = Curve(kPlaces + 1, 0);
};

// Sums over all ranks, each expert a chunk of its own.
Curves CurvesOf(const ExpertStep& step, const model::MoeSpec& moe) {
  const strategy::Roles& roles = step.roles;
  const auto num_ranks = static_cast<size_t>(roles.num_ranks());
  cost::ExpectedRouting routing{
      .top_k = moe.top_k,
      .shares = {step.shares.empty() ? cost::UniformShares(moe.num_experts, moe.top_k)
                                     : step.shares},
      .experts = {},
      .rows = std::vector<double>(num_ranks,
                                  double{1} * step.tokens_per_group / roles.attention_parts())};
  for (int rank = 0; rank < roles.num_ranks(); ++rank) {
    const strategy::Part experts = roles.ExpertsOf(rank, moe.num_experts);
    const Pipeline each{.chunks = std::max(1, experts.size)};
    routing.experts.push_back(
        cost::CutIntoChunks(experts.first, strategy::ExpertEnds(each, experts.size)));
  }
  const cost::ExpectedSizes sizes(std::move(routing));
  Curves curves;
  for (int rank = 0; rank < roles.num_ranks(); ++rank) {
    const int other = rank == 0 ? 1 : 0;
    std::vector<double> flops;
    std::vector<double> sent;
    std::vector<double> returned;
    for (int i = 0; i < roles.ExpertsOf(rank, moe.num_experts).size; ++i) {
      flops.push_back(sizes.at({.kind = SizeKind::kSlots, .layer = 0, .chunk = i, .from = rank}));
      sent.push_back(
          sizes.at({.kind = SizeKind::kSent, .layer = 0, .chunk = i, .from = other, .to = rank}));
      returned.push_back(sizes.at(
          {.kind = SizeKind::kReturned, .layer = 0, .chunk = i, .from = rank, .to = other}));
    }
    AddToCuts(flops, curves.flops);
    AddToCuts(sent, curves.sent);
    AddToCuts(returned, curves.returned);
  }
  return curves;
}

// Where the curve, which grows, has reached each of `chunks` equal parts but the last.
std::vector<double> EqualParts(const Curve& curve, int chunks) {
  std::vector<double> cuts;
  for (int chunk = 1; chunk < chunks; ++chunk) {
    const double wanted = curve.back() * chunk / chunks;
    const auto behind = std::lower_bound(curve.begin(), curve.end(), wanted);
    cuts.push_back(static_cast<double>(behind - curve.begin()) / kPlaces);
  }
  return cuts;
}

// The cuts as whole experts of a rank, so that one is not counted twice.
std::vector<double> Rounded(Pipeline pipeline, std::vector<double> cuts, int num_experts) {
  pipeline.cuts = std::move(cuts);
  std::vector<double> rounded;
  for (const int end : strategy::ExpertEnds(pipeline, num_experts)) {
    rounded.push_back(static_cast<double>(end) / num_experts);
  }
  rounded.pop_back();
  return rounded;
}

const model::MoeSpec& MoeOfQuestion(const model::ModelSpec& spec) {
  const auto layer =
      std::ranges::find_if(spec.layers, [](const auto& l) { return l.moe.has_value(); });
  CHECK(layer != spec.layers.end(), "a model without experts");
  return *layer->moe;
}

}  // namespace

std::vector<std::vector<double>> CutsToTry(const ExpertStep& step, Pipeline pipeline) {
  constexpr int kSteps = 4;
  pipeline.cuts.clear();
  const model::MoeSpec& moe = MoeOfQuestion(step.spec);
  const int num_experts = step.roles.expert_split().MostExperts(moe.num_experts);
  const int fewest = step.roles.expert_split().FewestExperts(moe.num_experts);
  std::vector<std::vector<double>> cuts;
  if (pipeline.cut != ChunkCut::kExperts || pipeline.chunks < 2 || pipeline.chunks > fewest ||
      step.roles.num_ranks() == 1) {
    return cuts;
  }
  // Even chunks have no cuts, and the same under another name is nothing to try.
  const auto is_even = [&](const std::vector<double>& tried) {
    Pipeline with_cuts = pipeline;
    with_cuts.cuts = tried;
    return std::ranges::all_of(std::array{num_experts, fewest}, [&](int count) {
      return strategy::ExpertEnds(with_cuts, count) == strategy::ExpertEnds(pipeline, count);
    });
  };
  const Curves curves = CurvesOf(step, moe);
  for (int sent = 0; sent <= kSteps; ++sent) {
    for (int returned = 0; sent + returned <= kSteps; ++returned) {
      Curve mixture(curves.flops.size());
      for (size_t i = 0; i < mixture.size(); ++i) {
        mixture[i] = (kSteps - sent - returned) * curves.flops[i] + sent * curves.sent[i] +
                     returned * curves.returned[i];
      }
      std::vector<double> tried =
          Rounded(pipeline, EqualParts(mixture, pipeline.chunks), num_experts);
      const bool is_new = std::ranges::find(cuts, tried) == cuts.end() && !is_even(tried);
      if (is_new) cuts.push_back(std::move(tried));
    }
  }
  return cuts;
}

PricedPipeline FitCuts(const PipelineQuestion& question, Pipeline pipeline) {
  pipeline.cuts.clear();
  PricedPipeline best = PricePipeline(question, pipeline, question.tokens_per_group);
  const ExpertStep step = {.spec = question.spec,
                           .roles = question.roles,
                           .tokens_per_group = question.tokens_per_group,
                           .shares = question.shares};
  for (std::vector<double>& cuts : CutsToTry(step, pipeline)) {
    pipeline.cuts = std::move(cuts);
    const PricedPipeline priced = PricePipeline(question, pipeline, question.tokens_per_group);
    if (priced.seconds() < best.seconds()) best = priced;
  }
  return best;
}

}  // namespace convene::planner
