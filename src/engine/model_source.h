// Where a model comes from: a Hugging Face directory, whose weights are read and packed, or a
// packed directory, whose weights are mapped as they are. Opened and checked; no weights are read
// before Load. The tokenizer is the same files in both (text/tokenizer.h).
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "engine/choose_formats.h"
#include "hardware/numa.h"
#include "hardware/thread_pool.h"
#include "weights/load_weights.h"
#include "weights/packed_directory.h"

namespace convene::engine {

class ModelSource {
 public:
  // Errors: as Checkpoint::Open or weights::OpenPackedDirectory.
  static Result<ModelSource> Open(const std::string& directory);

  // One of the two is null. Valid as long as this.
  const checkpoint::Checkpoint* checkpoint() const {
    return std::get_if<checkpoint::Checkpoint>(&source_);
  }
  const weights::PackedDirectory* packed() const {
    return std::get_if<weights::PackedDirectory>(&source_);
  }

  const std::string& directory() const { return directory_; }
  const model::ModelSpec& spec() const;
  const checkpoint::GenerationConfig& generation_config() const;

  // Of all tensors, without reading them: those that were stored, or of samples.
  std::vector<NamedDigest> known_digests() const;
  std::string file_identities() const;

  // Packed weights have formats, which become the wishes. Error: other ones are wished.
  Status SetFormats(FormatWishes* wishes) const;

  struct LoadRequest {
    weights::WeightFormats formats;  // of packed weights: theirs
    weights::Share share = {};
    hardware::NumaPolicy numa = hardware::NumaPolicy::kAuto;
    weights::MatrixEdit edit = {};  // not of packed weights
    // Null, or gets the digests of what other ranks' copies must have, too. The checksums of packed
    // weights are the same on all ranks: they are compared with this copy at once.
    std::vector<NamedDigest>* compared = nullptr;
  };

  // Ends the source. Errors: as weights::LoadWeights, or VerifyPacked and MapWeights.
  Result<weights::ModelWeights> Load(const LoadRequest& request, hardware::ThreadPool& pool,
                                     const weights::LoadProgress& progress) &&;

 private:
  using Source = std::variant<checkpoint::Checkpoint, weights::PackedDirectory>;
  ModelSource(std::string directory, Source source)
      : directory_(std::move(directory)), source_(std::move(source)) {}

  std::string directory_;
  Source source_;
};

}  // namespace convene::engine
