#include "weights/tensor_digests.h"

#include <algorithm>

#include "checkpoint/mapped_file.h"

namespace convene::weights {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
// Read ahead together: as load_weights.cc has it.
constexpr uint64_t kDigestBatchBytes = uint64_t{128} << 20;

}  // namespace

std::vector<uint64_t> DigestEach(std::span<const std::span<const std::byte>> blocks,
                                 bool drop_pages, hardware::ThreadPool& pool) {
  std::vector<std::span<const std::byte>> pieces;
  std::vector<size_t> first_piece = {0};
  for (std::span<const std::byte> block : blocks) {
    do {
      const size_t size = std::min(block.size(), kPieceBytes);
      pieces.push_back(block.first(size));
      block = block.subspan(size);
    } while (!block.empty());
    first_piece.push_back(pieces.size());
  }
  std::vector<uint64_t> of_pieces(pieces.size());
  pool.ParallelFor(std::ssize(pieces), [&](int64_t index, int) {
    of_pieces[index] = DigestOf(pieces[index]);
    if (drop_pages) checkpoint::DontNeed(pieces[index]);
  });
  std::vector<uint64_t> digests;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto own =
        std::span(of_pieces).subspan(first_piece[i], first_piece[i + 1] - first_piece[i]);
    digests.push_back(own.size() == 1 ? own.front() : DigestOf(std::as_bytes(own)));
  }
  return digests;
}

void BlockDigest::Arrived(uint64_t num_bytes) {
  while (!left_.empty()) {
    const size_t size = std::min(left_.size(), kPieceBytes);
    if (digested_bytes_ + size > num_bytes) return;
    of_pieces_.push_back(DigestOf(left_.first(size)));
    left_ = left_.subspan(size);
    digested_bytes_ += size;
  }
}

uint64_t BlockDigest::Finish() {
  Arrived(digested_bytes_ + left_.size());
  if (of_pieces_.empty()) return DigestOf({});
  return of_pieces_.size() == 1 ? of_pieces_.front()
                                : DigestOf(std::as_bytes(std::span(of_pieces_)));
}

std::vector<NamedDigest> DigestTensors(std::span<const NamedBytes> tensors, bool drop_pages,
                                       hardware::ThreadPool& pool, const LoadProgress& progress) {
  std::vector<std::span<const NamedBytes>> batches;
  uint64_t total_bytes = 0;
  uint64_t batch_bytes = 0;
  for (size_t i = 0, begin = 0; i < tensors.size(); ++i) {
    total_bytes += tensors[i].bytes.size();
    batch_bytes += tensors[i].bytes.size();
    if (batch_bytes < kDigestBatchBytes && i + 1 < tensors.size()) continue;
    batches.push_back(tensors.subspan(begin, i + 1 - begin));
    begin = i + 1;
    batch_bytes = 0;
  }
  std::vector<NamedDigest> digests;
  uint64_t done_bytes = 0;
  for (size_t i = 0; i < batches.size(); ++i) {
    if (i + 1 < batches.size()) {
      for (const NamedBytes& next : batches[i + 1]) checkpoint::WillNeed(next.bytes);
    }
    std::vector<std::span<const std::byte>> blocks;
    for (const NamedBytes& tensor : batches[i]) blocks.push_back(tensor.bytes);
    const std::vector<uint64_t> of_batch = DigestEach(blocks, drop_pages, pool);
    for (size_t j = 0; j < blocks.size(); ++j) {
      digests.push_back({batches[i][j].name, of_batch[j]});
      done_bytes += blocks[j].size();
    }
    if (progress) progress(done_bytes, total_bytes);
  }
  return digests;
}

}  // namespace convene::weights
