#include "engine/plan_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/units.h"
#include "device/cpu/cpu_device.h"
#include "engine/batch_price.h"
#include "engine/choose_batch.h"
#include "engine/measured_machine.h"
#include "engine/paged_memory.h"
#include "engine/rank_options.h"
#include "memory/spill_file.h"
#include "runtime/spilled_kv.h"
#include "weights/load_weights.h"
#include "weights/page_index.h"

namespace convene::engine {
namespace {

// That keys and values may take there, beside pages that are still to be made. What others write
// meanwhile shall find some room, too.
uint64_t DiskBytesOf(const std::string& directory, const PagesQuestion& question) {
  if (directory.empty()) return 0;
  const bool has_pages = memory::SpillFile::ShareDisk(directory, question.options.page_directory);
  const uint64_t taken = has_pages ? question.to_make_bytes : 0;
  const uint64_t free = memory::SpillFile::FreeBytes(directory);
  return (free - std::min(free, taken)) / 10 * 9;
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
Result<std::string> SpillDirectoryOf(const PagesQuestion& question) {
  const LoadOptions& options = question.options;
  if (options.spill_directory == kNoSpill || options.gpu) return std::string();
  const Status supported = runtime::SpilledKv::Supports(
      question.spec, TransformerOptionsOf(options, question.formats, options.context.value_or(0)));
  if (!options.spill_directory.empty()) {
    if (!supported) return supported.error();
    if (Status on_disk = CheckSpillDirectory(options); !on_disk) return on_disk.error();
    return options.spill_directory;
  }
  return supported && CanSpillTo(options.page_directory) ? options.page_directory : std::string();
}

// The rates by which what there is to choose from is priced.
BatchRates RatesHere(const PagesQuestion& question) {
  const std::optional<int>& gpu = question.options.gpu;
  const std::optional<cost::MachineProfile> machine = MeasuredMachine(gpu);
  if (!machine) return UsualRates(gpu.has_value());
  const auto cores = static_cast<double>(machine->machine.cpus.size());
  const double share = gpu || cores == 0 ? 1 : std::min(1.0, question.num_threads / cores);
  return RatesOf(*machine, kernels::Name(question.formats.weights.matrices), share)
      .value_or(UsualRates(gpu.has_value()));
}

// Of the shapes that memory is asked about.
BatchQuestion AskAbout(const PagesQuestion& question, const weights::PagedSizes& sizes) {
  const LoadOptions& options = question.options;
  return {.spec = question.spec,
          .work = *options.batch_work,
          .max_sequences = options.max_sequences,
          .max_step_tokens = options.max_step_tokens,
          .bytes = {.page = sizes.page_bytes,
                    .kv_block = question.device.of_kv_block(question.spec, question.formats.kv),
                    .step = weights::DecodeBytes(question.spec, question.formats.weights)},
          .rates = RatesHere(question),
          .plan = {}};
}

// What was chosen, for people.
std::string WordsOf(const ChosenBatch& chosen, const BatchQuestion& asked,
                    kernels::KvFormat format) {
  const BatchChoice& best = chosen.best;
  const std::string& directory = asked.disk_directory;
  const double share = best.memory.spilled_share();
  std::string words;
  if (asked.work.chooses_sequences || asked.work.chooses_step_tokens) {
    words = best.Describe(asked.rates);
  }
  const auto add = [&](const std::string& more) { words += (words.empty() ? "" : "; ") + more; };
  if (share > 0) {
    add(fmt::format("keys and values of {}, {:.0f} % on the disk in {}",
                    FormatCount(static_cast<uint64_t>(best.max_sequences), "sequence"), 100 * share,
                    directory));
  }
  if (!words.empty() && format == kernels::KvFormat::kBf16) {
    words += share > 0 ? ", in bf16; --kv-cache int8 would move half of them"
                       : "; keys and values stay in memory in bf16, and --kv-cache int8 would let "
                         "more sequences or experts in";
  }
  if (chosen.beyond_disk) {
    const BatchChoice& beyond = *chosen.beyond_disk;
    add(fmt::format(
        "it would take {:.0f} % less time with {} of keys and values of {} in {}, whose disk has "
        "{} for them: --spill-dir names another place",
        100 * (1 - beyond.price.seconds / best.price.seconds),
        FormatBytes(beyond.memory.spill_file_bytes),
        FormatCount(static_cast<uint64_t>(beyond.max_sequences), "sequence"), directory,
        FormatBytes(asked.disk_bytes)));
  }
  return words;
}

MemoryPlan MemoryOf(ChosenBatch chosen, const BatchQuestion& asked, kernels::KvFormat format) {
  std::string words = WordsOf(chosen, asked, format);
  MemoryPlan memory = std::move(chosen.best.memory);
  memory.max_sequences = chosen.best.max_sequences;
  memory.max_step_tokens = chosen.best.max_step_tokens;
  memory.batch_words = std::move(words);
  memory.batch_seconds = chosen.best.price.seconds;
  return memory;
}

// Of the longest request, where nobody says how long a context is.
LoadOptions WithContextOfWork(LoadOptions options) {
  const int longest = options.batch_work->longest;
  if (!options.context && longest > 1) options.context = longest;
  return options;
}

// As the plan says, with as many sequences as it says or as are asked for.
Result<MemoryPlan> PlanSpilled(const PagesQuestion& question, const std::string& directory) {
  LoadOptions options = WithContextOfWork(question.options);
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
  const Result<PagedMemory> paged = PagedMemory::Create(device::CpuBytes(), question.spec, options,
                                                        question.formats, question.num_threads);
  if (!paged) return paged.error();
  const bool fit_all = options.max_sequences * BlocksOfSequence(work) <= planned.blocks_in_memory;
  Result<MemoryPlan> memory =
      fit_all ? paged->InMemory(options.max_sequences, options.max_step_tokens, question.ledger)
              : paged->Spilled(options.max_sequences, options.max_step_tokens, 0, question.ledger);
  if (!memory) return memory;
  const Status on_disk =
      CheckDisk(*memory, options.max_sequences, DiskBytesOf(directory, question), directory);
  if (!on_disk) return on_disk.error();
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

// All weights in memory, with as many sequences and step tokens as suit the batch.
Result<MemoryPlan> PlanWhole(const PagesQuestion& question) {
  const LoadOptions options = WithContextOfWork(question.options);
  const Result<RankNeeds> needs = RankNeeds::Create(
      /*rank=*/0, question.device, question.spec, options, question.formats, question.num_threads);
  if (!needs) return needs.error();
  BatchQuestion asked =
      AskAbout(question, weights::PagedSizesOf(question.spec, question.formats.weights));
  asked.plan = [&](int max_sequences, int max_step_tokens) {
    MemoryNeeds with = needs->With(max_sequences, max_step_tokens);
    with.blocks_per_sequence = BlocksOfSequence(asked.work);
    return PlanMemory(with, question.ledger);
  };
  Result<ChosenBatch> chosen = ChooseBatch(asked);
  if (!chosen) return chosen.error();
  const bool is_usual = chosen->best.max_sequences == options.max_sequences &&
                        chosen->best.max_step_tokens == options.max_step_tokens;
  MemoryPlan memory = MemoryOf(*std::move(chosen), asked, question.formats.kv);
  if (is_usual) memory.batch_words.clear();
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

Result<MemoryPlan> PlanPages(const PagesQuestion& question) {
  if (!question.options.batch_work) {
    return PlanPagedMemoryOf(question.device, question.spec, question.options, question.formats,
                             question.num_threads, question.ledger);
  }
  const Result<std::string> directory = SpillDirectoryOf(question);
  if (!directory) return directory.error();
  if (question.options.plan.spilled_kv) return PlanSpilled(question, *directory);
  const LoadOptions options = WithContextOfWork(question.options);
  const Result<PagedMemory> paged = PagedMemory::Create(question.device, question.spec, options,
                                                        question.formats, question.num_threads);
  if (!paged) return paged.error();
  BatchQuestion asked = AskAbout(question, paged->sizes());
  asked.plan = [&](int max_sequences, int max_step_tokens) {
    return paged->InMemory(max_sequences, max_step_tokens, question.ledger);
  };
  if (!directory->empty()) {
    asked.disk_bytes = DiskBytesOf(*directory, question);
    asked.disk_directory = *directory;
    asked.plan_spilled = [&](int max_sequences, int max_step_tokens, double kv_share) {
      return paged->Spilled(max_sequences, max_step_tokens, kv_share, question.ledger);
    };
  }
  Result<ChosenBatch> chosen = ChooseBatch(asked);
  if (!chosen) return chosen.error();
  return MemoryOf(*std::move(chosen), asked, question.formats.kv);
}

Result<MemoryPlan> PlanWholeOrPages(const PagesQuestion& question, bool may_page) {
  Result<MemoryPlan> whole = PlanWhole(question);
  if (!whole || !may_page) return whole;
  Result<MemoryPlan> paged = PlanPages(question);
  if (!paged) return whole;
  // Made pages are read from the checkpoint and written.
  const double making =
      2 * static_cast<double>(question.to_make_bytes) / RatesHere(question).disk_bytes_per_second;
  const double with_pages =
      paged->batch_seconds + making / question.options.batch_work->all_gen_tokens();
  return IsClearlyLess(with_pages, whole->batch_seconds) ? paged : whole;
}

}  // namespace convene::engine
