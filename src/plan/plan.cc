#include "plan/plan.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>

#include "base/digest.h"

namespace convene::plan {
namespace {

// Of layers on different ranks.
Status CheckStages(const Plan& plan) {
  if (plan.decode) {
    return Error{
        "ranks that have some of the layers each have all experts of these in decode, too: leave "
        "--decode-experts (decode in the plan) out, or layers=pp"};
  }
  if (plan.pipeline.chunks > 1 || plan.auto_pipeline) {
    return Error{
        "experts are not cut into chunks where each rank has some of the layers, since nothing of "
        "a layer goes between ranks: give --pipeline 1 (chunks of the plan's pipeline), and "
        "--micro-batches"};
  }
  if (Rounds(plan.wire)) {
    return Error{fmt::format(
        "rows between ranks that have some of the layers each are never rounded ({}): use --wire "
        "f32",
        Name(plan.wire))};
  }
  return {};
}

}  // namespace

Status SetStrategy(DisaggregatedStrategy chosen, Plan* plan) {
  strategy::Pipeline& pipeline = plan->pipeline;
  pipeline.dispatch_after_shared = chosen != DisaggregatedStrategy::kFine;
  if (chosen == DisaggregatedStrategy::kFine) return {};
  if (chosen == DisaggregatedStrategy::kNaive && pipeline.micro_batches > 1) {
    return Error{
        fmt::format("the strategy naive has one micro-batch, not {}: choose pppipe or fine",
                    pipeline.micro_batches)};
  }
  if (pipeline.chunks > 1) {
    return Error{fmt::format("the strategy {} has one chunk, not {}: choose fine", Name(chosen),
                             pipeline.chunks)};
  }
  if (pipeline.order == strategy::AttentionOrder::kAass) {
    return Error{
        fmt::format("the strategy {} has a shared expert directly behind attention, which "
                    "is no order aass: choose fine",
                    Name(chosen))};
  }
  return {};
}

Status CheckTransition(const Plan& plan) {
  const PhaseChange& change = plan.phase_change;
  if (change.transition == Transition::kReshard || !change.keeps_both) return {};
  return Error{
      "with both divisions of the experts in memory (\"keep\": \"both\") nothing comes from an "
      "int4 "
      "backup: leave the transition int4 out, or keep one"};
}

Status CheckLayout(const Plan& plan) {
  const strategy::Pipeline& pipeline = plan.pipeline;
  if (plan.layout.stages > 1) {
    if (Status fits = CheckStages(plan); !fits) return fits;
  }
  if (plan.cut_from_tokens > 0 && (plan.layout.disaggregates || plan.auto_pipeline)) {
    return Error{
        "from which number of tokens on steps are cut is chosen with an automatic pipeline, and "
        "said by lines where attention and experts are on different ranks: leave from_tokens out"};
  }
  if (plan.layout.divides_shared &&
      (plan.changes_layout() || pipeline.chunks > 1 || plan.auto_pipeline)) {
    return Error{
        "slices of shared experts are of layouts with the same experts in both phases, and without "
        "chunks: leave --decode-experts (decode in the plan) out and give --pipeline 1 (chunks of "
        "the plan's pipeline), or leave shared= out"};
  }
  if (!plan.lines.empty() &&
      !(plan.layout.disaggregates && StrategyOf(pipeline) == DisaggregatedStrategy::kFine)) {
    return Error{
        "lines are of plans with the strategy fine and a layout such as "
        "attention=dp1,experts=ep2,disaggregate: leave them out, or give both"};
  }
  if (!plan.layout.disaggregates) {
    const bool is_usual =
        pipeline.order == strategy::AttentionOrder::kAsas && !pipeline.dispatch_after_shared;
    if (is_usual) return {};
    return Error{
        "a strategy, and an order of attention and shared experts, is of layouts whose attention "
        "and experts are on different ranks: add --disaggregate, or leave it out"};
  }
  if (plan.decode) {
    return Error{
        "ranks that have experts alone have the same ones in decode: leave --decode-experts "
        "(decode in the plan) out, or --disaggregate"};
  }
  if (plan.auto_pipeline) {
    return Error{
        "the number of chunks is not chosen automatically where attention and experts are on "
        "different ranks: give it, for instance --pipeline 2:tokens"};
  }
  if (pipeline.cut == strategy::ChunkCut::kExperts) {
    return Error{fmt::format(
        "chunks are cut by tokens where attention and experts are on different ranks: use "
        "--pipeline {}:tokens (\"cut\": \"tokens\" in the plan's pipeline)",
        pipeline.chunks)};
  }
  if (!pipeline.overlap) {
    return Error{
        "--no-overlap is of layouts without --disaggregate; there the strategy naive is the one "
        "in which nothing overlaps"};
  }
  return {};
}

std::string ModelHash(const nlohmann::json& configuration) {
  const std::string text = configuration.dump();  // keys in order
  return fmt::format("{:016x}", DigestOf(std::as_bytes(std::span(text))));
}

Status CheckMadeFor(const Plan& plan, const std::string& model_hash, int num_ranks) {
  if (!plan.made_for) return {};
  const MadeFor& made_for = *plan.made_for;
  if (made_for.model != model_hash) {
    return Error{
        fmt::format("the plan was made for another model (its configuration has the hash {}, this "
                    "one's {}): make one for this model with convene plan",
                    made_for.model, model_hash)};
  }
  if (made_for.num_ranks > num_ranks) {
    return Error{fmt::format(
        "the plan was made for {} ranks, and there are {}: start {}, or make another plan with "
        "convene plan",
        made_for.num_ranks, num_ranks, made_for.num_ranks)};
  }
  return {};
}

}  // namespace convene::plan
