#include "weights/packed_file.h"

#include "memory/page_reader.h"
#include "weights/tensor_digests.h"

namespace convene::weights {
namespace {

constexpr const char* kChecksumsName = "checksums";

// All of a file but its matrices' contents.
struct Contents {
  std::string prefix;
  std::vector<uint64_t> matrix_bytes;  // as stored
  uint64_t size_bytes = 0;
};

Contents ContentsOf(ModelWeights& weights, const Share& parts) {
  const std::vector<NamedMatrix> matrices = Matrices(weights);
  Contents contents{.prefix = {}, .matrix_bytes = StoredBytesOf(matrices)};
  std::vector<checkpoint::StoredTensor> tensors;
  for (size_t i = 0; i < matrices.size(); ++i) {
    tensors.push_back(TensorOf(matrices[i], contents.matrix_bytes[i]));
    contents.size_bytes += contents.matrix_bytes[i];
  }
  for (const NamedVector& named : Vectors(weights, parts)) {
    tensors.push_back(TensorOf(named));
    contents.size_bytes += static_cast<uint64_t>(named.size) * sizeof(float);
  }
  contents.size_bytes += tensors.size() * sizeof(uint64_t);
  tensors.push_back(ChecksumsOf(tensors.size()));
  contents.prefix = checkpoint::SafetensorsPrefix(tensors, memory::kDirectBlockBytes);
  contents.size_bytes += contents.prefix.size();
  return contents;
}

}  // namespace

std::vector<uint64_t> StoredBytesOf(const std::vector<NamedMatrix>& matrices) {
  std::vector<uint64_t> sizes;
  uint64_t page_bytes = 0;
  for (const NamedMatrix& named : matrices) {
    const uint64_t size_bytes = named.matrix->size_bytes();
    page_bytes += size_bytes;
    const uint64_t num_zeros = named.ends_page ? memory::DirectBytes(page_bytes) - page_bytes : 0;
    sizes.push_back(size_bytes + num_zeros);
    if (named.ends_page) page_bytes = 0;
  }
  return sizes;
}

checkpoint::StoredTensor TensorOf(const NamedMatrix& named, uint64_t stored_bytes) {
  return {.name = named.name, .dtype = "U8", .shape = {static_cast<int64_t>(stored_bytes)}};
}

checkpoint::StoredTensor TensorOf(const NamedVector& named) {
  return {.name = named.name, .dtype = "F32", .shape = {named.size}};
}

checkpoint::StoredTensor ChecksumsOf(size_t num_tensors) {
  return {.name = kChecksumsName, .dtype = "U64", .shape = {static_cast<int64_t>(num_tensors)}};
}

uint64_t PackedFile::SizeBytes(ModelWeights& weights, const Share& parts) {
  return ContentsOf(weights, parts).size_bytes;
}

Result<PackedFile> PackedFile::Open(ModelWeights& weights, const Share& parts,
                                    const std::string& path, bool continues) {
  const Contents contents = ContentsOf(weights, parts);
  Result<checkpoint::OutputFile> file =
      continues ? checkpoint::OutputFile::Continue(path)
                : checkpoint::OutputFile::Create(path, contents.size_bytes);
  if (!file) return file.error();
  PackedFile packed(*std::move(file));
  packed.offsets_.push_back(contents.prefix.size());
  for (const uint64_t size_bytes : contents.matrix_bytes) {
    packed.offsets_.push_back(packed.offsets_.back() + size_bytes);
  }
  const Status written = packed.file_.WriteAt(0, std::as_bytes(std::span(contents.prefix)));
  if (!written) return written.error();
  return packed;
}

Status PackedFile::WriteMatrices(size_t first, std::span<const std::span<const std::byte>> contents,
                                 hardware::ThreadPool& pool, std::vector<uint64_t>* digests) {
  const std::vector<uint64_t> of_these = DigestEach(contents, /*drop_pages=*/false, pool);
  digests->insert(digests->end(), of_these.begin(), of_these.end());
  const std::vector<std::byte> zeros(memory::kDirectBlockBytes);
  for (size_t i = 0; i < contents.size(); ++i) {
    const uint64_t offset = offsets_[first + i];
    if (Status written = file_.WriteAt(offset, contents[i]); !written) return written;
    const uint64_t end = offset + contents[i].size();
    const uint64_t num_zeros = offsets_[first + i + 1] - end;
    if (Status written = file_.WriteAt(end, std::span(zeros).first(num_zeros)); !written) {
      return written;
    }
  }
  return {};
}

Status PackedFile::Finish(ModelWeights& weights, const Share& parts, std::vector<uint64_t> digests,
                          hardware::ThreadPool& pool) {
  std::vector<std::span<const std::byte>> contents;
  for (const NamedVector& named : Vectors(weights, parts)) {
    contents.push_back(std::as_bytes(std::span(*named.values)));
  }
  const std::vector<uint64_t> of_vectors = DigestEach(contents, /*drop_pages=*/false, pool);
  digests.insert(digests.end(), of_vectors.begin(), of_vectors.end());
  contents.push_back(std::as_bytes(std::span(digests)));
  uint64_t offset = offsets_.back();
  for (const std::span<const std::byte> bytes : contents) {
    if (Status written = file_.WriteAt(offset, bytes); !written) return written;
    offset += bytes.size();
  }
  if (Status flushed = file_.Flush(); !flushed) return flushed;
  return file_.Finish();
}

}  // namespace convene::weights
