#include "engine/plan_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "comm/agree.h"
#include "cost/machine_profile.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda.h"
#include "engine/measured_machine.h"
#include "engine/plan_offload.h"
#include "engine/plan_pages.h"
#include "engine/rank_options.h"

namespace convene::engine {
namespace {

// What the device that computes takes of its memory.
Result<device::DeviceBytes> BytesOf(const LoadOptions& options) {
  if (options.gpu) return device::CudaBytes(*options.gpu);
  return device::CpuBytes();
}

// Behind what else is told people of the batch.
void AddWords(MemoryPlan& memory, const std::string& words) {
  memory.batch_words += (memory.batch_words.empty() ? "" : "; ") + words;
}

// Of a batch on a GPU: `paged`, or the offload pipeline where that is faster.
Result<ChosenFormats> ChooseOffload(const FormatQuestion& question, const LoadOptions& options,
                                    const device::DeviceBytes& device,
                                    Result<ChosenFormats> paged) {
  const model::ModelSpec& spec = question.spec;
  if (options.offload == Offload::kPages) return paged;
  const bool is_asked_for = options.offload == Offload::kLayers;
  if (!is_asked_for && !options.batch_work) return paged;
  std::optional<cost::MachineProfile> measured = MeasuredMachine(options.gpu);
  if (!measured) {
    if (is_asked_for) {
      return Unavailable(
          "--offload layers is planned with the rates of this machine and its GPU, which were not "
          "measured yet: run convene measure once");
    }
    if (paged) {
      AddWords(paged->memory,
               "with convene measure, once, attention on the host would be considered, too");
    }
    return paged;
  }
  const OffloadMachine machine{*std::move(measured), device, question.ledger, question.host_bytes,
                               question.num_threads};
  Result<ChosenFormats> offloaded =
      ChooseFormats(options.formats, [&](const runtime::Formats& formats) {
        return PlanOffload(spec, options, formats, machine);
      });
  if (!offloaded) {
    if (is_asked_for || !paged) return is_asked_for ? offloaded : paged;
    AddWords(paged->memory, "not layer by layer: " + offloaded.error().message);
    return paged;
  }
  const Result<double> rate = TokensPerSecond(spec, options, offloaded->memory, machine);
  if (!rate) return rate.error();
  if (is_asked_for || !paged) {
    AddWords(offloaded->memory, fmt::format("priced at {:.0f} tokens/s", *rate));
    return offloaded;
  }
  const Result<double> of_pages = TokensPerSecond(spec, options, paged->memory, machine);
  if (!of_pages) return of_pages.error();
  const bool is_faster = *rate > *of_pages;
  ChosenFormats chosen = is_faster ? *offloaded : *std::move(paged);
  AddWords(chosen.memory,
           fmt::format("priced at {:.0f} tokens/s, {} at {:.0f}", std::max(*rate, *of_pages),
                       is_faster ? "paged experts with keys and values in the GPU's memory"
                                 : "attention on the host and experts layer by layer",
                       std::min(*rate, *of_pages)));
  return chosen;
}

// Whether how many sequences of a batch run together is open. Ranks are planned together
// (cli/plan_by_default.h), a GPU's batch is priced with what goes to and from its host, and prices
// know no encoder.
bool ChoosesBatch(const model::ModelSpec& spec, const LoadOptions& options) {
  return options.batch_work && options.batch_work->chooses_sequences && options.batch_work->plans &&
         !options.gpu && !spec.has_encoder();
}

Result<ChosenFormats> PlanOwn(const FormatQuestion& question, const LoadOptions& options,
                              Pages pages) {
  const model::ModelSpec& spec = question.spec;
  const Result<device::DeviceBytes> device = BytesOf(options);
  if (!device) return device.error();
  const auto pages_question = [&](const runtime::Formats& formats) {
    return PagesQuestion{.device = *device,
                         .spec = spec,
                         .options = options,
                         .formats = formats,
                         .num_threads = question.num_threads,
                         .ledger = question.ledger,
                         .to_make_bytes = question.pages_to_make_bytes
                                              ? question.pages_to_make_bytes(formats.weights)
                                              : 0};
  };
  if (const Status fits = CheckContext(spec, options); !fits) return fits.error();
  const bool has_experts =
      std::ranges::any_of(spec.layers, [](const auto& layer) { return layer.moe.has_value(); });
  const bool has_pages = pages != Pages::kNever;
  if (options.plan.spilled_kv) {
    if (Status can = CanSpillAsPlanned(spec, options, has_pages); !can) return can.error();
  }
  const bool plan_pages =
      has_experts && (pages == Pages::kAlways || (options.plan.experts_in_memory && has_pages));
  Result<ChosenFormats> all = ResourceExhausted("the plan reads experts from a disk");
  if (!plan_pages) {
    all = ChooseFormats(options.formats, [&](const runtime::Formats& formats) {
      return PlanMemoryOf(*device, spec, options, formats, question.num_threads, question.ledger);
    });
  }
  if (all && ChoosesBatch(spec, options)) {
    Result<MemoryPlan> memory =
        PlanWholeOrPages(pages_question(all->formats), has_pages && has_experts);
    if (memory) all->memory = *std::move(memory);
  }
  if (all || !has_pages || all.error().kind != ErrorKind::kResourceExhausted) return all;
  if (!has_experts) return all;
  FormatWishes wishes = options.formats;
  const bool is_free = !wishes.weights;
  if (is_free) wishes.weights = kernels::WeightFormat::kInt4;
  Result<ChosenFormats> paged = ChooseFormats(
      wishes, [&](const runtime::Formats& formats) { return PlanPages(pages_question(formats)); });
  if (paged && is_free) {
    paged->reason = "int4 weights, since no format fits and of these the least is to be read";
  }
  return options.gpu ? ChooseOffload(question, options, *device, std::move(paged)) : paged;
}

// All ranks in the same formats, all of them with pages or none, and with as many blocks: those of
// the one with the least memory. *Collective.*
Result<ChosenFormats> Agree(Result<ChosenFormats> mine, const FormatQuestion& question,
                            LoadOptions options, Pages pages) {
  const auto fared = [&] {
    return comm::AgreeOnSuccess(*options.group, mine ? Status() : Status(mine.error()));
  };
  if (const Status all = fared(); !all) return all.error();
  const auto least = [&](int value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    for (const std::vector<std::byte>& other :
         options.group->AllGather(bytes, "agreeing on formats and memory")) {
      int theirs = 0;
      std::memcpy(&theirs, other.data(), sizeof(int));
      value = std::min(value, theirs);
    }
    return value;
  };
  // From float32 to int4 formats get smaller.
  const int format = -least(-static_cast<int>(mine->formats.weights.matrices));
  options.formats.weights = static_cast<kernels::WeightFormat>(format);
  if (format != static_cast<int>(mine->formats.weights.matrices)) {
    mine = PlanOwn(question, options, pages);
  }
  if (const Status all = fared(); !all) return all.error();
  const bool any_pages = least(mine->memory.num_page_buffers > 0 ? 0 : 1) == 0;
  if (any_pages && mine->memory.num_page_buffers == 0) {
    mine = PlanOwn(question, options, Pages::kAlways);
  }
  if (const Status all = fared(); !all) return all.error();
  constexpr int kAll = std::numeric_limits<int>::max();
  const int buffers = least(mine->memory.has_all_pages ? kAll : mine->memory.num_page_buffers);
  if (any_pages && buffers < kAll) mine->memory.least_page_buffers = buffers;
  mine->memory.SetKvBlocks(least(mine->memory.num_kv_blocks));
  return mine;
}

}  // namespace

Result<ChosenFormats> PlanFormats(const FormatQuestion& question, const LoadOptions& options,
                                  Pages pages) {
  Result<ChosenFormats> mine = PlanOwn(question, options, pages);
  if (options.group == nullptr || options.group->size() == 1) return mine;
  return Agree(std::move(mine), question, options, pages);
}

}  // namespace convene::engine
