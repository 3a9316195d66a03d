// Brings the weights of a packed directory into memory in the pages from which the kernels read
// fastest: the mapped file where the system maps it in huge pages, otherwise a copy in memory of
// this process. It changes no bit of them.
//
// Decode reads all weights of a layer once per token. In pages of 4 KiB the processor looks up an
// address every 64 lines, in huge pages every 32,768; docs/results/packed_directories.md measures
// what that costs. The mapped file is preferred, because all processes of a host share its pages,
// and because nothing is copied. A copy is of what the rank's share has alone.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/mapped_file.h"
#include "hardware/huge_pages.h"
#include "hardware/numa.h"
#include "hardware/thread_pool.h"
#include "memory/ledger.h"
#include "weights/model_weights.h"
#include "weights/tensor_digests.h"

namespace convene::weights {

// Where weights of a packed directory lie, and why.
struct PackedPlacement {
  bool is_copied = false;   // otherwise they are mapped
  uint64_t size_bytes = 0;  // of what this rank reads
  uint64_t huge_bytes = 0;  // of that, what lies in huge pages
  double elapsed_s = 0;     // of reading it into memory
  std::string reason = {};  // why they are copied, or are in small pages; otherwise empty

  // "1.96 GiB of weights mapped in huge pages in 0.6 s (3.3 GiB/s)", and the reason.
  std::string Describe() const;
};

struct PlacedWeights {
  ModelWeights weights;
  PackedPlacement placement;
};

// How many of these mapped bytes lie in huge pages (hardware::HugePageBytes, or a test's).
using CountHugePages = std::function<uint64_t(std::span<const std::byte> bytes)>;

// Takes the weights that MapWeights gave. Reads all of them into memory with the threads of `pool`.
// They stay mapped if the system then has them in huge pages, if they are smaller than one, or if
// there is no memory for a copy; otherwise they are copied, and the file is no longer mapped.
// The ledger has them as weights in either case, as many bytes. `numa` says where a copy lies.
// Weights with rooms for experts are always copied, since experts are written there, and those of a
// ledger of pinned memory. Errors: the
// file was cut, replaced or written to meanwhile, its disk fails, the system refuses the NUMA
// policy; there is no memory for a copy that must be.
Result<PlacedWeights> PlacePacked(ModelWeights mapped, hardware::NumaPolicy numa,
                                  hardware::ThreadPool& pool, memory::Ledger& ledger,
                                  const LoadProgress& progress,
                                  const CountHugePages& count = hardware::HugePageBytes);

// Its steps.

// The parts of the mapped file that hold the matrices of `weights`, in the order of the file.
std::vector<std::span<const std::byte>> MappedRuns(const ModelWeights& weights);

struct PopulatedPages {
  uint64_t huge_bytes = 0;     // of the file that are mapped in huge pages
  std::string why_small = {};  // where these are few: what the system does; otherwise empty
};

// Reads the runs into memory, in huge pages where the system has such for this file. What it has in
// memory already in small pages (the file was just written or copied, or read by something else) it
// would map in these: that is dropped from the page cache and read again, once a sample has shown
// that this helps. Where samples show that huge pages would be few, the rest is not read.
// Errors: the file was cut, or its disk fails.
Result<PopulatedPages> PopulateInHugePages(const checkpoint::MappedFile& file,
                                           std::span<const std::span<const std::byte>> runs,
                                           hardware::ThreadPool& pool, const LoadProgress& progress,
                                           const CountHugePages& count = hardware::HugePageBytes);

// Reads mapped weights into memory that is allocated in `ledger`, and lets go of the file.
// `mapped` has no reservation (storage), and is left as it is on errors: there is no memory
// (ResourceExhausted), the file was cut, replaced or written to meanwhile, its disk fails, the
// system refuses the NUMA policy.
Status CopyToMemory(ModelWeights& mapped, hardware::NumaPolicy numa, hardware::ThreadPool& pool,
                    memory::Ledger& ledger, const LoadProgress& progress);

}  // namespace convene::weights
