// A candidate in words: all of its plan that differs from the usual one.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "planner/disaggregated_pipeline.h"
#include "planner/plan_question.h"

namespace convene::planner {
namespace {

// "naive", "fine with 2 micro-batches and 4 chunks, ASAS", or of what has lines, "micro-batches,
// chunks and order solved for each step, of at most 2 micro-batches and 4 chunks"
std::string WordsOfStrategy(const plan::Plan& plan) {
  const strategy::Pipeline& pipeline = plan.pipeline;
  if (!plan.lines.empty()) {
    return "micro-batches, chunks and order solved for each step, of at most " +
           WordsOfParts(pipeline.micro_batches, pipeline.chunks);
  }
  const plan::DisaggregatedStrategy chosen = plan::StrategyOf(pipeline);
  if (chosen == plan::DisaggregatedStrategy::kNaive) return std::string(plan::Name(chosen));
  return fmt::format("{} with {}", plan::Name(chosen),
                     Words(DisaggregatedPipeline{.micro_batches = pipeline.micro_batches,
                                                 .chunks = pipeline.chunks,
                                                 .order = pipeline.order}));
}

// ", keys and values of 256 sequences on the disk but for 64 blocks"
std::string WordsOfSpilled(const plan::Plan& plan) {
  const plan::SpilledKv& spilled = *plan.spilled_kv;
  std::string text = fmt::format(", keys and values of {} on the disk",
                                 FormatCount(static_cast<uint64_t>(plan.sequences), "sequence"));
  if (spilled.blocks_in_memory == 0) return text;
  return text + fmt::format(" but for {}",
                            FormatCount(static_cast<uint64_t>(spilled.blocks_in_memory), "block"));
}

}  // namespace

std::string Describe(const Candidate& candidate) {
  const RankSetup& setup = candidate.setup;
  const plan::Plan& plan = candidate.plan;
  std::string text =
      fmt::format("{} x {}, {}", FormatCount(static_cast<uint64_t>(setup.num_ranks), "rank"),
                  FormatCount(static_cast<uint64_t>(setup.num_threads), "thread"), setup.weights);
  if (setup.int8_kv) text += ", int8 KV cache";
  if (plan.experts_in_memory) {
    text += fmt::format(", {} {}in memory and the others read from the disk",
                        FormatCount(static_cast<uint64_t>(*plan.experts_in_memory), "expert"),
                        setup.num_ranks > 1 ? "of each " : "");
  }
  if (plan.spilled_kv) text += WordsOfSpilled(plan);
  if (plan.step_tokens > 0) {
    text += fmt::format(", steps of at most {}",
                        FormatCount(static_cast<uint64_t>(plan.step_tokens), "token"));
  }
  if (setup.num_ranks == 1) return text;
  text += ", " + plan::ToText(plan.layout);
  if (plan.decode) {
    text += ", decode experts=" + plan::ExpertsText(*plan.decode);
    if (plan.phase_change.keeps_both) text += ", both in memory";
    if (plan.loads_experts()) text += " from an int4 backup";
  }
  if (plan.layout.disaggregates) text += ", " + WordsOfStrategy(plan);
  if (plan.pipeline.chunks > 1 && !plan.layout.disaggregates) {
    text += fmt::format(", {} chunks of {}", plan.pipeline.chunks,
                        plan.pipeline.cut == strategy::ChunkCut::kTokens ? "tokens" : "experts");
    if (!plan.pipeline.cuts.empty()) {
      std::vector<int> percent;
      for (const double cut : plan.pipeline.cuts)
        percent.push_back(static_cast<int>(std::lround(100 * cut)));
      text += fmt::format(" cut at {} %", fmt::join(percent, ", "));
    }
  }
  if (plan.pipeline.micro_batches > 1 && !plan.layout.disaggregates) {
    text += fmt::format(", {} micro-batches", plan.pipeline.micro_batches);
  }
  if (plan.cut_from_tokens > 0) {
    text += fmt::format(" in steps of {} and more",
                        FormatCount(static_cast<uint64_t>(plan.cut_from_tokens), "token"));
  }
  if (!plan.pipeline.overlap) text += ", no overlap";
  if (plan.comm_budget > 0) {
    text += fmt::format(", {} multiprocessors or threads left to exchanges", plan.comm_budget);
  }
  if (plan::Rounds(plan.wire)) {
    text += fmt::format(", {} between ranks", plan::Name(plan.wire));
  }
  return text;
}

}  // namespace convene::planner
