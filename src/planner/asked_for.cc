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

// Micro-batches, chunks, strategy and order together.
Status CheckTurns(const Constraints& constraints) {
  const bool disaggregates =
      constraints.disaggregates || (constraints.layout && constraints.layout->disaggregates);
  if (!disaggregates && (constraints.strategy || constraints.order)) {
    return Error{fmt::format(
        "{} is of layouts whose attention and experts are on different ranks: add --disaggregate, "
        "or leave it out",
        constraints.strategy ? "--strategy" : "--order")};
  }
  if (constraints.disaggregates && constraints.decode_experts) {
    return Error{
        "ranks that have experts alone have the same ones in decode: leave --decode-experts out, "
        "or --disaggregate"};
  }
  plan::Plan plan;
  if (constraints.pipeline) plan.pipeline = *constraints.pipeline;
  if (disaggregates && plan.pipeline.chunks > 1 &&
      plan.pipeline.cut == strategy::ChunkCut::kExperts) {
    return Error{fmt::format(
        "chunks are cut by tokens where attention and experts are on different ranks: use "
        "--pipeline {}:tokens",
        plan.pipeline.chunks)};
  }
  if (!constraints.strategy) return {};
  if (constraints.micro_batches) plan.pipeline.micro_batches = *constraints.micro_batches;
  if (constraints.order) plan.pipeline.order = *constraints.order;
  return plan::SetStrategy(*constraints.strategy, &plan);
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
  if (Status fits = plan::CheckDisaggregation(plan); !fits) return fits;
  return plan::CheckPipeline(plan.pipeline);
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
