#include "engine/plan_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/units.h"
#include "device/cpu/cpu_device.h"
#include "engine/choose_batch.h"
#include "engine/rank_options.h"
#include "memory/spill_file.h"
#include "runtime/spilled_kv.h"
#include "weights/page_index.h"

namespace convene::engine {
namespace {

// What others write meanwhile shall find some room, too.
uint64_t DiskBytesOf(const std::string& directory) {
  return memory::SpillFile::FreeBytes(directory) / 10 * 9;
}

// Whether keys and values may lie there by default, beside pages.
bool CanSpillTo(const std::string& directory) {
  return !directory.empty() && !memory::SpillFile::IsInMemory(directory) &&
         memory::SpillFile::CanWrite(directory);
}

Status CheckSpillDirectory(const LoadOptions& options) {
  if (!memory::SpillFile::IsInMemory(options.spill_directory)) return {};
  return Error{
      fmt::format("keys and values that have no room in memory cannot be spilled to {}, which lies "
                  "in memory itself (tmpfs): give --spill-dir DIR, which is on a disk, or "
                  "--spill-dir none",
                  options.spill_directory)};
}

// Where keys and values of a batch may lie; empty: in memory alone.
Result<std::string> SpillDirectoryOf(const model::ModelSpec& spec, const LoadOptions& options,
                                     const runtime::Formats& formats) {
  if (options.spill_directory == kNoSpill || options.gpu) return std::string();
  const Status supported = runtime::SpilledKv::Supports(
      spec, TransformerOptionsOf(options, formats, options.context.value_or(0)));
  if (!options.spill_directory.empty()) {
    if (!supported) return supported.error();
    if (Status on_disk = CheckSpillDirectory(options); !on_disk) return on_disk.error();
    return options.spill_directory;
  }
  return supported && CanSpillTo(options.page_directory) ? options.page_directory : std::string();
}

// What was chosen, for people.
std::string WordsOf(const BatchChoice& chosen, const BatchWork& work, const std::string& directory,
                    kernels::KvFormat format) {
  const double share = chosen.memory.spilled_share();
  std::string words;
  if (work.chooses_sequences || work.chooses_step_tokens) words = chosen.Describe();
  if (share > 0) {
    words += fmt::format("{}keys and values of {}, {:.0f} % on the disk in {}",
                         words.empty() ? "" : "; ",
                         FormatCount(static_cast<uint64_t>(chosen.max_sequences), "sequence"),
                         100 * share, directory);
  }
  if (words.empty() || format != kernels::KvFormat::kBf16) return words;
  words += share > 0 ? ", in bf16; --kv-cache int8 would move half of them"
                     : "; keys and values stay in memory in bf16, and --kv-cache int8 would let "
                       "more sequences or experts in";
  return words;
}

// As the plan says, with as many sequences as it says or as are asked for.
Result<MemoryPlan> PlanSpilled(const model::ModelSpec& spec, LoadOptions options,
                               const runtime::Formats& formats, const std::string& directory,
                               int num_threads, memory::Ledger& ledger) {
  const plan::SpilledKv& planned = *options.plan.spilled_kv;
  const BatchWork& work = *options.batch_work;
  if (work.chooses_sequences) {
    options.max_sequences = static_cast<int>(
        std::clamp<int64_t>(work.num_requests, 1, std::max(1, options.plan.sequences)));
  }
  if (work.chooses_step_tokens) {
    options.max_step_tokens = std::max(options.max_step_tokens, options.max_sequences);
  }
  if (Status fits = CheckLoadOptions(options); !fits) return fits.error();
  const device::DeviceBytes device = device::CpuBytes();
  const bool fit_all = options.max_sequences * BlocksOfSequence(work) <= planned.blocks_in_memory;
  Result<MemoryPlan> memory =
      fit_all ? PlanPagedMemoryOf(device, spec, options, formats, num_threads, ledger)
              : PlanSpilledMemoryOf(device, spec, options, formats, num_threads,
                                    {.disk_bytes = DiskBytesOf(directory)}, ledger);
  if (!memory) return memory;
  memory->max_sequences = options.max_sequences;
  memory->max_step_tokens = options.max_step_tokens;
  memory->batch_words = fmt::format(
      "keys and values of {}, {}, as the plan says",
      FormatCount(static_cast<uint64_t>(options.max_sequences), "sequence"),
      fit_all
          ? "which all fit memory"
          : fmt::format("{:.0f} % on the disk in {}", 100 * memory->spilled_share(), directory));
  if (!fit_all && memory->num_kv_blocks < planned.blocks_in_memory) {
    memory->batch_words += fmt::format("; it has {} blocks in memory, and there is room for {}",
                                       planned.blocks_in_memory, memory->num_kv_blocks);
  }
  return memory;
}

}  // namespace

Status CanSpillAsPlanned(const model::ModelSpec& spec, const LoadOptions& options, bool has_pages) {
  constexpr const char* kField = "spilled_kv of the plan";
  if (Status can = plan::CanSpill(options.plan); !can) return can.error().At(kField);
  if (!options.batch_work) {
    return Error{
        "the plan keeps keys and values on a disk (spilled_kv), which is for requests that are all "
        "there at once: run it with convene batch, or leave spilled_kv out of it"};
  }
  // The formats are no part of what is supported.
  const Status supported =
      runtime::SpilledKv::Supports(spec, TransformerOptionsOf(options, {}, /*context=*/0));
  if (!supported) return supported.error().At(kField);
  const bool is_given = !options.spill_directory.empty() && options.spill_directory != kNoSpill;
  if (is_given) {
    if (Status on_disk = CheckSpillDirectory(options); !on_disk) return on_disk;
  }
  const bool has_directory =
      options.spill_directory.empty() ? CanSpillTo(options.page_directory) : is_given;
  if (has_pages && has_directory) return {};
  return Error{fmt::format(
      "the plan keeps keys and values on a disk (spilled_kv), and {}",
      has_pages ? "there is no directory for them: give --spill-dir DIR, which is on a disk"
                : "experts would not be read from one: give --page-dir DIR, which is on a disk, or "
                  "a model that convene quantize has packed")};
}

Result<MemoryPlan> PlanPages(const device::DeviceBytes& device, const model::ModelSpec& spec,
                             const LoadOptions& options, const runtime::Formats& formats,
                             int num_threads, memory::Ledger& ledger) {
  if (!options.batch_work) {
    return PlanPagedMemoryOf(device, spec, options, formats, num_threads, ledger);
  }
  const Result<std::string> directory = SpillDirectoryOf(spec, options, formats);
  if (!directory) return directory.error();
  LoadOptions tried = options;
  if (!tried.context && tried.batch_work->longest > 1) tried.context = tried.batch_work->longest;
  if (tried.plan.spilled_kv) {
    return PlanSpilled(spec, tried, formats, *directory, num_threads, ledger);
  }
  SpillCosts spill{.block_bytes = device.of_kv_block(spec, formats.kv)};
  if (!directory->empty()) {
    spill.plan = [&, disk_bytes = DiskBytesOf(*directory)](int max_sequences, int max_step_tokens,
                                                           double kv_share) {
      tried.max_sequences = max_sequences;
      tried.max_step_tokens = max_step_tokens;
      return PlanSpilledMemoryOf(device, spec, tried, formats, num_threads,
                                 {.kv_share = kv_share, .disk_bytes = disk_bytes}, ledger);
    };
  }
  Result<BatchChoice> chosen = ChooseBatch(
      spec, *options.batch_work, options.max_sequences, options.max_step_tokens,
      weights::PagedSizesOf(spec, formats.weights).page_bytes,
      [&](int max_sequences, int max_step_tokens) {
        tried.max_sequences = max_sequences;
        tried.max_step_tokens = max_step_tokens;
        return PlanPagedMemoryOf(device, spec, tried, formats, num_threads, ledger);
      },
      spill);
  if (!chosen) return chosen.error();
  std::string words = WordsOf(*chosen, *options.batch_work, *directory, formats.kv);
  MemoryPlan memory = std::move(chosen->memory);
  memory.max_sequences = chosen->max_sequences;
  memory.max_step_tokens = chosen->max_step_tokens;
  memory.batch_words = std::move(words);
  return memory;
}

}  // namespace convene::engine
