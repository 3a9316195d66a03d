#include "planner/asked_for.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/units.h"

namespace convene::planner {
namespace {

// What was asked for, of which one rank has nothing.
std::vector<std::string> OfSeveralRanks(const Constraints& constraints) {
  std::vector<std::string> words;
  if (constraints.disaggregates) words.emplace_back("ranks for experts alone");
  if (constraints.pipeline && constraints.pipeline->chunks > 1) words.emplace_back("chunks");
  if (constraints.micro_batches.value_or(1) > 1) words.emplace_back("micro-batches");
  if (constraints.wire && plan::Rounds(*constraints.wire)) {
    words.emplace_back("rows between ranks");
  }
  return words;
}

// Of any rank and layer.
int MostExpertsOfARank(const model::ModelSpec& spec, const strategy::Layout& layout) {
  const strategy::Roles roles = layout;
  int most = 0;
  for (const model::LayerSpec& layer : spec.layers) {
    if (!layer.moe) continue;
    for (int share = 0; share < roles.expert_split().num_shares(); ++share) {
      most = std::max(
          most, static_cast<int>(roles.expert_split().experts(share, layer.moe->num_experts).size));
    }
  }
  return most;
}

// What was asked of ranks with attention or experts alone, as of a plan that has it.
Status CheckTurns(const Constraints& constraints) {
  const bool disaggregates =
      constraints.disaggregates || (constraints.layout && constraints.layout->disaggregates);
  if (!disaggregates) {
    if (!constraints.strategy && !constraints.order) return {};
    return Error{fmt::format(
        "{} is of layouts whose attention and experts are on different ranks: add --disaggregate, "
        "or leave it out",
        constraints.strategy ? "--strategy" : "--order")};
  }
  plan::Plan plan{.layout = constraints.layout.value_or(strategy::Layout{.disaggregates = true})};
  if (constraints.decode_experts) plan.decode = plan.layout;
  if (constraints.pipeline) plan.pipeline = *constraints.pipeline;
  if (constraints.micro_batches) plan.pipeline.micro_batches = *constraints.micro_batches;
  if (constraints.order) plan.pipeline.order = *constraints.order;
  if (constraints.strategy) {
    if (Status set = plan::SetStrategy(*constraints.strategy, &plan); !set) return set;
  }
  return plan::CheckLayout(plan);
}

}  // namespace

Status CheckConstraints(const PlanQuestion& question) {
  const Constraints& constraints = question.constraints;
  if (Status fits = CheckTurns(constraints); !fits) return fits;
  if (!constraints.layout) return {};
  plan::Plan plan{.layout = *constraints.layout};
  const int ranks = plan.layout.num_ranks();
  const int there = constraints.num_ranks.value_or(question.num_ranks);
  if (constraints.num_ranks ? ranks != there : ranks > there) {
    return Error{
        fmt::format("the layout {} is for {}, and there {} {}: take so many (--ranks), or "
                    "another layout",
                    plan::ToText(plan.layout), FormatCount(static_cast<uint64_t>(ranks), "rank"),
                    there == 1 ? "is" : "are", there)};
  }
  if (constraints.pipeline) plan.pipeline = *constraints.pipeline;
  if (constraints.micro_batches) plan.pipeline.micro_batches = *constraints.micro_batches;
  if (constraints.decode_experts) {
    const Status parsed = plan::ParseDecodeExperts(*constraints.decode_experts, &plan);
    if (!parsed) return parsed;
    if (!plan.changes_layout()) {
      return Error{
          fmt::format("the layout {} divides the experts as {} in decode anyway: leave "
                      "--decode-experts out, or give another division",
                      plan::ToText(plan.layout), *constraints.decode_experts)};
    }
  }
  if (constraints.wire) plan.wire = *constraints.wire;
  if (Status sense = plan::CheckPipeline(plan); !sense) return sense;
  return plan.layout.disaggregates ? Status() : plan::CheckLayout(plan);
}

void RejectUnasked(PlanSearch& search) {
  const PlanQuestion& question = search.question();
  const std::vector<std::string> of_several = OfSeveralRanks(question.constraints);
  const auto& pipeline = question.constraints.pipeline;
  const bool cuts_experts =
      pipeline && pipeline->chunks > 1 && pipeline->cut == strategy::ChunkCut::kExperts;
  for (Candidate& candidate : search.candidates()) {
    if (!candidate.rejected_by.empty()) continue;
    if (candidate.setup.num_ranks == 1) {
      if (of_several.empty()) continue;
      search.Reject(candidate, fmt::format("one rank has no {}, of which something was asked for",
                                           fmt::join(of_several, ", ")));
      continue;
    }
    if (question.constraints.disaggregates && !candidate.plan.layout.disaggregates) {
      search.Reject(candidate, "attention and experts on different ranks were asked for");
      continue;
    }
    if (!cuts_experts) continue;
    const int experts = MostExpertsOfARank(question.spec, candidate.plan.layout);
    if (experts >= pipeline->chunks) continue;
    search.Reject(candidate, fmt::format("a rank has at most {} of a layer, which are no {} chunks",
                                         FormatCount(static_cast<uint64_t>(experts), "expert"),
                                         pipeline->chunks));
  }
}

}  // namespace convene::planner
