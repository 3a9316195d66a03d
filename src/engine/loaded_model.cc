#include "engine/loaded_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "base/digest.h"
#include "base/environment.h"
#include "base/message.h"
#include "base/units.h"
#include "comm/agree.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda.h"
#include "engine/announce_load.h"
#include "engine/choose_pipeline.h"
#include "engine/make_pages.h"
#include "engine/plan_formats.h"
#include "engine/rank_options.h"
#include "engine/same_model.h"
#include "hardware/profile.h"
#include "kernels/choose_kernels.h"
#include "runtime/offloaded_steps.h"
#include "weights/packed_directory.h"
#include "weights/phased_weights.h"
#include "weights/share.h"
#include "weights/tensor_digests.h"

namespace convene::engine {
namespace {

int RankOf(const LoadOptions& options) {
  return options.group != nullptr ? options.group->rank() : 0;
}

// A plan counts what the model takes; a budget of memory is of all that the program has.
std::string FewerThanPlanned(const LoadOptions& options, const MemoryPlan& memory) {
  const int planned = options.plan.experts_in_memory.value_or(0);
  if (planned <= memory.num_page_buffers || memory.has_all_pages) return "";
  return fmt::format("; the plan has {} in memory, for which there is no room", planned);
}

double Percent(int64_t part, int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

std::string DescribeBackup(const weights::BackupQuality& quality) {
  const auto share = [](int64_t part, int64_t whole) {
    return part == whole ? "all" : fmt::format("{:.2f} %", Percent(part, whole));
  };
  std::string text = fmt::format(
      "transition: decode's experts from an int4 backup, cosine {:.4f} to what it stands for; by "
      "groups of {} weights {:.4f} on average, {:.4f} at least, and {} of them {} or more, since "
      "{:.2f} % of the weights are kept as they are (without that {} of the groups)",
      quality.cosine(), weights::BackupMatrix::kGroup, quality.mean_cosine(), quality.least_cosine,
      share(quality.num_good, quality.num_groups), weights::BackupQuality::kGoodCosine,
      Percent(quality.num_outliers, quality.num_weights),
      share(quality.num_good_plain, quality.num_groups));
  if (quality.num_left_out > 0) {
    text += fmt::format(
        "; {} more found no room, which there is for one weight of a group, and the worst groups "
        "came first",
        FormatCount(static_cast<uint64_t>(quality.num_left_out), "weight"));
  }
  return text;
}

// Threads on one core wait for each other, and every step for the last of them.
void NoteUnpinned(const hardware::ThreadPool& pool, const comm::Group* several) {
  const int num_unpinned = pool.size() - pool.num_pinned();
  if (num_unpinned == 0) return;
  PrintNote(
      "{}{} of {} may share cores, since the system does not let them be pinned any more: the "
      "affinity mask has shrunk since the program began\n",
      several != nullptr ? fmt::format("rank {}: ", several->rank()) : "", num_unpinned,
      FormatCount(static_cast<uint64_t>(pool.size()), "thread"));
}

}  // namespace

Result<std::unique_ptr<LoadedModel>> LoadedModel::Load(const std::string& directory,
                                                       const LoadOptions& options,
                                                       const LoadObserver& observer) {
  const bool alone = options.group == nullptr || options.group->size() == 1;
  if (alone) return LoadShare(directory, options, observer);
  if (options.group->rank() == 0) AnnounceLoad(*options.group, directory, options);
  return LoadShare(directory, options, observer);
}

// Before a collective all ranks agree that none of them has an error.
Result<std::unique_ptr<LoadedModel>> LoadedModel::LoadShare(const std::string& directory,
                                                            const LoadOptions& options,
                                                            const LoadObserver& observer) {
  const auto agree = [&](const Status& mine) {
    return options.group == nullptr ? mine : comm::AgreeOnSuccess(*options.group, mine);
  };
  comm::Group* several =
      options.group != nullptr && options.group->size() > 1 ? options.group : nullptr;
  if (several != nullptr) {
    const strategy::Roles roles = options.plan.layout;
    if (roles.num_ranks() == several->size()) several->NameRoles(roles.Names());
    if (const Status same = AgreeOnFiles(*several, directory); !same) return same.error();
  }
  std::unique_ptr<LoadedModel> model(new LoadedModel);
  std::optional<ModelSource> source;
  LoadOptions resolved = options;  // with the formats of packed weights, and the plan's steps
  resolved.max_step_tokens = options.plan.step_tokens_or(options.max_step_tokens);
  if (resolved.batch_work && options.plan.step_tokens > 0) {
    resolved.batch_work->chooses_step_tokens = false;
  }
  if (several != nullptr) resolved.batch_work.reset();  // which is chosen for by one rank alone
  hardware::LaneCpus cpus;
  if (const Status opened = agree(model->Open(directory, &source, &resolved, &cpus)); !opened) {
    return opened.error();
  }
  if (several != nullptr) {
    const Status same = AgreeOnTensors(*several, source->known_digests());
    if (!same) return same.error();
  }
  const bool has_other_files = several != nullptr && !options.verify_checkpoint &&
                               !HaveSameFiles(*several, source->file_identities());
  const auto num_threads = static_cast<int>(cpus.compute.size());
  memory::Ledger& ledger = model->device_ledger();
  // A GPU's pages are in the host's memory.
  const bool is_mapped = options.offload == Offload::kMapped;
  const bool has_pages =
      !is_mapped && (options.gpu || source->packed() != nullptr ||
                     (source->checkpoint() != nullptr && !options.page_directory.empty()));
  Status can_page = plan::CanPage(resolved.plan);
  if (can_page && source->packed() != nullptr) {
    can_page = weights::CheckParts(source->packed()->parts, ShareOf(resolved));
  }
  std::function<uint64_t(const weights::WeightFormats&)> pages_to_make_bytes;
  if (has_pages && can_page && source->checkpoint() != nullptr && !options.gpu) {
    pages_to_make_bytes = [&](const weights::WeightFormats& formats) {
      return PagesToMakeBytes(options, *source->checkpoint(), formats);
    };
  }
  const FormatQuestion question{.spec = source->spec(),
                                .num_threads = num_threads,
                                .ledger = ledger,
                                .host_bytes = model->ledger_->available_bytes(),
                                .pages_to_make_bytes = pages_to_make_bytes};
  const Result<ChosenFormats> chosen =
      PlanFormats(question, resolved, has_pages && can_page ? Pages::kWhereNeeded : Pages::kNever);
  if (!chosen) {
    Error error = chosen.error();
    if (has_pages && !can_page && error.kind == ErrorKind::kResourceExhausted) {
      error.message += "; " + can_page.error().message;
    }
    return error;
  }
  const bool is_paged = chosen->memory.num_page_buffers > 0;
  const bool is_offloaded = chosen->memory.offload_micro_batches > 0;
  if (is_paged || is_offloaded) resolved.plan = PagedPlan(resolved.plan);
  if (observer.planned) observer.planned(*chosen);
  if (chosen->memory.max_sequences > 0) {
    resolved.max_sequences = chosen->memory.max_sequences;
    resolved.max_step_tokens = chosen->memory.max_step_tokens;
    const std::string& words = chosen->memory.batch_words;
    const bool is_one = resolved.batch_work && resolved.batch_work->num_requests == 1;
    if (observer.decided && !words.empty()) {
      observer.decided((is_one ? "request: " : "batch: ") + words);
    }
  }
  model->pool_ = std::make_unique<hardware::ThreadPool>(std::move(cpus.compute));
  model->host_cpus_ = std::move(cpus.host);
  if (const Status started = agree(model->pool_->started()); !started) return started.error();
  NoteUnpinned(*model->pool_, several);
  if (options.gpu) {
    const Status made = model->MakeGpu(*options.gpu, is_paged || is_offloaded);
    if (!made) return made.error();
  } else if (is_paged && source->checkpoint() != nullptr) {
    const Status made = MakePagesInTurn(
        several, {options, chosen->formats.weights, observer, *model->pool_, *model->ledger_},
        &*source);
    if (!made) return made.error();
  }
  if (options.verify_checkpoint) {
    if (const Status right = model->Verify(*source, options.group, observer); !right) {
      return right.error();
    }
  }
  // Pages are compared with their checksums when they are read, and those are the same on all
  // ranks.
  const bool compare = has_other_files && !is_paged;
  // What is decided from here on is the same on all ranks.
  LoadObserver once = observer;
  if (RankOf(options) != 0) once.decided = {};
  std::vector<NamedDigest> compared;
  if (const Status filled = agree(
          model->Fill(*std::move(source), resolved, *chosen, once, compare ? &compared : nullptr));
      !filled) {
    return filled.error();
  }
  if (compare) {
    if (const Status same = AgreeOnTensors(*several, compared); !same) return same.error();
  }
  model->TakeMeasured();
  if (const Status decided = model->ResolvePipeline(resolved, once); !decided) {
    return decided.error();
  }
  model->ResolveCrossovers(resolved);
  if (const Status ready = agree(model->CreateTransformer(resolved)); !ready) {
    if (model->transformer_) model->transformer_->Abandon();
    return ready.error();
  }
  if (model->plan_.changes_layout() && model->plan_.phase_change.keeps_both) {
    if (const Status placed = model->PlaceBothPhases(several->rank(), once); !placed)
      return placed.error();
  }
  if (model->plan_.loads_experts()) {
    const Result<weights::BackupQuality> made = model->transformer_->MakeBackup();
    if (!made) return made.error();
    if (once.decided) once.decided(DescribeBackup(*made));
  }
  return model;
}

// *Collective.* So that no step has to wait for it.
Status LoadedModel::PlaceBothPhases(int rank, const LoadObserver& observer) {
  using enum strategy::Phase;
  for (const strategy::Phase phase : {kDecode, kPrefill}) {
    if (rank == 0) {
      if (Status moved = transformer_->ChangePhase(phase); !moved) return moved;
    } else {
      transformer_->FollowStep();
    }
  }
  const runtime::PhaseChanges& changes = transformer_->phase_changes();
  if (changes.count > 0 && observer.decided) {
    observer.decided(
        fmt::format("experts: those of generated tokens came from other ranks in {:.2f} s, {} sent "
                    "by rank 0, since packed directories have whole matrices; of the original "
                    "checkpoint each rank would have read its own",
                    changes.seconds, FormatBytes(static_cast<uint64_t>(changes.sent_bytes))));
  }
  transformer_->ForgetPhaseChanges();
  return {};
}

Status LoadedModel::Open(const std::string& directory, std::optional<ModelSource>* source,
                         LoadOptions* options, hardware::LaneCpus* cpus) {
  if (Status status = CheckLoadOptions(*options); !status) return status;
  Result<ModelSource> opened =
      options->random_weights ? ModelSource::OfShape(directory) : ModelSource::Open(directory);
  if (!opened) return opened.error();
  if (Status wishes = opened->SetFormats(&options->formats); !wishes) return wishes;
  const int num_ranks = options->group != nullptr ? options->group->size() : 1;
  if (Status fits = plan::CheckRanks(options->plan.layout, num_ranks); !fits) return fits;
  if (options->verify_checkpoint && num_ranks == 1 && opened->checkpoint() != nullptr) {
    return Error{
        fmt::format("there is nothing to compare {} with: --verify-checkpoint compares the copies "
                    "of several ranks (mpirun), or the weights that convene quantize has packed "
                    "with their checksums; leave it out",
                    directory)};
  }
  *source = *std::move(opened);
  const Result<const kernels::KernelSet*> kernels = kernels::ChooseKernels();
  if (!kernels) return kernels.error();
  kernels_ = std::make_unique<MeasuredKernels>(MeasuredKernels{.set = **kernels});
  const LocalRank local = options->local.value_or(LocalRankFromLauncher());
  Result<std::vector<int>> found = hardware::CpusForThisRank(local, options->num_threads);
  if (!found && options->may_have_fewer_threads) {
    found = hardware::CpusForThisRank(local, std::nullopt);
  }
  if (!found) return found.error();
  Result<memory::Tier> tier = memory::HostTier(local.count, *found);
  if (!tier) return tier.error();
  LimitTo(options->memory_budget, &*tier);
  if (options->offload == Offload::kMapped) {
    if ((*source)->packed() == nullptr) {
      return Error{
          "--offload mmap is of a packed directory, whose weights lie in its file as they are "
          "computed with: make one with convene quantize"};
    }
    // Weights are the system's: they take none of what is planned with.
    const uint64_t mapped_bytes = (*source)->packed()->file.bytes().size();
    tier->budget_bytes += mapped_bytes;
    tier->limited_by += fmt::format(", and the {} of the mapped file, which is the system's",
                                    FormatBytes(mapped_bytes));
  }
  ledger_.emplace(*std::move(tier));
  if (options->gpu) {
    Result<memory::Tier> device = memory::DeviceTier(*options->gpu, local.count);
    if (!device) return device.error();
    if (options->device_memory_budget && *options->device_memory_budget < device->budget_bytes) {
      device->budget_bytes = *options->device_memory_budget;
      device->limited_by =
          fmt::format("--device-memory-budget {}", FormatBytes(*options->device_memory_budget));
    }
    device_ledger_.emplace(*std::move(device));
    if (!options->formats.weights) options->formats.weights = kernels::WeightFormat::kBf16;
  }
  Result<hardware::LaneCpus> split =
      hardware::SplitCpus(*std::move(found), options->plan.host_threads);
  if (!split) return split.error();
  *cpus = *std::move(split);
  const int num_threads = static_cast<int>(cpus->compute.size());
  const int left_alone = options->plan.comm_budget;
  if (left_alone > 0 && left_alone >= num_threads) {
    return Error{fmt::format(
        "{} of this rank's {} cannot be left to exchanges: --comm-budget (comm_budget of a plan) "
        "must be 0 to {}",
        left_alone, FormatCount(static_cast<uint64_t>(num_threads), "thread"), num_threads - 1)};
  }
  return {};
}

// `copies`: from the host's memory as long as it computes.
Status LoadedModel::MakeGpu(int gpu, bool copies) {
  auto device = device::MakeCudaDevice(gpu, pool_.get());
  if (!device) return device.error();
  device_ = *std::move(device);
  if (!copies) return {};
  memory::Tier pinned = ledger_->tier();
  pinned.kind = memory::TierKind::kPinned;
  pinned.gpu = gpu;
  ledger_.emplace(std::move(pinned));
  return {};
}

// *Collective.*
Status LoadedModel::Verify(const ModelSource& source, comm::Group* group,
                           const LoadObserver& observer) {
  if (const weights::PackedDirectory* packed = source.packed()) {
    const Status mine =
        weights::VerifyPacked(*packed, /*share=*/std::nullopt, *pool_, observer.progress);
    return group != nullptr ? comm::AgreeOnSuccess(*group, mine) : mine;
  }
  std::vector<weights::NamedBytes> tensors;
  for (checkpoint::StoredBytes& tensor : source.checkpoint()->stored_tensors()) {
    tensors.push_back({std::move(tensor.name), tensor.bytes});
  }
  return AgreeOnTensors(
      *group, weights::DigestTensors(tensors, /*drop_pages=*/true, *pool_, observer.progress));
}

// `compared`: null, or the digests of what other ranks' copies must have, too.
Status LoadedModel::Fill(ModelSource source, const LoadOptions& options,
                         const ChosenFormats& chosen, const LoadObserver& observer,
                         std::vector<NamedDigest>* compared) {
  plan_ = options.plan;
  disk_is_slow_ = observer.disk_is_slow;
  whole_spec_ = source.spec();
  generation_config_ = source.generation_config();
  memory_ = chosen.memory;
  formats_ = chosen.formats;
  max_step_tokens_ = options.max_step_tokens;
  max_sequences_ = options.max_sequences;
  Result<memory::Reservation> program =
      ledger_->Reserve(memory::Use::kProgram, memory_.bytes[memory::Use::kProgram]);
  if (!program) return program.error();
  program_ = *std::move(program);
  const bool is_paged = memory_.num_page_buffers > 0;
  const weights::PagedOptions pages{.num_buffers = memory_.num_page_buffers,
                                    .eviction = options.page_eviction,
                                    .owner = {options.plan.layout, RankOf(options)},
                                    .least_buffers = memory_.least_page_buffers,
                                    .reader = {.told = observer.disk_is_slow},
                                    .numa = options.numa,
                                    .cpus = pool_->cpus()};
  const auto place = [&](Result<std::unique_ptr<weights::PagedWeights>> paged) -> Status {
    if (!paged) return paged.error();
    if (observer.placed) observer.placed((*paged)->Describe() + FewerThanPlanned(options, memory_));
    store_ = *std::move(paged);
    return {};
  };
  if (is_paged && !options.gpu) {
    return place(std::move(source).LoadPaged(pages, *ledger_, observer.progress, &weights_));
  }
  std::optional<weights::PackedPlacement> placement;
  Result<weights::ModelWeights> weights =
      std::move(source).Load({.formats = chosen.formats.weights,
                              .share = ShareOf(options),
                              .rank = RankOf(options),
                              .numa = options.numa,
                              .edit = options.edit,
                              .compared = compared,
                              .stay_mapped = options.offload == Offload::kMapped,
                              .placement = &placement},
                             *pool_, *ledger_, observer.progress);
  if (!weights) return weights.error();
  weights_ = *std::move(weights);
  if (placement && observer.placed) observer.placed(placement->Describe());
  if (options.offload == Offload::kMapped && observer.placed) {
    observer.placed(
        fmt::format("{} of weights stay in the mapped file, which the system reads as it likes",
                    FormatBytes(weights_.bytes.size())));
  }
  if (is_paged) {
    auto lane = device_->CreateCopyLane();
    if (!lane) return lane.error();
    return place(
        weights::PagedWeights::OnDevice(weights_, pages, *std::move(lane), device_ledger()));
  }
  const weights::Share share = ShareOf(options);
  if (share.decode) {
    store_ = std::make_unique<weights::PhasedWeights>(weights_, whole_spec_, share);
  } else {
    store_ = std::make_unique<weights::ResidentWeights>(weights_);
  }
  return {};
}

// *Collective.*
Status LoadedModel::ResolvePipeline(const LoadOptions& options, const LoadObserver& observer) {
  if (!plan_.auto_pipeline) return {};
  const Result<ChosenPipeline> chosen =
      ChoosePipeline(options, whole_spec_, formats_, kernels_->set, *pool_, *ledger_);
  if (!chosen) return chosen.error();
  // The memory was planned for whatever may be chosen; what is not needed is given back.
  const Result<model::ModelSpec> widest =
      weights::WidestSpec(whole_spec_, ShareOf(options), formats_.weights);
  if (!widest) return widest.error();
  runtime::TransformerOptions parts = TransformerOptionsOf(options, formats_, memory_.context);
  const memory::Amounts planned =
      StepBytesOf(device::CpuBytes(), *widest, parts, options.plan, pool_->size());
  plan_.pipeline = chosen->pipeline;
  plan_.auto_pipeline = false;
  chunks_from_tokens_ = chosen->chunks_from_tokens;
  micro_batches_from_tokens_ = chosen->micro_batches_from_tokens;
  parts.parallel.pipeline = plan_.pipeline;
  parts.parallel.micro_batches_from_tokens = micro_batches_from_tokens_;
  const memory::Amounts needed =
      runtime::Transformer::StepBytes(device::CpuBytes(), *widest, parts, pool_->size());
  for (const memory::Use use : {memory::Use::kWorking, memory::Use::kExchange}) {
    memory_.bytes[use] -= planned[use] - needed[use];
  }
  if (observer.decided && !chosen->words.empty()) observer.decided(chosen->words);
  return {};
}

void LoadedModel::TakeMeasured() {
  Result<hardware::Profile> kept = hardware::LoadProfile(hardware::ProfilePath());
  const auto profile = kept ? std::optional(*std::move(kept)) : std::nullopt;
  const ComputesWith here =
      profile ? ComputesHereWith(kernels_->set.name, pool_->cpus()) : ComputesWith();
  kernels_->streaming = StreamingOf(profile, here);
  if (kernels_->streaming) kernels_->set.streaming = &*kernels_->streaming;
  crossovers_ = CrossoversOf(profile, here);
}

// *Collective.*
void LoadedModel::ResolveCrossovers(const LoadOptions& options) {
  crossovers_ = AgreeOnCrossovers(options.group, crossovers_);
  if (options.plan.gemm == plan::GemmChoice::kAuto) return;
  crossovers_.dense_from_rows = options.plan.gemm == plan::GemmChoice::kDense ? 1 : 0;
}

// The host attends with all but some of its threads, which are left to what goes to the GPU and
// comes from there.
Status LoadedModel::CreateOffloaded() {
  constexpr size_t kThreadsOfLanes = 3;
  const std::vector<int>& cpus = pool_->cpus();
  const size_t left = std::min(kThreadsOfLanes, cpus.size() / 2);
  host_pool_ = std::make_unique<hardware::ThreadPool>(
      std::vector<int>(cpus.begin() + static_cast<std::ptrdiff_t>(left), cpus.end()));
  if (Status started = host_pool_->started(); !started) return started;
  host_device_ = device::MakeCpuDevice(kernels_->set, *host_pool_);
  auto cache =
      host_device_->CreateKvCache(whole_spec_, formats_.kv, memory_.num_kv_blocks, *ledger_);
  if (!cache) return cache.error();
  host_cache_ = *std::move(cache);
  auto steps = runtime::OffloadedSteps::Create(
      weights_, *device_, *host_device_, *host_cache_,
      {.pipeline = {.micro_batches = memory_.offload_micro_batches, .pinned_pages = 0},
       .max_sequences = max_sequences_,
       .max_step_tokens = max_step_tokens_,
       .context = memory_.context,
       .activations = formats_.activations,
       .kv = formats_.kv,
       .cpus = {.compute = cpus, .host = cpus}},
      {device_ledger(), *ledger_});
  if (!steps) return steps.error();
  transformer_ = runtime::Transformer::Offload(*std::move(steps));
  return {};
}

Status LoadedModel::CreateTransformer(const LoadOptions& options) {
  if (memory_.offload_micro_batches > 0) return CreateOffloaded();
  runtime::TransformerOptions parts = TransformerOptionsOf(options, formats_, memory_.context);
  parts.num_kv_blocks = memory_.num_kv_blocks;
  if (memory_.num_spilled_blocks > 0) {
    parts.kv_spill = {.directory = options.spill_directory.empty() ? options.page_directory
                                                                   : options.spill_directory,
                      .num_blocks = memory_.num_spilled_blocks,
                      .part_blocks = memory_.spill_part_blocks,
                      .depth = memory_.spill_depth,
                      .file = {.told = disk_is_slow_}};
  }
  parts.parallel.pipeline = plan_.pipeline;
  if (options.plan.auto_pipeline) {
    parts.parallel.chunks_from_tokens = chunks_from_tokens_;
    parts.parallel.micro_batches_from_tokens = micro_batches_from_tokens_;
  }
  parts.parallel.host_cpus = host_cpus_;
  parts.parallel.whole_spec = &whole_spec_;
  parts.dense_from_rows = crossovers_.dense_from_rows;
  parts.parallel.ExpandFrom(crossovers_.expand_from_tokens);
  if (device_ == nullptr) device_ = device::MakeCpuDevice(kernels_->set, *pool_);
  Result<runtime::Transformer> transformer =
      runtime::Transformer::Create(*store_, *device_, parts, device_ledger());
  if (!transformer) return transformer.error();
  transformer_ = *std::move(transformer);
  if (options.kv_memory_s > 0) transformer_->kv_cache().TakeMemory(*pool_, options.kv_memory_s);
  return {};
}

}  // namespace convene::engine
