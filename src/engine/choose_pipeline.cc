#include "engine/choose_pipeline.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "base/environment.h"
#include "planner/expert_cuts.h"
#include "runtime/measure_ranks.h"
#include "runtime/transformer.h"

namespace convene::engine {

comm::WireFormat WireFormatOf(plan::Wire wire, int num_ranks) {
  switch (wire) {
    case plan::Wire::kAuto:
      return LocalRankFromLauncher().count == num_ranks ? comm::WireFormat::kF32
                                                        : comm::WireFormat::kBf16;
    case plan::Wire::kF32:
      return comm::WireFormat::kF32;
    case plan::Wire::kBf16:
      return comm::WireFormat::kBf16;
    case plan::Wire::kFp8:
      return comm::WireFormat::kE4m3;
  }
  return comm::WireFormat::kBf16;
}
namespace {

// Each rank's own rates; of exchanges, which wait for the slowest rank, that one's.
planner::StepRates Gather(comm::Group& group, const runtime::RankMeasurement& mine) {
  planner::StepRates rates{.ranks = {}};
  for (const auto& bytes :
       group.AllGather(std::as_bytes(std::span(&mine, 1)), "gathering what was measured")) {
    runtime::RankMeasurement found;
    std::memcpy(&found, bytes.data(), sizeof(found));
    const auto most = [](double& value, double their) { value = std::max(value, their); };
    rates.link_bytes_per_second =
        rates.ranks.empty() ? found.link_bytes_per_second
                            : std::min(rates.link_bytes_per_second, found.link_bytes_per_second);
    most(rates.link_latency, found.exchange_seconds);
    most(rates.link_latency_beside, found.exchange_seconds_beside);
    most(rates.link_core_seconds_per_byte, found.link_core_seconds_per_byte);
    rates.ranks.push_back({.cores = found.cores,
                           .flops_per_second = found.flops_per_second,
                           .weight_bytes_per_second = found.weight_bytes_per_second,
                           .rows_per_expert = found.rows_per_expert});
  }
  return rates;
}

bool HasExperts(const model::ModelSpec& spec) {
  return std::any_of(spec.layers.begin(), spec.layers.end(),
                     [](const model::LayerSpec& layer) { return layer.moe.has_value(); });
}

}  // namespace

Result<planner::StepRates> MeasureStepRates(comm::Group& group, weights::WeightStore& weights,
                                            const kernels::KernelSet& kernels,
                                            hardware::ThreadPool& pool,
                                            const runtime::Formats& formats,
                                            memory::Ledger& ledger) {
  const Result<runtime::RankMeasurement> mine =
      runtime::MeasureRank(group, weights, kernels, pool, formats, ledger);
  if (!mine) return mine.error();
  return Gather(group, *mine);
}

Result<ChosenPipeline> ChoosePipeline(const LoadOptions& options, const model::ModelSpec& spec,
                                      weights::WeightStore& weights,
                                      const runtime::Formats& formats, comm::WireFormat wire,
                                      const kernels::KernelSet& kernels, hardware::ThreadPool& pool,
                                      memory::Ledger& ledger) {
  const strategy::Layout& layout = options.plan.layout;
  const int micro_batches = options.plan.pipeline.micro_batches;
  if (layout.num_ranks() == 1 || !HasExperts(spec)) {
    return ChosenPipeline{.pipeline = {.micro_batches = micro_batches}, .words = {}};
  }
  comm::Group& group = *options.group;
  const Result<planner::StepRates> rates =
      MeasureStepRates(group, weights, kernels, pool, formats, ledger);
  if (!rates) return rates.error();
  const planner::PipelineQuestion question{
      .spec = spec,
      .roles = layout,
      .bytes = runtime::Transformer::BytesOf(formats, wire),
      .rates = *rates,
      .tokens_per_rank = double{1} * options.max_step_tokens / layout.attention_tp};
  ChosenPipeline chosen;
  std::array<int32_t, 3> decision = {1, 0, 0};
  if (group.rank() == 0) {
    planner::PipelineChoice choice = planner::ChoosePipeline(question);
    planner::FitCandidates(question, choice);
    chosen.pipeline.cuts = choice.pipeline.cuts;
    const int from_tokens =
        planner::FasterFromTokens(question, choice.pipeline) * layout.num_ranks();
    decision = {choice.pipeline.chunks, static_cast<int32_t>(choice.pipeline.cut), from_tokens};
    chosen.words = planner::Describe(choice, from_tokens);
  }
  const auto as_bytes = std::as_bytes(std::span(decision));
  std::vector<std::byte> told(as_bytes.begin(), as_bytes.end());
  group.Broadcast(0, &told, "telling the pipeline");
  std::memcpy(decision.data(), told.data(), told.size());
  const auto cut_bytes = std::as_bytes(std::span(chosen.pipeline.cuts));
  std::vector<std::byte> cuts(cut_bytes.begin(), cut_bytes.end());
  group.Broadcast(0, &cuts, "telling the cuts of the pipeline");
  chosen.pipeline = {.chunks = decision[0],
                     .cut = static_cast<strategy::ChunkCut>(decision[1]),
                     .overlap = options.plan.pipeline.overlap,
                     .micro_batches = micro_batches,
                     .cuts = std::vector<double>(cuts.size() / sizeof(double))};
  std::memcpy(chosen.pipeline.cuts.data(), cuts.data(), cuts.size());
  chosen.from_tokens = decision[2];
  return chosen;
}

}  // namespace convene::engine
