// convene.safetensors of a packed directory: which tensors it has where, and how it is written page
// by page, so that no more of a model need be in memory than the pages in work. What a packed
// directory is, and how one is read, is packed_directory.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/output_file.h"
#include "checkpoint/safetensors.h"
#include "hardware/thread_pool.h"
#include "weights/named_weights.h"

namespace convene::weights {

// Names in a packed directory, and the version that convene.json gives.
inline constexpr const char* kFormatsName = "convene.json";
inline constexpr const char* kWeightsName = "convene.safetensors";
inline constexpr int kPackedVersion = 4;

// Of each matrix, with the zeros behind the last one of a page.
std::vector<uint64_t> StoredBytesOf(const std::vector<NamedMatrix>& matrices);

// What the file's table of contents says of them.
checkpoint::StoredTensor TensorOf(const NamedMatrix& named, uint64_t stored_bytes);
checkpoint::StoredTensor TensorOf(const NamedVector& named);
checkpoint::StoredTensor ChecksumsOf(size_t num_tensors);

class PackedFile {
 public:
  // Of a model with the shapes of `weights`, or of those parts of one (Vectors). Creates the file
  // and reserves its space, or, where `continues`, opens the one that an earlier Open created.
  // Errors: those of OutputFile.
  static Result<PackedFile> Open(ModelWeights& weights, const Share& parts, const std::string& path,
                                 bool continues);
  // What it will have.
  static uint64_t SizeBytes(ModelWeights& weights, const Share& parts);

  // Writes the matrices from number `first` of Matrices on, whole pages, and appends their digests.
  Status WriteMatrices(size_t first, std::span<const std::span<const std::byte>> contents,
                       hardware::ThreadPool& pool, std::vector<uint64_t>* digests);
  // Waits until what was written is on the disk, and lets go of it in the page cache.
  Status Flush() { return file_.Flush(); }
  // What is left: norms and biases, and the checksums; `digests` are those of all matrices. Then
  // nothing of the file is in the page cache, where it would be in small pages: whoever maps it
  // next may have huge ones.
  Status Finish(ModelWeights& weights, const Share& parts, std::vector<uint64_t> digests,
                hardware::ThreadPool& pool);

 private:
  explicit PackedFile(checkpoint::OutputFile file) : file_(std::move(file)) {}

  checkpoint::OutputFile file_;
  std::vector<uint64_t> offsets_;  // of the matrices, and of what comes behind them
};

}  // namespace convene::weights
