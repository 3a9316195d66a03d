#include "engine/plan_question.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "device/cpu/cpu_device.h"
#include "engine/choose_pipeline.h"
#include "engine/paged_memory.h"
#include "engine/rank_options.h"
#include "runtime/spilled_kv.h"
#include "runtime/transformer.h"
#include "weights/packed_directory.h"
#include "weights/page_index.h"
#include "weights/share.h"

namespace convene::engine {
namespace {

// With float32 weights the cache is in float32, whatever is asked for.
runtime::Formats FormatsOf(const std::string& weights, bool int8_kv) {
  const auto format = kernels::WeightFormatFromName(weights);
  CHECK(format.has_value(), "{} is no format", weights);
  runtime::Formats formats = runtime::DefaultFormats(*format);
  if (int8_kv && formats.kv == kernels::KvFormat::kBf16) formats.kv = kernels::KvFormat::kInt8;
  return formats;
}

runtime::Formats FormatsOf(const planner::RankSetup& setup) {
  return FormatsOf(setup.weights, setup.int8_kv);
}

planner::RankMemory RankMemoryOf(const MemoryPlan& plan) {
  return {.weights_bytes = plan.weights_bytes(),
          .kv_bytes = plan.kv_bytes(),
          .working_bytes = plan.working_bytes()};
}

std::set<int> AllRanks(const strategy::Layout& layout) {
  std::set<int> all;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) all.insert(rank);
  return all;
}

// Of what each has, where that is known of both.
bool TakesMore(const planner::RankMemory& one, const planner::RankMemory& other) {
  if (one.limit_bytes == 0 || other.limit_bytes == 0) return one.total() > other.total();
  return static_cast<double>(one.total()) / static_cast<double>(one.limit_bytes) >
         static_cast<double>(other.total()) / static_cast<double>(other.limit_bytes);
}

// Ranks of which one needs the most memory: rank 0, which has the head, one with attention, and of
// the shares of the experts the largest, the last of those that differ by one. Of layers, which are
// not all alike, any may.
std::set<int> LargestRanks(const strategy::Layout& layout) {
  const strategy::Roles roles = layout;
  if (roles.num_stages() > 1) return AllRanks(layout);
  const std::vector<int>& weights = layout.expert_weights;
  int share = layout.expert_ep - 1;
  for (int i = layout.expert_ep - 1; i >= 0 && !weights.empty(); --i) {
    if (weights[static_cast<size_t>(i)] > weights[static_cast<size_t>(share)]) share = i;
  }
  return {0, roles.RankOfPart(0, 0), roles.RankOfSlice(share, layout.expert_tp - 1)};
}

// What so many sequences of the work that run together ask of a rank.
LoadOptions OptionsOf(const BatchWork& work, const plan::Plan& plan, int batch, int step_tokens) {
  BatchWork together = work;
  together.num_requests = batch;
  return {.context = std::max(2, work.longest),
          .max_step_tokens = plan.step_tokens_for(batch, step_tokens),
          .max_sequences = batch,
          .batch_work = together,
          .plan = plan};
}

Result<MemoryPlan> SpilledMemoryOf(const model::ModelSpec& spec, const planner::RankSetup& setup,
                                   const LoadOptions& options, double kv_share,
                                   memory::Ledger& ledger) {
  const runtime::Formats formats = FormatsOf(setup);
  const Status supported =
      runtime::SpilledKv::Supports(spec, TransformerOptionsOf(options, formats, *options.context));
  if (!supported) return supported.error();
  // Whether the disk has room is known where the plan runs.
  return PlanSpilledMemoryOf(device::CpuBytes(), spec, options, formats,
                             std::max(1, setup.num_threads), kv_share, ledger);
}

// A rank's plan with what has room in so much memory.
Result<plan::Plan> SpilledThatFit(const model::ModelSpec& spec, const planner::RankSetup& setup,
                                  const LoadOptions& options, uint64_t memory_bytes,
                                  double kv_share) {
  memory::Ledger ledger({.budget_bytes = memory_bytes, .limited_by = "what a rank has"});
  const Result<MemoryPlan> memory = SpilledMemoryOf(spec, setup, options, kv_share, ledger);
  if (!memory) return memory.error();
  plan::Plan plan = options.plan;
  plan.experts_in_memory = memory->num_page_buffers;
  plan.sequences = options.max_sequences;
  plan.spilled_kv = plan::SpilledKv{.blocks_in_memory = memory->num_kv_blocks,
                                    .buffers = memory->spill_depth,
                                    .buffer_blocks = memory->spill_part_blocks};
  return plan;
}

}  // namespace

