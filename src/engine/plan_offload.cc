#include "engine/plan_offload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "cost/memory_tiers.h"
#include "device/cpu/cpu_device.h"
#include "engine/choose_batch.h"
#include "engine/rank_options.h"
#include "planner/offload_policy.h"
#include "runtime/offloaded_steps.h"
#include "runtime/step_memory.h"
#include "strategy/paging.h"
#include "weights/load_weights.h"

namespace convene::engine {
namespace {

using memory::Use;

constexpr int kMostSequences = 4096;       // as `convene batch --max-batch`
constexpr int kMostTokens = 1 << 15;       // of a step
constexpr double kSequencesFactor = 1.25;  // between numbers that are tried
constexpr int kFewestRows = 4;             // of a micro-batch
// Tried in this order, of equals the first: of what was run eight came closest to what the link
// allows (docs/results/offload_gpu.md). The roofs do not tell them apart.
constexpr int kMicroBatches[] = {8, 4, 16, 2, 1};

// What is tried.
struct Shape {
  int sequences = 1;
  int step_tokens = 1;
  int micro_batches = 1;
};

int ContextOf(const model::ModelSpec& spec, const LoadOptions& options) {
  if (!options.context && options.batch_work && options.batch_work->longest > 1) {
    return options.batch_work->longest;
  }
  return options.context.value_or(std::min(spec.max_positions, kDefaultContext));
}

// Where nobody says what is to be computed: as many sequences as may run, half of whose contexts
// are prompts.
BatchWork WorkOf(const model::ModelSpec& spec, const LoadOptions& options) {
  if (options.batch_work) return *options.batch_work;
  const double half = ContextOf(spec, options) / 2.0;
  return {.num_requests = options.max_sequences, .prompt_tokens = half, .gen_tokens = half};
}

runtime::OffloadedOptions OptionsOf(const Shape& shape, int context,
                                    const runtime::Formats& formats) {
  return {.pipeline = {.micro_batches = shape.micro_batches, .pinned_pages = 0},
          .max_sequences = shape.sequences,
          .max_step_tokens = shape.step_tokens,
          .context = context,
          .activations = formats.activations,
          .kv = formats.kv};
}

// Seconds of the whole batch: prompts in as many passes as they fill, then a step for each further
// token of the answers, of which `sequences` go on together.
Result<double> SecondsOf(const model::ModelSpec& spec, const BatchWork& work, const Shape& shape,
                         const planner::OffloadPolicy& policy, const OffloadMachine& machine) {
  const auto tiers = cost::TiersOf(machine.profile, "bf16");
  if (!tiers) return tiers.error();
  if (tiers->size() < 2 || !((*tiers)[1].flops.value_or(0) > 0)) {
    return Error{
        "the profile does not say how fast the host computes: measure it with convene "
        "measure"};
  }
  planner::OffloadQuestion question{.model = planner::OffloadModelOf(spec),
                                    .fast = (*tiers)[0],
                                    .slow = (*tiers)[1],
                                    .down_bytes_per_second = (*tiers)[1].up_bytes_per_second,
                                    .prompt_tokens = work.prompt_tokens,
                                    .gen_tokens = std::max(1.0, work.gen_tokens)};
  const planner::OffloadFigures figures = planner::FiguresOf(question, policy);
  const double rounds = std::ceil(static_cast<double>(work.num_requests) / shape.sequences);
  const double prompt_tokens = shape.sequences * work.prompt_tokens;
  const double passes = std::ceil(prompt_tokens / shape.step_tokens);
  const double prompts = std::max(figures.prefill.longest(), passes * figures.prefill.link_up);
  return rounds * (prompts + (question.gen_tokens - 1) * figures.step.longest());
}

planner::OffloadPolicy PolicyOf(const Shape& shape) {
  const int rows = std::max(1, shape.sequences / shape.micro_batches);
  return {.batch = rows * shape.micro_batches, .micro_batch = rows, .attention_on_host = true};
}

// Error: it does not fit.
Result<MemoryPlan> MemoryOf(const model::ModelSpec& spec, const LoadOptions& options,
                            const runtime::Formats& formats, const Shape& shape, int context,
                            const OffloadMachine& machine) {
  const runtime::OffloadedOptions offloaded = OptionsOf(shape, context, formats);
  const runtime::TransformerOptions steps = runtime::OffloadedSteps::StepOptions(offloaded);
  const auto bytes = runtime::OffloadedSteps::BytesOf(spec, formats.weights, offloaded);
  MemoryPlan plan{.bytes = runtime::Transformer::StepBytes(machine.device, spec, steps, 1),
                  .available_bytes = machine.of_device.available_bytes(),
                  .context = context};
  const auto weights = machine.device.of_weights_beside(spec, weights::DeviceLoans::kFeedForward);
  if (!weights) return weights.error();
  plan.bytes[Use::kWeights] = *weights + bytes.rooms;
  plan.bytes[Use::kExchange] += bytes.rows;
  plan.bytes[Use::kKvCache] = machine.device.of_kv_block(spec, formats.kv);
  plan.bytes[Use::kProgram] += kProgramBytes;
  if (plan.needed_bytes() > plan.available_bytes) {
    return ResourceExhausted(fmt::format(
        "not enough {} for experts that go through it layer by layer: {} ({}); lower --chunk, give "
        "more --device-memory-budget, or --offload pages",
        machine.of_device.tier().name(), plan.Describe(), machine.of_device.tier().limited_by));
  }
  const device::DeviceBytes host = device::CpuBytes();
  plan.num_kv_blocks = shape.sequences * BlocksOfSequence(WorkOf(spec, options));
  plan.host_kv_bytes =
      static_cast<uint64_t>(plan.num_kv_blocks) * host.of_kv_block(spec, formats.kv);
  const uint64_t host_bytes =
      weights::PackedSizeBytes(spec, formats.weights) + plan.host_kv_bytes + bytes.rows +
      runtime::Transformer::StepBytes(host, spec, steps, 1).total() + kProgramBytes;
  if (host_bytes > machine.host_bytes) {
    return ResourceExhausted(
        fmt::format("not enough memory: the host has {} and needs {} for weights, keys and values "
                    "of {}; let fewer run together, lower --context, or --offload pages",
                    FormatBytes(machine.host_bytes), FormatBytes(host_bytes),
                    FormatCount(static_cast<uint64_t>(shape.sequences), "sequence")));
  }
  plan.max_sequences = shape.sequences;
  plan.max_step_tokens = shape.step_tokens;
  plan.offload_micro_batches = shape.micro_batches;
  return plan;
}

Status Supports(const model::ModelSpec& spec, const LoadOptions& options,
                const OffloadMachine& machine) {
  if (spec.has_encoder()) return Error{"a model with an encoder cannot be offloaded"};
  if (options.expert_capacity > 0) return Error{"experts with a capacity cannot be offloaded"};
  if (machine.device.of_weights_beside == nullptr) {
    return Error{"the device is no GPU: its memory is the host's"};
  }
  return runtime::OffloadedSteps::Supports(spec);
}

}  // namespace

Result<MemoryPlan> PlanOffload(const model::ModelSpec& spec, const LoadOptions& options,
                               const runtime::Formats& formats, const OffloadMachine& machine) {
  if (Status can = Supports(spec, options, machine); !can) return can.error();
  const BatchWork work = WorkOf(spec, options);
  const int context = ContextOf(spec, options);
  const int most = work.chooses_sequences
                       ? static_cast<int>(std::min<int64_t>(work.num_requests, kMostSequences))
                       : options.max_sequences;
  Result<MemoryPlan> best = ResourceExhausted("nothing was tried");
  double best_rate = 0;
  const auto attempt = [&](const Shape& shape) -> Status {
    Result<MemoryPlan> memory = MemoryOf(spec, options, formats, shape, context, machine);
    if (!memory) {
      if (!best) best = std::move(memory);
      return {};
    }
    const auto seconds = SecondsOf(spec, work, shape, PolicyOf(shape), machine);
    if (!seconds) return seconds.error();
    if (best && 1 / *seconds <= best_rate) return {};
    best = std::move(memory);
    best_rate = 1 / *seconds;
    return {};
  };
  for (double sequences = most; sequences >= 1; sequences /= kSequencesFactor) {
    if (sequences < most && !work.chooses_sequences) break;
    Shape shape{.sequences = static_cast<int>(sequences)};
    for (const int micro_batches : kMicroBatches) {
      if (micro_batches > 1 && shape.sequences / micro_batches < kFewestRows) continue;
      shape.micro_batches = micro_batches;
      // Larger steps read prompts in fewer passes.
      const int first = std::max(options.max_step_tokens, shape.sequences);
      shape.step_tokens = first;
      while (work.chooses_step_tokens && 2 * shape.step_tokens <= kMostTokens) {
        shape.step_tokens *= 2;
      }
      for (; shape.step_tokens >= first; shape.step_tokens /= 2) {
        if (Status tried = attempt(shape); !tried) return tried.error();
      }
    }
  }
  if (!best) return best;
  best->batch_words = fmt::format(
      "{} at a time in steps of at most {}, {} micro-batches: experts go through the GPU layer by "
      "layer, {} of keys and values and attention are the host's",
      FormatCount(static_cast<uint64_t>(best->max_sequences), "sequence"),
      FormatCount(static_cast<uint64_t>(best->max_step_tokens), "token"),
      best->offload_micro_batches, FormatBytes(best->host_kv_bytes));
  return best;
}

Result<double> TokensPerSecond(const model::ModelSpec& spec, const LoadOptions& options,
                               const MemoryPlan& memory, const OffloadMachine& machine) {
  const BatchWork work = WorkOf(spec, options);
  // As many as have room for keys and values.
  const int fitting = memory.num_kv_blocks / BlocksOfSequence(work);
  Shape shape{.sequences = std::max(1, std::min(memory.max_sequences, fitting)),
              .step_tokens = std::max(1, memory.max_step_tokens),
              .micro_batches = std::max(1, memory.offload_micro_batches)};
  planner::OffloadPolicy policy = PolicyOf(shape);
  if (memory.offload_micro_batches == 0) {
    policy = {.batch = shape.sequences,
              .micro_batch = shape.sequences,
              .weights_resident = static_cast<double>(memory.num_page_buffers) /
                                  std::max(1, strategy::CountExperts(spec)),
              .cache_resident = 1};
  }
  const Result<double> seconds = SecondsOf(spec, work, shape, policy, machine);
  if (!seconds) return seconds.error();
  return static_cast<double>(work.num_requests) * work.gen_tokens / *seconds;
}

}  // namespace convene::engine
