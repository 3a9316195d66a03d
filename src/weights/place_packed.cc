#include "weights/place_packed.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "checkpoint/file_reader.h"
#include "hardware/huge_buffer.h"
#include "hardware/huge_pages.h"
#include "memory/page_reader.h"
#include "weights/named_weights.h"

namespace convene::weights {
namespace {

using Bytes = std::span<const std::byte>;
using hardware::kHugePageBytes;

// A request to the disk: large enough for its full rate, and many per thread even of small models.
constexpr uint64_t kRequestBytes = uint64_t{4} << 20;
// Between two calls of the progress function.
constexpr uint64_t kReadBatchBytes = uint64_t{256} << 20;
// Huge pages that are tried before a whole file is read in such.
constexpr size_t kNumSamples = 16;
// Of these, what is dropped from the page cache and read again to see whether that would help.
constexpr size_t kNumDroppedSamples = 2;
// How often a file is read, where at least half of it then is in huge pages: the kernel drops and
// moves no page that it reads ahead at this moment or that a CPU has not filed yet, and does so a
// moment later.
constexpr int kMostReadings = 3;

// If 3 % of the bytes were read at half the rate, decode would be slower by 3 %; less is in the
// noise of any measurement of it.
bool IsEnough(uint64_t huge_bytes, uint64_t size_bytes) {
  return huge_bytes >= size_bytes - size_bytes / 33;
}

uint64_t SizeOf(std::span<const Bytes> runs) {
  uint64_t size_bytes = 0;
  for (const Bytes& run : runs) size_bytes += run.size();
  return size_bytes;
}

// The runs in requests that end where huge pages do, so that no two threads read into one.
std::vector<Bytes> Requests(std::span<const Bytes> runs) {
  std::vector<Bytes> requests;
  for (Bytes rest : runs) {
    while (!rest.empty()) {
      const uint64_t past_huge_page = reinterpret_cast<uintptr_t>(rest.data()) % kHugePageBytes;
      const uint64_t size = std::min<uint64_t>(rest.size(), kRequestBytes - past_huge_page);
      requests.push_back(rest.first(size));
      rest = rest.subspan(size);
    }
  }
  return requests;
}

// What of the runs can lie in huge pages: all but what is in the last one of the file, which it
// does not fill.
uint64_t BytesInWholePages(const checkpoint::MappedFile& file, std::span<const Bytes> runs) {
  const auto end = reinterpret_cast<uintptr_t>(file.bytes().data() + file.bytes().size()) /
                   kHugePageBytes * kHugePageBytes;
  uint64_t size_bytes = 0;
  for (const Bytes& run : runs) {
    const auto begin = reinterpret_cast<uintptr_t>(run.data());
    if (begin < end) size_bytes += std::min<uint64_t>(run.size(), end - begin);
  }
  return size_bytes;
}

// Huge pages that lie within the runs, evenly spread over them; at most kNumSamples.
std::vector<Bytes> Samples(std::span<const Bytes> runs) {
  std::vector<Bytes> whole_pages;
  for (const Bytes& run : runs) {
    const uint64_t past = reinterpret_cast<uintptr_t>(run.data()) % kHugePageBytes;
    for (uint64_t at = past == 0 ? 0 : kHugePageBytes - past; at + kHugePageBytes <= run.size();
         at += kHugePageBytes) {
      whole_pages.push_back(run.subspan(at, kHugePageBytes));
    }
  }
  const size_t count = std::min(whole_pages.size(), kNumSamples);
  std::vector<Bytes> samples;
  for (size_t i = 0; i < count; ++i) samples.push_back(whole_pages[i * whole_pages.size() / count]);
  return samples;
}

// Calls `read` with the index of each request and that of the thread, on all threads; the first
// error ends it.
Status ReadAll(std::span<const Bytes> requests, hardware::ThreadPool& pool,
               const LoadProgress& progress, const std::function<Status(size_t, int)>& read) {
  const uint64_t total_bytes = SizeOf(requests);
  uint64_t done_bytes = 0;
  std::mutex mutex;
  std::optional<Error> failure;
  std::atomic<bool> has_failed = false;
  for (size_t first = 0; first < requests.size();) {
    size_t end = first;
    uint64_t batch_bytes = 0;
    while (end < requests.size() && batch_bytes < kReadBatchBytes)
      batch_bytes += requests[end++].size();
    pool.ParallelFor(static_cast<int64_t>(end - first), [&](int64_t index, int thread_idx) {
      if (has_failed) return;
      const size_t request = first + static_cast<size_t>(index);
      const Status done = read(request, thread_idx);
      if (done) return;
      const std::lock_guard lock(mutex);
      if (!failure) failure = done.error();
      has_failed = true;
    });
    if (failure) return *failure;
    first = end;
    done_bytes += batch_bytes;
    if (progress) progress(done_bytes, total_bytes);
  }
  return {};
}

// A part of a mapped file, and where its copy lies.
struct Run {
  Bytes source;
  std::byte* target = nullptr;
};

// Where in a copy each matrix lies: one behind the other in their order, but for the rooms of
// experts, which are as large as they are.
struct Places {
  std::vector<uint64_t> offsets;
  uint64_t end = 0;  // of all that is copied
};
Places PlacesOf(const ModelWeights& weights) {
  std::set<const kernels::PackedMatrix*> first_of_room;
  std::set<const kernels::PackedMatrix*> last_of_room;
  for (const LayerWeights& layer : weights.layers) {
    if (!layer.moe || weights.rooms.room_bytes == 0) continue;
    first_of_room.insert(&layer.moe->experts.front().up);
    last_of_room.insert(&layer.moe->experts.back().down);
  }
  Places places;
  uint64_t room = 0;
  for (const NamedMatrix& named : Matrices(weights)) {
    if (first_of_room.contains(named.matrix)) room = places.end;
    places.offsets.push_back(places.end);
    places.end += named.matrix->size_bytes();
    if (last_of_room.contains(named.matrix)) places.end = room + weights.rooms.room_bytes;
  }
  return places;
}

// Those of all matrices; what is one behind the other in both is one run.
std::vector<Run> RunsTo(std::byte* copy, const Places& places, const ModelWeights& mapped) {
  const std::vector<NamedMatrix> from = Matrices(mapped);
  std::vector<Run> runs;
  for (size_t i = 0; i < from.size(); ++i) {
    const Bytes source(from[i].matrix->data, from[i].matrix->size_bytes());
    std::byte* target = copy + places.offsets[i];
    if (!runs.empty() && runs.back().source.data() + runs.back().source.size() == source.data() &&
        runs.back().target + runs.back().source.size() == target) {
      runs.back().source =
          Bytes(runs.back().source.data(), runs.back().source.size() + source.size());
    } else {
      runs.push_back({source, target});
    }
  }
  return runs;
}

// Reads runs of a mapped file to where their copies lie, and lets go of what is mapped of them.
Status ReadRuns(const checkpoint::MappedFile& file, const checkpoint::FileReader& reader,
                std::span<const Run> runs, hardware::ThreadPool& pool, memory::Ledger& ledger,
                const LoadProgress& progress) {
  std::vector<Bytes> requests;
  std::vector<std::byte*> targets;
  for (const Run& run : runs) {
    for (const Bytes& request : Requests({&run.source, 1})) {
      requests.push_back(request);
      targets.push_back(run.target + (request.data() - run.source.data()));
    }
  }
  constexpr uint64_t kStagingBytes = kRequestBytes + checkpoint::FileReader::kStagingBytes;
  const Result<memory::Reservation> staging =
      ledger.Allocate(memory::Use::kStaging, kStagingBytes * static_cast<uint64_t>(pool.size()));
  return ReadAll(requests, pool, progress, [&](size_t index, int thread_idx) {
    const Bytes request = requests[index];
    const auto offset = static_cast<uint64_t>(request.data() - file.bytes().data());
    const std::span<std::byte> place(targets[index], request.size());
    const bool is_cached = checkpoint::CachedBytes(request) >= request.size() / 2;
    // What is mapped of it would be in memory beside its copy; the page cache keeps it.
    checkpoint::DontNeed(request);
    if (is_cached || !staging) return reader.ReadAt(offset, place);
    return reader.ReadPastCache(
        offset, place,
        staging->bytes().subspan(kStagingBytes * static_cast<uint64_t>(thread_idx), kStagingBytes));
  });
}

struct SampledPages {
  bool are_huge = false;
  bool are_collapsed = false;  // they were moved into huge pages, as all others are to be
};

// Reads huge pages of the file, as the system maps them by itself or, where it does not, when it is
// asked to move them.
Result<SampledPages> ReadSamples(const checkpoint::MappedFile& file, std::span<const Bytes> samples,
                                 const CountHugePages& count) {
  const uint64_t before_bytes = count(file.bytes());
  const auto are_huge = [&] { return count(file.bytes()) >= before_bytes + SizeOf(samples); };
  for (const Bytes& sample : samples) {
    if (const Status read = file.Populate(sample); !read) return read.error();
  }
  if (are_huge()) return SampledPages{.are_huge = true};
  const bool is_done = std::ranges::all_of(samples, checkpoint::CollapseToHugePages);
  return SampledPages{.are_huge = is_done && are_huge(), .are_collapsed = is_done};
}

// All of the file that is in the huge pages in which the part is.
Bytes WholePages(const checkpoint::MappedFile& file, const Bytes& part) {
  const Bytes all = file.bytes();
  const auto past_begin = static_cast<uint64_t>(part.data() - all.data());
  const uint64_t past_page = reinterpret_cast<uintptr_t>(part.data()) % kHugePageBytes;
  const uint64_t past_end = reinterpret_cast<uintptr_t>(part.data() + part.size()) % kHugePageBytes;
  const uint64_t begin = past_begin - std::min(past_begin, past_page);
  const uint64_t end = past_begin + part.size() + (past_end == 0 ? 0 : kHugePageBytes - past_end);
  return all.subspan(begin, std::min<uint64_t>(end, all.size()) - begin);
}

// From this process, and from the page cache, in whole huge pages: a small one of what lies beside
// the parts would keep them from being read in a huge one. False: some of it is still there, as far
// as the kernel tells.
bool DropFromPageCache(const checkpoint::MappedFile& file, std::span<const Bytes> parts) {
  const Result<checkpoint::FileReader> reader = checkpoint::FileReader::Open(file);
  bool is_gone = reader.ok();
  for (const Bytes& each : parts) {
    const Bytes part = WholePages(file, each);
    checkpoint::DontNeed(part);
    if (!reader) continue;
    reader->DropCached(static_cast<uint64_t>(part.data() - file.bytes().data()), part.size());
    is_gone &= checkpoint::CachedBytes(part) == 0;
  }
  return is_gone;
}

// Why small pages of the file stay in memory. Of a file that one may not write to the kernel does
// not tell what is in memory, and so not whether they do.
std::string WhyKept(const checkpoint::MappedFile& file) {
  constexpr const char* kKept =
      "the system has this file in memory in small pages and does not let go of them";
  if (access(file.path().c_str(), W_OK) == 0) return kKept;
  return fmt::format("the system does not map this file in huge pages, or {}",
                     std::string_view(kKept).substr(std::string_view("the system ").size()));
}

}  // namespace

std::string PackedPlacement::Describe() const {
  const char* how = is_copied ? "read into" : "mapped in";
  const char* pages = IsEnough(huge_bytes, size_bytes) ? "huge pages" : "small pages";
  std::string text = fmt::format("{} of weights {} {}", FormatBytes(size_bytes), how, pages);
  text += fmt::format(" in {:.1f} s", elapsed_s);
  // Of a time that is shown as nothing a rate would be noise.
  if (elapsed_s >= 0.05) {
    const double rate = static_cast<double>(size_bytes) / elapsed_s;
    text += fmt::format(" ({}/s)", FormatBytes(static_cast<uint64_t>(rate)));
  }
  if (!reason.empty()) text += ", because " + reason;
  return text;
}

std::vector<Bytes> MappedRuns(const ModelWeights& weights) {
  std::vector<Bytes> runs;
  for (const NamedMatrix& named : Matrices(weights)) {
    const Bytes matrix(named.matrix->data, named.matrix->size_bytes());
    // Zeros behind a page are read with it.
    const std::byte* const end = runs.empty() ? nullptr : runs.back().data() + runs.back().size();
    if (end != nullptr && matrix.data() >= end && matrix.data() < end + memory::kDirectBlockBytes) {
      runs.back() = Bytes(runs.back().data(), matrix.data() + matrix.size());
    } else {
      runs.push_back(matrix);
    }
  }
  return runs;
}

Result<PopulatedPages> PopulateInHugePages(const checkpoint::MappedFile& file,
                                           std::span<const Bytes> runs, hardware::ThreadPool& pool,
                                           const LoadProgress& progress,
                                           const CountHugePages& count) {
  checkpoint::AskForHugePages(file.bytes());
  // What was touched before in small pages is mapped anew.
  for (const Bytes& run : runs) checkpoint::DontNeed(run);
  const std::vector<Bytes> samples = Samples(runs);
  if (samples.empty()) return PopulatedPages{.huge_bytes = count(file.bytes())};
  bool is_kept = false;
  for (const bool drops : {false, true}) {
    const std::span<const Bytes> tried = std::span(samples).first(
        drops ? std::min(samples.size(), kNumDroppedSamples) : samples.size());
    if (drops) is_kept = !DropFromPageCache(file, tried);
    const Result<SampledPages> sampled = ReadSamples(file, tried, count);
    if (!sampled) return sampled.error();
    if (!sampled->are_huge) continue;
    const std::vector<Bytes> requests = Requests(runs);
    const uint64_t size_bytes = SizeOf(runs);
    for (int reading = 0; reading < kMostReadings; ++reading) {
      if (drops) DropFromPageCache(file, runs);
      const Status read = ReadAll(requests, pool, progress, [&](size_t index, int) -> Status {
        if (Status populated = file.Populate(requests[index]); !populated) return populated;
        // Whole, and not from where the weights begin in one: part of a page is not moved.
        if (sampled->are_collapsed) {
          checkpoint::CollapseToHugePages(WholePages(file, requests[index]));
        }
        return {};
      });
      if (!read) return read.error();
      const uint64_t huge_bytes = count(file.bytes());
      if (IsEnough(huge_bytes, size_bytes)) return PopulatedPages{.huge_bytes = huge_bytes};
      if (IsEnough(huge_bytes, BytesInWholePages(file, runs))) {
        return PopulatedPages{.huge_bytes = huge_bytes,
                              .why_small =
                                  "the file ends within a huge page, and so much of them "
                                  "lies there that a copy is better"};
      }
      if (huge_bytes < size_bytes / 2) break;
    }
    is_kept = true;  // of what was not among the samples
  }
  return PopulatedPages{
      .huge_bytes = count(file.bytes()),
      .why_small = is_kept ? WhyKept(file) : "the system does not map this file in huge pages"};
}

Status CopyToMemory(ModelWeights& mapped, hardware::NumaPolicy numa, hardware::ThreadPool& pool,
                    memory::Ledger& ledger, const LoadProgress& progress) {
  const Places places = PlacesOf(mapped);
  const uint64_t free_bytes =
      mapped.rooms.room_bytes * static_cast<uint64_t>(mapped.rooms.num_free);
  Result<memory::Reservation> storage =
      ledger.Allocate(memory::Use::kWeights, places.end + free_bytes);
  if (!storage) return storage.error();
  const Result<int> placed = hardware::PlaceMemory(storage->bytes(), pool.cpus(), numa);
  if (!placed) return placed.error();
  const Result<checkpoint::FileReader> reader = checkpoint::FileReader::Open(*mapped.mapped);
  if (!reader) return reader.error();

  const std::vector<Run> runs = RunsTo(storage->data(), places, mapped);
  const Status read = ReadRuns(*mapped.mapped, *reader, runs, pool, ledger, progress);
  if (!read) return read;
  if (Status unchanged = mapped.mapped->CheckUnchanged(); !unchanged) return unchanged;

  std::vector<const std::byte*> addresses;
  for (const uint64_t offset : places.offsets) addresses.push_back(storage->data() + offset);
  SetPlaces(addresses, &mapped);
  mapped.rooms.free = storage->data() + places.end;
  mapped.storage = *std::move(storage);
  mapped.bytes = mapped.storage.bytes();
  mapped.mapped.reset();
  return {};
}

Result<PlacedWeights> PlacePacked(ModelWeights mapped, hardware::NumaPolicy numa,
                                  hardware::ThreadPool& pool, memory::Ledger& ledger,
                                  const LoadProgress& progress, const CountHugePages& count) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Bytes> runs = MappedRuns(mapped);
  PackedPlacement placement;
  for (const NamedMatrix& named : Matrices(mapped)) {
    placement.size_bytes += named.matrix->size_bytes();
  }
  const auto placed = [&](ModelWeights weights) -> PlacedWeights {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    placement.elapsed_s = elapsed.count();
    return {std::move(weights), std::move(placement)};
  };
  const bool is_pinned = ledger.tier().kind == memory::TierKind::kPinned;
  if (mapped.rooms.room_bytes > 0 || is_pinned) {
    mapped.storage = {};
    if (const Status copied = CopyToMemory(mapped, numa, pool, ledger, progress); !copied) {
      return copied.error();
    }
    placement.is_copied = true;
    placement.reason = is_pinned ? "a GPU copies experts from it"
                                 : "experts move within it between prefill and decode";
    placement.huge_bytes = std::min(hardware::HugePageBytes(mapped.bytes), placement.size_bytes);
    return placed(std::move(mapped));
  }
  const Result<PopulatedPages> populated =
      PopulateInHugePages(*mapped.mapped, runs, pool, progress, count);
  if (!populated) return populated.error();
  if (const Status unchanged = mapped.mapped->CheckUnchanged(); !unchanged) {
    return unchanged.error();
  }
  placement.huge_bytes = std::min(populated->huge_bytes, placement.size_bytes);
  if (IsEnough(placement.huge_bytes, placement.size_bytes)) return placed(std::move(mapped));
  if (placement.size_bytes < kHugePageBytes) {
    placement.reason = "they are smaller than a huge page";
    return placed(std::move(mapped));
  }

  const uint64_t reserved_bytes = mapped.storage.size_bytes();
  mapped.storage = {};
  const Status copied = CopyToMemory(mapped, numa, pool, ledger, progress);
  if (!copied && copied.error().kind != ErrorKind::kResourceExhausted) return copied.error();
  if (copied) {
    placement.is_copied = true;
    placement.reason = populated->why_small;
    placement.huge_bytes = std::min(hardware::HugePageBytes(mapped.bytes), placement.size_bytes);
    return placed(std::move(mapped));
  }
  Result<memory::Reservation> again = ledger.Reserve(memory::Use::kWeights, reserved_bytes);
  if (!again) return again.error();
  mapped.storage = *std::move(again);
  placement.reason = fmt::format("{}, and a copy of them in huge pages cannot be had: {}",
                                 populated->why_small, copied.error().message);
  for (const Bytes& run : runs) checkpoint::WillNeed(run);
  return placed(std::move(mapped));
}

}  // namespace convene::weights
