#include "engine/plan_offload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/units.h"
#include "cost/memory_tiers.h"
#include "device/cpu/cpu_device.h"
#include "engine/choose_batch.h"
#include "engine/rank_options.h"
#include "engine/step_sampling.h"
#include "planner/offload_policy.h"
#include "runtime/offloaded_steps.h"
#include "strategy/paging.h"
#include "weights/load_weights.h"

namespace convene::engine {
namespace {

using memory::Use;

constexpr int kMostTokens = 1 << 15;       // of a step
constexpr double kOffloadedFactor = 1.25;  // between numbers that are tried
constexpr int kFewestRows = 4;             // of a micro-batch
// Tried in this order, of equals the first. With eight whole requests kept the link busy
// (docs/results/offload_gpu.md); other numbers were not run with as many sequences, and the roofs
// do not tell them apart.
constexpr int kMicroBatches[] = {8, 4, 16, 2, 1};

// What is tried.
struct Shape {
  int sequences = 1;
  int step_tokens = 1;
  int micro_batches = 1;
};

planner::OffloadPolicy PolicyOf(const Shape& shape) {
  const int rows = (shape.sequences + shape.micro_batches - 1) / shape.micro_batches;
  return {.batch = rows * shape.micro_batches, .micro_batch = rows, .attention_on_host = true};
}

// The batch, where nobody says what is to be computed: as many sequences as may run, half of whose
// contexts are prompts.
BatchWork WorkOf(const model::ModelSpec& spec, const LoadOptions& options) {
  if (options.batch_work) return *options.batch_work;
  const double half = ContextOf(spec, options) / 2.0;
  return {.num_requests = options.max_sequences, .prompt_tokens = half, .gen_tokens = half};
}

// Error: the machine's rates are not known.
Result<planner::OffloadQuestion> Ask(const model::ModelSpec& spec, const BatchWork& work,
                                     const cost::MachineProfile& profile) {
  const auto tiers = cost::TiersOf(profile, "bf16");
  if (!tiers) return tiers.error();
  if (tiers->size() < 2 || !((*tiers)[1].flops.value_or(0) > 0)) {
    return Error{
        "the profile does not say how fast the host computes: measure it with convene measure"};
  }
  return planner::OffloadQuestion{.model = planner::OffloadModelOf(spec),
                                  .fast = (*tiers)[0],
                                  .slow = (*tiers)[1],
                                  .down_bytes_per_second = (*tiers)[1].up_bytes_per_second,
                                  .prompt_tokens = work.prompt_tokens,
                                  .gen_tokens = std::max(1.0, work.gen_tokens)};
}

// Of the whole batch: prompts in as many passes as they fill, then a step for each further token of
// the answers, of which `sequences` go on together.
double SecondsOf(const planner::OffloadQuestion& question, const BatchWork& work,
                 const Shape& shape, const planner::OffloadPolicy& policy) {
  const planner::OffloadFigures figures = planner::FiguresOf(question, policy);
  const double rounds = std::ceil(static_cast<double>(work.num_requests) / shape.sequences);
  const double passes = std::ceil(shape.sequences * work.prompt_tokens / shape.step_tokens);
  const double prompts = std::max(figures.prefill.longest(), passes * figures.prefill.link_up);
  return rounds * (prompts + (question.gen_tokens - 1) * figures.step.longest());
}

// What a shape takes of both memories; what all shapes have in common is counted once.
class ShapeMemory {
 public:
  // Error: the device cannot take layers of this model in turn.
  static Result<ShapeMemory> Create(const model::ModelSpec& spec, const LoadOptions& options,
                                    const runtime::Formats& formats,
                                    const OffloadMachine& machine) {
    ShapeMemory memory(spec, formats, machine);
    const BatchWork work = WorkOf(spec, options);
    const bool is_known = !options.context && work.longest > 1;
    memory.context_ = is_known ? work.longest : ContextOf(spec, options);
    memory.blocks_of_sequence_ = BlocksOfSequence(work);
    const auto beside = machine.device.of_weights_beside(spec, weights::DeviceLoans::kFeedForward);
    if (!beside) return beside.error();
    memory.device_weights_ = *beside + runtime::OffloadedSteps::RoomBytes(spec, formats.weights);
    memory.host_weights_ = weights::PackedSizeBytes(spec, formats.weights);
    return memory;
  }

