// Where a model comes from: a Hugging Face directory, whose weights are read and packed, a packed
// directory, whose weights are mapped or copied as they are, or a directory's config.json alone,
// for measurements with random weights. Opened and checked; no weights are read before Load. The
// tokenizer is the same files in the first two (text/tokenizer.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "engine/choose_formats.h"
#include "hardware/numa.h"
#include "hardware/thread_pool.h"
#include "memory/ledger.h"
#include "weights/load_weights.h"
#include "weights/packed_directory.h"
#include "weights/paged_weights.h"
#include "weights/place_packed.h"

namespace convene::engine {

class ModelSource {
 public:
  // Errors: as Checkpoint::Open or weights::OpenPackedDirectory.
  static Result<ModelSource> Open(const std::string& directory);
  // With random weights. Errors: as checkpoint::ReadModelConfiguration.
  static Result<ModelSource> OfShape(const std::string& directory);

  // One of the two is null, or both where weights are random. Valid as long as this.
  const checkpoint::Checkpoint* checkpoint() const {
    return std::get_if<checkpoint::Checkpoint>(&source_);
  }
  const weights::PackedDirectory* packed() const {
    return std::get_if<weights::PackedDirectory>(&source_);
  }

  const std::string& directory() const { return directory_; }
  const model::ModelSpec& spec() const;
  const checkpoint::GenerationConfig& generation_config() const;

  // Digests of all tensors, known without reading them whole: checksums that were stored when the
  // weights were packed, otherwise digests of samples.
  std::vector<NamedDigest> known_digests() const;
  std::string file_identities() const;

  // Sets `wishes` to the formats of packed weights. Error: they ask for other ones.
  Status SetFormats(FormatWishes* wishes) const;

  struct LoadRequest {
    weights::WeightFormats formats;  // where weights are packed ahead: those that they have
    weights::Share share = {};
    int rank = 0;  // of random weights
    hardware::NumaPolicy numa = hardware::NumaPolicy::kAuto;
    weights::MatrixEdit edit = {};  // none where weights are packed ahead
    // Null, or gets the digests of what other ranks' copies must have, too. The checksums of packed
    // weights are the same on all ranks: they are compared with this copy at once.
    std::vector<NamedDigest>* compared = nullptr;
    // Of weights that were packed ahead: where they are in the mapped file they stay, read or not.
    bool stay_mapped = false;
    // Null, or gets where weights lie that were packed ahead, and why.
    std::optional<weights::PackedPlacement>* placement = nullptr;
  };

  // Leaves the source empty. Errors: as weights::LoadWeights, or VerifyPacked, MapWeights and
  // PlacePacked, or RandomWeights.
  Result<weights::ModelWeights> Load(const LoadRequest& request, hardware::ThreadPool& pool,
                                     memory::Ledger& ledger,
                                     const weights::LoadProgress& progress) &&;

  // The same of packed weights whose experts do not fit into memory. Errors: as PagedWeights::Load.
  Result<std::unique_ptr<weights::PagedWeights>> LoadPaged(const weights::PagedOptions& options,
                                                           memory::Ledger& ledger,
                                                           const weights::LoadProgress& progress,
                                                           weights::ModelWeights* weights) &&;

 private:
  using Source = std::variant<checkpoint::Checkpoint, weights::PackedDirectory,
                              checkpoint::ModelConfiguration>;
  ModelSource(std::string directory, Source source)
      : directory_(std::move(directory)), source_(std::move(source)) {}

  std::string directory_;
  Source source_;
};

}  // namespace convene::engine
