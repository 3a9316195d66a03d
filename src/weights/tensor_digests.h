// Digests of tensors as they lie in files, computed with all threads, to compare copies of a model.
// What they are compared with is the caller's matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "hardware/thread_pool.h"

namespace convene::weights {

// Called from the loading thread with bytes done so far and in total; may be empty.
using LoadProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// Of each block its digest: of a long one the digest of its pieces' digests, so that threads share
// it. Digests of packed directories are made like this, so pieces keep their size. `drop_pages`: of
// mapped files this process lets go of each piece once it was read.
std::vector<uint64_t> DigestEach(std::span<const std::span<const std::byte>> blocks,
                                 bool drop_pages, hardware::ThreadPool& pool);

// Of one block, on the calling thread, while it arrives from its beginning to its end.
class BlockDigest {
 public:
  explicit BlockDigest(std::span<const std::byte> block) : left_(block) {}

  // So many of its bytes are there, no fewer than before.
  void Arrived(uint64_t num_bytes);
  // Of the block, which is there.
  uint64_t Finish();

 private:
  std::span<const std::byte> left_;  // not digested yet
  uint64_t digested_bytes_ = 0;
  std::vector<uint64_t> of_pieces_;
};

// Bytes of a mapped file.
struct NamedBytes {
  std::string name;
  std::span<const std::byte> bytes;
};

// Reads all of them once, in this order, the disk being ahead. `drop_pages`: this process lets go
// of the pages behind it.
std::vector<NamedDigest> DigestTensors(std::span<const NamedBytes> tensors, bool drop_pages,
                                       hardware::ThreadPool& pool, const LoadProgress& progress);

}  // namespace convene::weights