  // Error: it does not fit.
  Result<MemoryPlan> PlanOf(const Shape& shape) const {
    const runtime::OffloadedOptions offloaded{
        .pipeline = {.micro_batches = shape.micro_batches, .pinned_pages = 0},
        .max_sequences = shape.sequences,
        .max_step_tokens = shape.step_tokens,
        .context = context_,
        .activations = formats_.activations,
        .kv = formats_.kv};
    const runtime::TransformerOptions steps = runtime::OffloadedSteps::StepOptions(offloaded);
    const uint64_t row_bytes = runtime::OffloadedSteps::PlannedRowBytes(spec_, offloaded);
    MemoryPlan plan{.bytes = runtime::Transformer::StepBytes(machine_.device, spec_, steps, 1),
                    .available_bytes = machine_.of_device.available_bytes(),
                    .context = context_};
    plan.bytes[Use::kWeights] = device_weights_;
    plan.bytes[Use::kExchange] += row_bytes;
    plan.bytes[Use::kKvCache] = machine_.device.of_kv_block(spec_, formats_.kv);
    plan.bytes[Use::kProgram] += kProgramBytes;
    if (plan.needed_bytes() > plan.available_bytes) {
      const memory::Tier& tier = machine_.of_device.tier();
      return ResourceExhausted(fmt::format(
          "not enough {} for experts that go through it layer by layer: {} ({}); lower --chunk, "
          "give more --device-memory-budget, or --offload pages",
          tier.name(), plan.Describe(), tier.limited_by));
    }
    const device::DeviceBytes host = device::CpuBytes();
    plan.num_kv_blocks = shape.sequences * blocks_of_sequence_;
    plan.host_kv_bytes =
        static_cast<uint64_t>(plan.num_kv_blocks) * host.of_kv_block(spec_, formats_.kv);
    const uint64_t host_bytes =
        host_weights_ + plan.host_kv_bytes + row_bytes + kProgramBytes +
        StepSampling::BytesOf(spec_.vocab_size, shape.sequences, machine_.num_threads) +
        runtime::Transformer::StepBytes(host, spec_, steps, 1).total();
    if (host_bytes > machine_.host_bytes) {
      return ResourceExhausted(fmt::format(
          "not enough memory: the host has {} and needs {} for weights, keys and values of {}; let "
          "fewer run together, lower --context, or --offload pages",
          FormatBytes(machine_.host_bytes), FormatBytes(host_bytes),
          FormatCount(static_cast<uint64_t>(shape.sequences), "sequence")));
    }
    plan.max_sequences = shape.sequences;
    plan.max_step_tokens = shape.step_tokens;
    plan.offload_micro_batches = shape.micro_batches;
    return plan;
  }

 private:
  ShapeMemory(const model::ModelSpec& spec, const runtime::Formats& formats,
              const OffloadMachine& machine)
      : spec_(spec), formats_(formats), machine_(machine) {}

  const model::ModelSpec& spec_;
  const runtime::Formats& formats_;
  const OffloadMachine& machine_;
  int context_ = 0;
  int blocks_of_sequence_ = 0;
  uint64_t device_weights_ = 0;
  uint64_t host_weights_ = 0;
};

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
  const Result<planner::OffloadQuestion> question = Ask(spec, work, machine.profile);
  if (!question) return question.error();
  const Result<ShapeMemory> of_shapes = ShapeMemory::Create(spec, options, formats, machine);
  if (!of_shapes) return of_shapes.error();
  const int most =
      work.chooses_sequences
          ? static_cast<int>(std::min<int64_t>(work.num_requests, plan::kMostSequences))
          : options.max_sequences;
  Result<MemoryPlan> best = ResourceExhausted("nothing was tried");
  double best_seconds = 0;
  const auto attempt = [&](const Shape& shape) {
    Result<MemoryPlan> memory = of_shapes->PlanOf(shape);
    const double seconds = SecondsOf(*question, work, shape, PolicyOf(shape));
    // Where nothing fits the error of the smallest shape is told.
    if (memory ? best && seconds >= best_seconds : best.ok()) return;
    best = std::move(memory);
    best_seconds = seconds;
  };
  for (double sequences = most; sequences >= 1; sequences /= kOffloadedFactor) {
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
        attempt(shape);
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
    const strategy::Paging paging =
        strategy::PagingOf(spec, /*encoder=*/false, memory.num_page_buffers, shape.sequences);
    policy = {.batch = shape.sequences,
              .micro_batch = shape.sequences,
              .weights_resident = 1 - paging.missing,
              .cache_resident = 1};
  }
  const Result<planner::OffloadQuestion> question = Ask(spec, work, machine.profile);
  if (!question) return question.error();
  return static_cast<double>(work.num_requests) * work.gen_tokens /
         SecondsOf(*question, work, shape, policy);
}

}  // namespace convene::engine
