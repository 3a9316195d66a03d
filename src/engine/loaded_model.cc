#include "engine/loaded_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/environment.h"
#include "checkpoint/checkpoint.h"
#include "hardware/memory_status.h"
#include "hardware/profile.h"
#include "hardware/topology.h"
#include "kernels/choose_kernels.h"
#include "weights/packed_directory.h"

namespace convene::engine {
namespace {

// Beyond these a typing error is likelier than a wish.
constexpr int kMaxContext = 1 << 24;
constexpr int kMaxStepTokens = 1 << 16;

Status CheckOptions(const LoadOptions& options) {
  if (options.context && (*options.context < 2 || *options.context > kMaxContext)) {
    return Error{fmt::format("a context of {} tokens is out of range; it must be 2 to {}",
                             *options.context, kMaxContext)};
  }
  if (options.max_step_tokens < 1 || options.max_step_tokens > kMaxStepTokens) {
    return Error{fmt::format("chunks of {} tokens are out of range; they must be 1 to {}",
                             options.max_step_tokens, kMaxStepTokens)};
  }
  if (options.max_sequences < 1 || options.max_sequences > options.max_step_tokens) {
    return Error{fmt::format(
        "a batch of {} sequences is out of range; it must be 1 to the {} tokens of a chunk",
        options.max_sequences, options.max_step_tokens)};
  }
  return {};
}

// Positions beyond the trained ones would give text that looks like an answer and is none.
Status CheckContext(const model::ModelSpec& spec, const LoadOptions& options) {
  if (!options.context || *options.context <= spec.max_positions) return {};
  return Error{
      fmt::format("a context of {} tokens is longer than the {} positions that this model has "
                  "(max_position_embeddings in its config.json); use at most that many",
                  *options.context, spec.max_positions)};
}

Result<ChosenFormats> Plan(const model::ModelSpec& spec, const LoadOptions& options,
                           int num_threads) {
  if (const Status fits = CheckContext(spec, options); !fits) return fits.error();
  const Result<hardware::AvailableMemory> available = hardware::ReadAvailableMemory();
  if (!available) return available.error();
  const int context = options.context.value_or(std::min(spec.max_positions, kDefaultContext));
  return ChooseFormats(options.formats, [&](const runtime::Formats& formats) {
    return PlanMemory({
        .weights_bytes = weights::PackedSizeBytes(spec, formats.weights),
        .kv_block_bytes = runtime::Transformer::KvBlockBytes(spec, formats.kv),
        .activation_bytes = runtime::Transformer::ActivationBytes(
            spec,
            {.max_step_tokens = options.max_step_tokens,
             .context = context,
             .activations = formats.activations},
            num_threads),
        .context = context,
        .max_sequences = options.max_sequences,
        .contexts_per_sequence = spec.has_encoder() ? 2 : 1,
        .available_bytes = available->bytes,
        .limited_by = available->limited_by,
    });
  });
}

// What `convene measure` found, if it was with these kernels and threads.
std::optional<hardware::Profile> ProfileOf(const kernels::KernelSet& kernels,
                                           const std::vector<int>& cpus) {
  Result<hardware::Profile> profile = hardware::LoadProfile(hardware::ProfilePath());
  const bool fits = profile && profile->isa == kernels.name && profile->cpus == cpus;
  return fits ? std::optional(*std::move(profile)) : std::nullopt;
}

// Where the weights come from: one of the two.
struct Source {
  std::optional<checkpoint::Checkpoint> checkpoint = {};
  std::optional<weights::PackedDirectory> packed = {};
  LoadOptions options;  // with the formats of `packed`

  const model::ModelSpec& spec() const {
    return packed ? packed->configuration.spec : checkpoint->spec();
  }
  const checkpoint::GenerationConfig& generation_config() const {
    return packed ? packed->configuration.generation_config : checkpoint->generation_config();
  }
};

Result<Source> OpenSource(const std::string& directory, const LoadOptions& options) {
  Source source{.options = options};
  if (!weights::IsPackedDirectory(directory)) {
    Result<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::Open(directory);
    if (!checkpoint) return checkpoint.error();
    source.checkpoint = *std::move(checkpoint);
    return source;
  }
  Result<weights::PackedDirectory> packed = weights::OpenPackedDirectory(directory);
  if (!packed) return packed.error();
  FormatWishes& wishes = source.options.formats;
  if (wishes.weights && *wishes.weights != packed->formats.matrices) {
    return Error{
        fmt::format("{} holds {} weights, not {}; leave --weights out, or make another "
                    "directory with convene quantize",
                    directory, Name(packed->formats.matrices), Name(*wishes.weights))};
  }
  if (wishes.int4_group && *wishes.int4_group != packed->formats.group) {
    return Error{
        fmt::format("{} holds groups of {} columns, not {}; leave --int4-group out, or make "
                    "another directory with convene quantize",
                    directory, packed->formats.group, *wishes.int4_group)};
  }
  wishes.weights = packed->formats.matrices;
  wishes.int4_group = packed->formats.group;
  source.packed = *std::move(packed);
  return source;
}

}  // namespace

Result<std::unique_ptr<LoadedModel>> LoadedModel::Load(const std::string& directory,
                                                       const LoadOptions& options,
                                                       const LoadObserver& observer) {
  if (const Status status = CheckOptions(options); !status) return status.error();
  std::unique_ptr<LoadedModel> model(new LoadedModel);
  Result<Source> source = OpenSource(directory, options);
  if (!source) return source.error();
  const Result<const kernels::KernelSet*> kernels = kernels::ChooseKernels();
  if (!kernels) return kernels.error();
  Result<std::vector<int>> cpus =
      hardware::CpusForThisRank(LocalRankFromLauncher(), options.num_threads);
  if (!cpus) return cpus.error();
  const Result<ChosenFormats> chosen =
      Plan(source->spec(), source->options, static_cast<int>(cpus->size()));
  if (!chosen) return chosen.error();
  if (observer.planned) observer.planned(*chosen);

  model->kernels_ = *kernels;
  model->pool_ = std::make_unique<hardware::ThreadPool>(*std::move(cpus));
  model->generation_config_ = source->generation_config();
  model->memory_ = chosen->memory;
  model->formats_ = chosen->formats;
  model->max_step_tokens_ = options.max_step_tokens;
  if (source->packed) {
    CHECK(!options.edit, "packed weights are mapped and cannot be edited");
    Result<weights::ModelWeights> weights = weights::MapWeights(*std::move(source->packed));
    if (!weights) return weights.error();
    model->weights_ = *std::move(weights);
  } else {
    Result<weights::ModelWeights> weights =
        weights::LoadWeights(*source->checkpoint, chosen->formats.weights, weights::Share{},
                             options.numa, *model->pool_, observer.progress, options.edit);
    if (!weights) return weights.error();
    model->weights_ = *std::move(weights);
  }
  const auto profile = ProfileOf(**kernels, model->pool_->cpus());
  Result<runtime::Transformer> transformer = runtime::Transformer::Create(
      model->weights_, **kernels, *model->pool_,
      {.max_step_tokens = options.max_step_tokens,
       .num_kv_blocks = chosen->memory.num_kv_blocks,
       .context = chosen->memory.context,
       .activations = chosen->formats.activations,
       .kv = chosen->formats.kv,
       .dense_from_rows = profile ? profile->dense_from_rows : 0,
       .expand_from_tokens = profile ? profile->expand_from_tokens : runtime::kExpandFromTokens,
       .expert_capacity = options.expert_capacity});
  if (!transformer) return transformer.error();
  model->transformer_ = *std::move(transformer);
  return model;
}

}  // namespace convene::engine
