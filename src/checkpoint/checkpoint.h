// A Hugging Face model directory, opened and checked: its architecture and the stored bytes of
// every tensor. It converts nothing and keeps nothing but mappings of the files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/stored_parts.h"
#include "model/model_spec.h"
#include "tensor/dtype.h"
#include "tensor/small_floats.h"

namespace convene::checkpoint {

// A matrix as it is stored, row-major without padding; `bytes` may have any alignment. Where it has
// scales, they are those of the whole stored matrix.
struct TensorView {
  tensor::DType dtype = tensor::DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<const std::byte> bytes;
  tensor::BlockScales scales = {};
  uint64_t stored_offset = 0;  // of bytes, in the stored tensor
  uint64_t stored_bytes = 0;   // the size of that
};

// A tensor as it is stored, whole.
struct StoredBytes {
  std::string name;
  std::span<const std::byte> bytes;
};

// What a model directory says beside its weights: config.json and generation_config.json.
struct ModelConfiguration {
  model::ModelSpec spec;
  GenerationConfig generation_config;
};

// Errors name the file and what is wrong with it.
Result<ModelConfiguration> ReadModelConfiguration(const std::string& directory);

class Checkpoint {
 public:
  // Opens the directory and checks that its files hold exactly the tensors of spec(): each with its
  // shape and dtype, none else (but for a few known to be harmless). Reads no weights,
  // with one exception: where tied embeddings come with a stored head, the two are compared, and
  // spec() is untied if they differ, as in transformers.
  // Errors name the file and the tensor, what was found and what was expected.
  static Result<Checkpoint> Open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  const model::ModelSpec& spec() const { return spec_; }
  const GenerationConfig& generation_config() const { return generation_config_; }

  // The block of the stored tensor that `binding`, one of spec().tensors, means: (rows * row_step,
  // cols), or (cols, rows * row_step) where it is transposed. Valid as long as the checkpoint. Any
  // thread.
  TensorView View(const model::TensorBinding& binding) const;

  // All stored tensors, in the order of the files.
  std::vector<StoredBytes> stored_tensors() const;

  // Of each stored tensor a digest of its type and shape, and of a few hundred of them of some
  // bytes from the beginning, the middle and the end, in the order of names: it takes no time and
  // tells nearly all models apart that have one shape.
  std::vector<NamedDigest> Samples() const;

  // The same text for processes of one machine that have mapped the very same files.
  std::string FileIdentities() const;
  // The same text as long as nobody moves, replaces or writes to the files, also in later processes
  // and after the disk was mounted again.
  std::string FileStates() const;

  // Error: a file was written to since it was opened.
  Status CheckUnchanged() const;

  int num_files() const { return static_cast<int>(files_.size()); }
  uint64_t size_bytes() const;  // of all tensors as stored

 private:
  struct Location {
    size_t file = 0;  // of files_
    StoredTensor tensor;
  };

  Checkpoint() = default;
  Status MapWeights();
  Status CheckTensors();
  Result<bool> CheckPart(const StoredPart& part) const;  // false: missing
  Status ResolveTiedHead();
  std::span<const std::byte> Bytes(const Location& location) const;

  std::string directory_;
  model::ModelSpec spec_;
  GenerationConfig generation_config_;
  std::vector<MappedFile> files_;
  std::unordered_map<std::string, Location> tensors_;
};

}  // namespace convene::checkpoint
