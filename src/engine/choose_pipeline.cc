#include "engine/choose_pipeline.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "comm/agree.h"
#include "engine/known_costs.h"
#include "planner/one_process.h"
#include "planner/pipeline_degree.h"
#include "runtime/transformer.h"

namespace convene::engine {

comm::WireFormat WireFormatOf(plan::Wire wire, int num_ranks) {
  switch (wire) {
    case plan::Wire::kAuto:
      // Of all that were started, of which some may idle (fewer_ranks.h): hosts may have unlike
      // numbers of ranks, and all must come to the same answer.
      return LocalRankFromLauncher().count >= std::max(num_ranks, RankFromLauncher().size)
                 ? comm::WireFormat::kF32
                 : comm::WireFormat::kBf16;
    case plan::Wire::kF32:
      return comm::WireFormat::kF32;
    case plan::Wire::kBf16:
      return comm::WireFormat::kBf16;
    case plan::Wire::kFp8:
    case plan::Wire::kFp8Both:
      return comm::WireFormat::kE4m3;
  }
  return comm::WireFormat::kBf16;
}

bool ReturnsFp8(plan::Wire wire) { return wire == plan::Wire::kFp8Both; }

namespace {

bool HasExperts(const model::ModelSpec& spec) {
  return std::any_of(spec.layers.begin(), spec.layers.end(),
                     [](const model::LayerSpec& layer) { return layer.moe.has_value(); });
}

// What rank 0 says. *Collective.*
ChosenPipeline TellChoice(comm::Group& group, const ChosenPipeline& mine) {
  const nlohmann::json told = {{"chunks", mine.pipeline.chunks},
                               {"cut", static_cast<int>(mine.pipeline.cut)},
                               {"cuts", mine.pipeline.cuts},
                               {"micro_batches", mine.pipeline.micro_batches},
                               {"chunks_from", mine.chunks_from_tokens},
                               {"micro_batches_from", mine.micro_batches_from_tokens}};
  const std::string text = told.dump();
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  group.Broadcast(0, &bytes, "telling the pipeline");
  const nlohmann::json heard =
      nlohmann::json::parse(reinterpret_cast<const char*>(bytes.data()),
                            reinterpret_cast<const char*>(bytes.data() + bytes.size()));
  return {.pipeline = {.chunks = heard["chunks"].get<int>(),
                       .cut = static_cast<strategy::ChunkCut>(heard["cut"].get<int>()),
                       .micro_batches = heard["micro_batches"].get<int>(),
                       .cuts = heard["cuts"].get<std::vector<double>>()},
          .chunks_from_tokens = heard["chunks_from"].get<int>(),
          .micro_batches_from_tokens = heard["micro_batches_from"].get<int>(),
          .words = mine.words};
}

// A line that begins a new one, or nothing: one process is not known, or not surely faster.
std::string SayOneProcess(const planner::PipelineQuestion& question,
                          const strategy::Pipeline& chosen, const KnownCosts& known,
                          int num_sequences) {
  if (!known.one_process) return {};
  const planner::OneProcessQuestion compared{
      .spec = question.spec,
      .options = {.roles = question.roles, .pipeline = chosen, .bytes = question.bytes},
      .costs = question.costs,
      .one_process = *known.one_process,
      .prompt_tokens = question.tokens_per_group,
      .num_sequences = std::max(num_sequences, question.roles.num_groups())};
  const Result<planner::OneProcess> found = planner::CompareWithOneProcess(compared);
  if (!found || !found->is_worth_a_word()) return {};
  return "\n" + planner::Describe(*found, compared);
}

// On rank 0.
Result<ChosenPipeline> Choose(const planner::PipelineQuestion& question, const KnownCosts& known,
                              int num_sequences) {
  const Result<planner::PipelineChoice> choice = planner::ChoosePipeline(question);
  if (!choice) return choice.error();
  ChosenPipeline chosen{.pipeline = choice->chosen.pipeline};
  const bool is_plain = chosen.pipeline == choice->plain.pipeline;
  const int from_tokens =
      is_plain ? 0
               : planner::FasterFromTokens(question, chosen.pipeline) * question.roles.num_groups();
  chosen.chunks_from_tokens = from_tokens;
  // One number of micro-batches that was asked for holds for all steps.
  if (question.micro_batches == 1) chosen.micro_batches_from_tokens = from_tokens;
  chosen.words = planner::Describe(*choice, from_tokens) + "; " + known.source +
                 SayOneProcess(question, chosen.pipeline, known, num_sequences);
  return chosen;
}

// With the attention that runs in place of the other one.
KnownCosts WithCache(KnownCosts known, bool int8_kv) {
  if (!int8_kv) return known;
  known.ranks.SwapCaches();
  if (known.one_process) known.one_process->SwapCaches();
  return known;
}

}  // namespace

Result<ChosenPipeline> ChoosePipeline(const LoadOptions& options, const model::ModelSpec& spec,
                                      const runtime::Formats& formats,
                                      const kernels::KernelSet& kernels, hardware::ThreadPool& pool,
                                      memory::Ledger& ledger) {
  const strategy::Layout& layout = options.plan.layout;
  const strategy::Pipeline& given = options.plan.pipeline;
  if (layout.num_ranks() == 1 || layout.stages > 1 || !HasExperts(spec) || !options.step_costs ||
      !given.overlap) {
    return ChosenPipeline{
        .pipeline = {.overlap = given.overlap, .micro_batches = given.micro_batches}, .words = {}};
  }
  comm::Group& group = *options.group;
  const comm::WireFormat wire = WireFormatOf(options.plan.wire, layout.num_ranks());
  const bool int8_kv = formats.kv == kernels::KvFormat::kInt8;
  Result<KnownCosts> found = options.step_costs({.group = group,
                                                 .pool = pool,
                                                 .kernels = kernels,
                                                 .ledger = ledger,
                                                 .weights = formats.weights.matrices,
                                                 .wire = wire,
                                                 .int8_kv = int8_kv});
  if (!found) return found.error();
  const KnownCosts known = WithCache(*std::move(found), int8_kv);
  Result<ChosenPipeline> chosen = ChosenPipeline{};
  if (group.rank() == 0) {
    chosen = Choose(
        {.spec = spec,
         .roles = layout,
         .bytes = runtime::Transformer::BytesOf(spec, formats, wire, ReturnsFp8(options.plan.wire)),
         .costs = known.ranks,
         .tokens_per_group = options.max_step_tokens,
         .micro_batches = given.micro_batches},
        known, options.max_sequences);
  }
  const Status mine = chosen ? Status() : Status(chosen.error());
  if (const Status all = comm::AgreeOnSuccess(group, mine); !all) return all.error();
  return TellChoice(group, *chosen);
}

}  // namespace convene::engine
