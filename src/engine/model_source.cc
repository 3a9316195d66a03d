#include "engine/model_source.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "checkpoint/model_files.h"
#include "weights/random_weights.h"

namespace convene::engine {

Result<ModelSource> ModelSource::Open(const std::string& directory) {
  if (weights::IsPackedDirectory(directory)) {
    Result<weights::PackedDirectory> packed = weights::OpenPackedDirectory(directory);
    if (!packed) return packed.error();
    return ModelSource(directory, *std::move(packed));
  }
  Result<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::Open(directory);
  if (!checkpoint) return checkpoint.error();
  return ModelSource(directory, *std::move(checkpoint));
}

Result<ModelSource> ModelSource::OfShape(const std::string& directory) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(directory, ignored)) {
    Result<checkpoint::ModelConfiguration> shape = checkpoint::ReadModelConfiguration(directory);
    if (!shape) return shape.error();
    return ModelSource(directory, *std::move(shape));
  }
  // A bare config.json.
  Result<model::ModelSpec> spec = checkpoint::OpenConfig(directory);
  if (!spec) return spec.error();
  return ModelSource(directory, checkpoint::ModelConfiguration{*std::move(spec), {}});
}

const model::ModelSpec& ModelSource::spec() const {
  if (packed() != nullptr) return packed()->configuration.spec;
  if (checkpoint() != nullptr) return checkpoint()->spec();
  return std::get<checkpoint::ModelConfiguration>(source_).spec;
}

const checkpoint::GenerationConfig& ModelSource::generation_config() const {
  if (packed() != nullptr) return packed()->configuration.generation_config;
  if (checkpoint() != nullptr) return checkpoint()->generation_config();
  return std::get<checkpoint::ModelConfiguration>(source_).generation_config;
}

std::vector<NamedDigest> ModelSource::known_digests() const {
  if (packed() != nullptr) {
    std::vector<NamedDigest> checksums = packed()->checksums;
    const weights::Share& parts = packed()->parts;
    if (parts == weights::Share{}) return checksums;
    // What other ranks have another part of is another tensor.
    for (NamedDigest& each : checksums) {
      each.name += fmt::format(" (part {} of {}, slice {} of {})", parts.attention_part,
                               parts.attention_parts, parts.expert_slice, parts.expert_slices);
    }
    return checksums;
  }
  return checkpoint() != nullptr ? checkpoint()->Samples() : std::vector<NamedDigest>();
}

std::string ModelSource::file_identities() const {
  if (packed() != nullptr) return packed()->file.identity();
  return checkpoint() != nullptr ? checkpoint()->FileIdentities() : std::string();
}

Status ModelSource::SetFormats(FormatWishes* wishes) const {
  if (packed() == nullptr) return {};
  const weights::WeightFormats& formats = packed()->formats;
  if (wishes->weights && *wishes->weights != formats.matrices) {
    return Error{
        fmt::format("{} holds {} weights, not {}; leave --weights out, or make another "
                    "directory with convene quantize",
                    directory_, Name(formats.matrices), Name(*wishes->weights))};
  }
  if (wishes->int4_group && *wishes->int4_group != formats.group) {
    return Error{
        fmt::format("{} holds groups of {} columns, not {}; leave --int4-group out, or make "
                    "another directory with convene quantize",
                    directory_, formats.group, *wishes->int4_group)};
  }
  wishes->weights = formats.matrices;
  wishes->int4_group = formats.group;
  return {};
}

Result<std::unique_ptr<weights::PagedWeights>> ModelSource::LoadPaged(
    const weights::PagedOptions& options, memory::Ledger& ledger,
    const weights::LoadProgress& progress, weights::ModelWeights* weights) && {
  CHECK(packed() != nullptr, "only packed weights have pages");
  return weights::PagedWeights::Load(std::get<weights::PackedDirectory>(std::move(source_)),
                                     options, ledger, progress, weights);
}

Result<weights::ModelWeights> ModelSource::Load(const LoadRequest& request,
                                                hardware::ThreadPool& pool, memory::Ledger& ledger,
                                                const weights::LoadProgress& progress) && {
  if (const checkpoint::Checkpoint* whole = checkpoint()) {
    return weights::LoadWeights(*whole, request.formats, request.share, request.numa, pool, ledger,
                                progress, request.edit, request.compared);
  }
  if (packed() == nullptr) {
    CHECK(!request.edit, "random weights cannot be edited");
    return weights::RandomWeights(spec(), request.formats, request.share, request.rank, ledger);
  }
  CHECK(!request.edit, "weights that are packed ahead cannot be edited");
  if (request.compared != nullptr) {
    const Status right = weights::VerifyPacked(*packed(), request.share, pool, {});
    if (!right) return right.error();
  }
  Result<weights::ModelWeights> mapped = weights::MapWeights(
      std::get<weights::PackedDirectory>(std::move(source_)), ledger, request.share);
  if (!mapped) return mapped.error();
  if (request.stay_mapped) return mapped;
  Result<weights::PlacedWeights> placed =
      weights::PlacePacked(*std::move(mapped), request.numa, pool, ledger, progress);
  if (!placed) return placed.error();
  if (request.placement != nullptr) *request.placement = std::move(placed->placement);
  return std::move(placed->weights);
}

}  // namespace convene::engine