void AnswerPlanQuestion(const PlanSetting& setting, planner::PlanQuestion& question) {
  // Shapes alone: the names of ten thousands of tensors would be copied for each candidate.
  auto spec = std::make_shared<model::ModelSpec>(question.spec);
  spec->tensors.clear();
  question.step_tokens = setting.step_tokens;
  question.rank_memory = setting.rank_memory;
  const planner::Workload& workload = question.workload;
  // An encoder's input and the answer have a context each (MemoryNeeds::contexts_per_sequence).
  auto longest = static_cast<int>(workload.longest_request());  // as checked with the model
  if (question.spec.has_encoder()) {
    longest = 1;
    for (const planner::RequestLengths& request : workload.requests) {
      longest = std::max({longest, request.prompt_tokens, request.gen_tokens + 1});
    }
  }
  const BatchWork work{.num_requests = workload.batch,
                       .prompt_tokens = workload.mean_prompt_tokens(),
                       .gen_tokens = std::max(1.0, workload.mean_gen_tokens()),
                       .longest = longest};
  // Of the ranks of which one needs the most, or of all where their memories are unlike.
  const auto memories_of = [spec, work, step_tokens = setting.step_tokens,
                            whole = question.constraints.whole_matrices,
                            rank_memory = setting.rank_memory, is_one_host = setting.is_one_host](
                               const planner::RankSetup& setup, const plan::Plan& plan,
                               int batch) -> Result<std::vector<planner::RankMemory>> {
    for (const strategy::Layout& layout : {plan.layout, plan.decode.value_or(plan.layout)}) {
      const Status fits =
          whole ? weights::CheckWholeMatrices(weights::ShareOf(layout, /*rank=*/0)) : Status();
      if (!fits) return fits.error();
    }
    const LoadOptions options = OptionsOf(work, plan, batch, step_tokens);
    if (plan.spilled_kv) {
      memory::Ledger unlimited;
      const Result<MemoryPlan> memory =
          SpilledMemoryOf(*spec, setup, options, /*kv_share=*/0, unlimited);
      if (!memory) return memory.error();
      return std::vector{RankMemoryOf(*memory)};
    }
    const auto num_ranks = static_cast<size_t>(plan.layout.num_ranks());
    const bool are_unlike =
        rank_memory.size() == num_ranks || (rank_memory.size() > num_ranks && !is_one_host);
    std::vector<planner::RankMemory> memories;
    for (const int rank : are_unlike ? AllRanks(plan.layout) : LargestRanks(plan.layout)) {
      memory::Ledger unlimited;
      const Result<MemoryPlan> memory =
          PlanMemoryOfRank(rank, device::CpuBytes(), *spec, options, FormatsOf(setup),
                           std::max(1, setup.num_threads), unlimited);
      if (!memory) return memory.error();
      memories.push_back(RankMemoryOf(*memory));
      if (are_unlike) memories.back().limit_bytes = rank_memory[static_cast<size_t>(rank)];
    }
    return memories;
  };
  question.memory_of = [memories_of](const planner::RankSetup& setup, const plan::Plan& plan,
                                     int batch) -> Result<planner::RankMemory> {
    const Result<std::vector<planner::RankMemory>> memories = memories_of(setup, plan, batch);
    if (!memories) return memories.error();
    planner::RankMemory most;
    for (const planner::RankMemory& of_rank : *memories) {
      if (TakesMore(of_rank, most)) most = of_rank;
    }
    return most;
  };
  const bool can_spill = setting.spills_kv && runtime::SpilledKv::Supports(*spec, {}).ok() &&
                         workload.arrival_rate == 0;
  question.experts_that_fit = [memories_of, spec, can_spill](const planner::RankSetup& setup,
                                                             const plan::Plan& plan, int batch,
                                                             uint64_t memory_bytes) -> Result<int> {
    const weights::PagedSizes sizes = weights::PagedSizesOf(
        *spec, FormatsOf(setup).weights, strategy::LargestOwner(*spec, plan.layout));
    if (sizes.num_pages == 0) return Error{"the model has no routed experts"};
    plan::Plan least = plan;
    least.experts_in_memory = sizes.fewest_buffers;
    const Result<std::vector<planner::RankMemory>> memories = memories_of(setup, least, batch);
    if (!memories) return memories.error();
    uint64_t more = std::numeric_limits<uint64_t>::max();
    for (const planner::RankMemory& memory : *memories) {
      const uint64_t limit = memory.limit(memory_bytes);
      if (memory.fits(memory_bytes)) {
        more = std::min(more, (limit - memory.total()) / sizes.page_bytes);
        continue;
      }
      planner::RankMemory needed = memory;
      const char* on_disk = "its experts";
      // Keys and values there, too, take less still; where that fits, it is a plan of its own.
      if (can_spill && setup.num_ranks == 1) {
        plan::Plan spilled = least;
        spilled.spilled_kv = plan::SpilledKv();
        const Result<std::vector<planner::RankMemory>> with = memories_of(setup, spilled, batch);
        if (with && with->front().total() < memory.total() && !with->front().fits(limit)) {
          needed = with->front();
          on_disk = "its experts, keys and values";
        }
      }
      return ResourceExhausted(fmt::format(
          "even with {} read from a disk a rank needs {} (weights {}, KV cache {}, working memory "
          "{}), and has {}",
          on_disk, FormatBytes(needed.total()), FormatBytes(needed.weights_bytes),
          FormatBytes(needed.kv_bytes), FormatBytes(needed.working_bytes), FormatBytes(limit)));
    }
    return static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(sizes.num_pages),
                                               more + static_cast<uint64_t>(sizes.fewest_buffers)));
  };
  question.spilled_that_fit = nullptr;
  if (setting.spills_kv && runtime::SpilledKv::Supports(*spec, {})) {
    question.spilled_that_fit = [spec, work, step_tokens = setting.step_tokens](
                                    const planner::RankSetup& setup, const plan::Plan& plan,
                                    int batch, uint64_t memory_bytes, double kv_share) {
      return SpilledThatFit(*spec, setup, OptionsOf(work, plan, batch, step_tokens), memory_bytes,
                            kv_share);
    };
  }
  question.memory_per_rank = [setting](int num_ranks) {
    const std::vector<uint64_t>& each = setting.rank_memory;
    // Of fewer ranks than there are the first ones work (engine/fewer_ranks.h).
    const bool are_fewer = num_ranks < std::ssize(each);
    if (are_fewer && setting.is_one_host) {
      return std::accumulate(each.begin(), each.end(), uint64_t{0}) /
             static_cast<uint64_t>(num_ranks);
    }
    const auto first = std::span(each).first(std::min(each.size(), static_cast<size_t>(num_ranks)));
    if (!first.empty()) return *std::ranges::min_element(first);
    return setting.memory_per_rank.value_or(setting.memory_of_host /
                                            static_cast<uint64_t>(num_ranks));
  };
  question.bytes_of = [one_host = question.one_host, int8_kv = question.int8_kv,
                       &spec = question.spec](const std::string& weights, plan::Wire wire) {
    if (wire == plan::Wire::kAuto) wire = one_host ? plan::Wire::kF32 : plan::Wire::kBf16;
    // The number of ranks decides about kAuto alone.
    return runtime::Transformer::BytesOf(spec, FormatsOf(weights, int8_kv),
                                         WireFormatOf(wire, /*num_ranks=*/1), ReturnsFp8(wire));
  };
}

std::vector<std::string> AutomaticFormats() { return {"bf16", "int8", "int4"}; }

}  // namespace convene::engine
