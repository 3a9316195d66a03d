#include "hardware/measure_disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/units.h"
#include "hardware/affinity.h"
#include "hardware/huge_buffer.h"

namespace convene::hardware {
namespace {

constexpr uint64_t kRequestBytes = uint64_t{1} << 20;
constexpr uint64_t kMinFileBytes = 16 * kRequestBytes;
constexpr int kRequestsInFlight = 8;
constexpr uint64_t kRequestsPerPass = 32;
constexpr uint64_t kRequestsPerPiece = 8;
constexpr uint64_t kPieceStride = 7919;  // a prime, so that all places are met in no order
constexpr uint64_t kPageBufferBytes = uint64_t{128} << 20;
constexpr uint64_t kEnoughBytes = uint64_t{256} << 20;  // of a file that is there

// A file that is read to measure the disk: a temporary one without a name, or one that is there.
class TestFile {
 public:
  static std::optional<TestFile> Open(const std::filesystem::path& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return std::nullopt;
    return TestFile(fd);
  }
  static Result<TestFile> Create(const std::string& directory) {
    std::string path = directory + "/convene-disk-XXXXXX";
    const int fd = mkostemp(path.data(), O_CLOEXEC);
    if (fd < 0) {
      return Error{fmt::format("cannot write a test file to {}: {}; name a directory that you may "
                               "write to",
                               directory, std::strerror(errno)),
                   KindOfErrno(errno)};
    }
    unlink(path.c_str());
    return TestFile(fd);
  }
  ~TestFile() {
    if (fd_ >= 0) close(fd_);
  }
  TestFile(TestFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)), direct_(other.direct_) {}
  TestFile& operator=(TestFile&&) = delete;

  int fd() const { return fd_; }
  bool direct() const { return direct_; }

  // File systems refuse O_DIRECT here, or at the first request.
  void LeaveDirect() {
    direct_ = false;
    fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) & ~O_DIRECT);
  }

 private:
  explicit TestFile(int fd) : fd_(fd) {
    direct_ = fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_DIRECT) == 0;
  }

  int fd_ = -1;
  bool direct_ = false;
};

// Different bytes everywhere, lest the disk compress or share them (splitmix64).
void FillRandom(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i + sizeof(uint64_t) <= bytes.size(); i += sizeof(uint64_t)) {
    uint64_t value = seed += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    value ^= value >> 31;
    std::memcpy(bytes.data() + i, &value, sizeof(value));
  }
}

// Writes whole requests until `size_bytes` or, past the minimum, until the time is over.
Result<uint64_t> WriteFile(TestFile& file, const std::string& directory, std::span<std::byte> block,
                           uint64_t size_bytes, double budget_s) {
  const auto start = std::chrono::steady_clock::now();
  uint64_t written_bytes = 0;
  while (written_bytes < size_bytes) {
    FillRandom(block, written_bytes);
    const ssize_t count =
        pwrite(file.fd(), block.data(), block.size(), static_cast<off_t>(written_bytes));
    if (count != std::ssize(block)) {
      const int error = count < 0 ? errno : ENOSPC;  // a short write: the disk is full
      if (error == EINTR) continue;
      if (error == EINVAL && file.direct()) {
        file.LeaveDirect();
        continue;
      }
      return Error{fmt::format("cannot write a test file of {} to {}, {} in: {}; free some space "
                               "or name another directory",
                               FormatBytes(size_bytes), directory, FormatBytes(written_bytes),
                               std::strerror(error)),
                   KindOfErrno(error)};
    }
    written_bytes += block.size();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (written_bytes >= kMinFileBytes && elapsed.count() > budget_s) break;
  }
  if (fsync(file.fd()) != 0) {
    return SystemError(
        fmt::format("cannot write a test file of {} to {}", FormatBytes(written_bytes), directory),
        errno);
  }
  return written_bytes;
}

struct Requests {
  uint64_t bytes = kRequestBytes;  // of each
  uint64_t first = 0;
  uint64_t count = kRequestsPerPass;
  // So many are one behind the other in the file.
  uint64_t per_piece = kRequestsPerPiece;
  int depth = kRequestsInFlight;
  bool digests = true;  // are computed of what was read, one at a time
};

// Of cores, which this thread has had.
double ThreadSeconds() {
  timespec had{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &had);
  return static_cast<double>(had.tv_sec) + 1e-9 * static_cast<double>(had.tv_nsec);
}

// Reads requests round the file, each reader into its share of the buffers, of which there is at
// least one for each; returns 0 or an errno. What this took of cores is added to `core_seconds`.
int ReadRequests(const TestFile& file, uint64_t file_bytes, const Requests& requests,
                 std::span<std::byte> buffers, std::atomic<double>* core_seconds = nullptr) {
  const uint64_t per_piece = requests.per_piece;
  const uint64_t pieces_in_file = file_bytes / (requests.bytes * per_piece);
  const uint64_t buffers_each = buffers.size() / requests.bytes / requests.depth;
  std::atomic<uint64_t> next{0};
  std::atomic<uint64_t> digest{0};
  std::atomic<int> failure{0};
  std::mutex digesting;
  const auto read = [&](int reader) {
    const double before = ThreadSeconds();
    const auto own = buffers.subspan(reader * buffers_each * requests.bytes);
    for (uint64_t i; failure == 0 && (i = next++) < requests.count;) {
      const uint64_t number = requests.first + i;
      const uint64_t piece = number / per_piece * kPieceStride % pieces_in_file;
      const uint64_t place = piece * per_piece + number % per_piece;
      const auto buffer =
          own.subspan(number / requests.depth % buffers_each * requests.bytes, requests.bytes);
      const ssize_t count = pread(file.fd(), buffer.data(), requests.bytes,
                                  static_cast<off_t>(place * requests.bytes));
      if (count != static_cast<ssize_t>(requests.bytes)) failure = count < 0 ? errno : EIO;
      if (!requests.digests) continue;
      const std::lock_guard lock(digesting);
      digest += DigestOf(buffer);
    }
    if (core_seconds != nullptr) *core_seconds += ThreadSeconds() - before;
  };
  {
    std::vector<std::jthread> readers;
    try {
      for (int reader = 1; reader < requests.depth; ++reader) readers.emplace_back(read, reader);
    } catch (const std::system_error&) {
      // The system grants no more threads: fewer requests in flight then.
    }
    read(0);
  }
  return failure;
}

// A file for a measurement, and buffers to read it into.
struct Prepared {
  TestFile file;
  HugeBuffer buffers;
  uint64_t file_bytes = 0;
};

// What lies there says more of what will be read than a file that was written a moment ago, of
// which a disk, or the host of a virtual machine, may still have the bytes at hand. The largest
// file directly in the directory, if it is large enough. Not one with holes, which no disk is read
// for.
std::filesystem::path LargestFile(const std::string& directory, uint64_t* size_bytes) {
  std::filesystem::path largest;
  *size_bytes = kEnoughBytes - 1;
  std::error_code failed;
  for (std::filesystem::directory_iterator entry(directory, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    struct stat status {};
    if (stat(entry->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    constexpr uint64_t kBlockBytes = 512;  // of st_blocks, whatever the file system's are
    const auto bytes = static_cast<uint64_t>(status.st_size);
    const bool has_holes = static_cast<uint64_t>(status.st_blocks) * kBlockBytes < bytes;
    if (has_holes || bytes <= *size_bytes) continue;
    *size_bytes = bytes;
    largest = entry->path();
  }
  return largest;
}

// The first write to memory may take longer than the read that it is for.
Result<HugeBuffer> AllocateTaken(uint64_t size_bytes) {
  Result<HugeBuffer> buffers = HugeBuffer::Allocate(size_bytes, "measuring the disk");
  if (buffers && !TakePages(buffers->bytes())) std::ranges::fill(buffers->bytes(), std::byte{});
  return buffers;
}

Result<Prepared> Prepare(const std::string& directory, uint64_t max_file_bytes,
                         uint64_t buffer_bytes, double budget_s) {
  uint64_t there_bytes = 0;
  if (const auto path = LargestFile(directory, &there_bytes); !path.empty()) {
    if (std::optional<TestFile> there = TestFile::Open(path)) {
      Result<HugeBuffer> buffers = AllocateTaken(buffer_bytes);
      if (!buffers) return buffers.error();
      return Prepared{*std::move(there), *std::move(buffers), there_bytes};
    }
  }
  Result<TestFile> file = TestFile::Create(directory);
  if (!file) return file.error();
  struct statvfs space {};
  if (fstatvfs(file->fd(), &space) != 0) {
    return SystemError("cannot tell the free space of " + directory, errno);
  }
  const uint64_t free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  const uint64_t size_bytes = std::max(std::min(max_file_bytes, free_bytes / 2), kMinFileBytes) /
                              kRequestBytes * kRequestBytes;
  if (free_bytes < 2 * kMinFileBytes) {
    return ResourceExhausted(
        fmt::format("{} has {} free, and measuring its disk needs {}: free some space or "
                    "name another directory",
                    directory, FormatBytes(free_bytes), FormatBytes(2 * kMinFileBytes)));
  }
  Result<HugeBuffer> buffers = AllocateTaken(buffer_bytes);
  if (!buffers) return buffers.error();
  const Result<uint64_t> file_bytes =
      WriteFile(*file, directory, buffers->bytes().first(kRequestBytes), size_bytes, budget_s);
  if (!file_bytes) return file_bytes.error();
  return Prepared{*std::move(file), *std::move(buffers), *file_bytes};
}

void DropCached(const TestFile& file) {
  if (!file.direct()) posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
}

// Multiply-adds in registers, by each thread of the pool for so many seconds.
void Compute(ThreadPool& pool, double seconds) {
  const auto start = std::chrono::steady_clock::now();
  const std::chrono::duration<double> wanted(seconds);
  std::atomic<float> used{0};
  pool.Run([&](int) {
    constexpr int kTurnSteps = 4096;
    float sum = 0;
    while (std::chrono::steady_clock::now() - start < wanted) {
      for (int step = 0; step < kTurnSteps; ++step) sum = sum * 0.5f + 1;
    }
    used = sum;  // what nobody uses would not be computed
  });
}

// Reading while all threads compute: at what rate, and what it takes of the cores, by the time that
// its threads had, which does not depend on what other programs do.
Status MeasureBeside(const Prepared& prepared, double budget_s, ThreadPool& computing,
                     DiskRate& found) {
  std::atomic<int> failure{0};
  std::atomic<bool> goes_on{true};
  std::atomic<double> core_seconds{0};
  uint64_t read_bytes = 0;
  const auto start = std::chrono::steady_clock::now();
  std::jthread reader;
  try {
    reader = std::jthread([&] {
      // Whoever called is bound to one CPU of the pool, as threads that it starts are.
      static_cast<void>(SetAffinity(computing.cpus()).ok());
      // Once at least, however late this thread begins.
      do {
        DropCached(prepared.file);
        failure =
            ReadRequests(prepared.file, prepared.file_bytes, {.first = read_bytes / kRequestBytes},
                         prepared.buffers.bytes(), &core_seconds);
        read_bytes += kRequestsPerPass * kRequestBytes;
      } while (goes_on && failure == 0);
    });
  } catch (const std::system_error&) {
    return {};  // the system grants no more threads
  }
  Compute(computing, budget_s);
  goes_on = false;
  reader.join();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  if (failure != 0) return SystemError("cannot read the file by which a disk is measured", failure);
  found.beside_bytes_per_second = static_cast<double>(read_bytes) / elapsed.count();
  found.core_seconds_per_byte = core_seconds / static_cast<double>(read_bytes);
  return {};
}

}  // namespace

Result<DiskRate> MeasureDiskRead(const std::string& directory, uint64_t max_file_bytes,
                                 double budget_s, ThreadPool* computing,
                                 uint64_t most_memory_bytes) {
  const uint64_t buffer_bytes = std::clamp(most_memory_bytes / kHugePageBytes * kHugePageBytes,
                                           kRequestsInFlight * kRequestBytes, kPageBufferBytes);
  const Result<Prepared> prepared = Prepare(directory, max_file_bytes, buffer_bytes, budget_s);
  if (!prepared) return prepared.error();
  int failure = 0;
  uint64_t first = 0;
  const auto pass = [&]() -> double {
    DropCached(prepared->file);
    failure = ReadRequests(prepared->file, prepared->file_bytes, {.first = first},
                           prepared->buffers.bytes());
    if (failure != 0) return 0;
    first += kRequestsPerPass;
    return static_cast<double>(kRequestsPerPass * kRequestBytes);
  };
  const Rate rate = MeasureRate(budget_s, pass);
  if (failure != 0) return SystemError("cannot read a file in " + directory, failure);
  DiskRate found{
      .read = rate, .direct = prepared->file.direct(), .file_bytes = prepared->file_bytes};
  if (computing != nullptr) {
    if (Status beside = MeasureBeside(*prepared, budget_s, *computing, found); !beside) {
      return beside.error();
    }
  }
  return found;
}

Result<DiskRequests> MeasureDiskRequests(const std::string& directory, double budget_s) {
  constexpr uint64_t kMostFileBytes = uint64_t{256} << 20;
  constexpr uint64_t kSizes[] = {uint64_t{1} << 12, uint64_t{1} << 14, uint64_t{1} << 16,
                                 uint64_t{1} << 18, uint64_t{1} << 20, uint64_t{1} << 22};
  constexpr int kDepths[] = {1, 2, 4, 8, 16};
  constexpr uint64_t kMostPassBytes = uint64_t{32} << 20;
  constexpr uint64_t kMostPassRequests = 64;
  const Result<Prepared> prepared =
      Prepare(directory, kMostFileBytes, std::end(kDepths)[-1] * std::end(kSizes)[-1], budget_s);
  if (!prepared) return prepared.error();
  DiskRequests found{.points = {}, .direct = prepared->file.direct()};
  uint64_t first = 0;
  for (const uint64_t bytes : kSizes) {
    for (const int depth : kDepths) {
      const uint64_t count = std::clamp(kMostPassBytes / bytes, uint64_t{1} * depth,
                                        std::max(kMostPassRequests, uint64_t{2} * depth));
      int failure = 0;
      const auto pass = [&]() -> double {
        DropCached(prepared->file);
        failure =
            ReadRequests(prepared->file, prepared->file_bytes,
                         {.bytes = bytes,
                          .first = first,
                          .count = count,
                          .per_piece = 1,
                          .depth = depth,
                          .digests = false},
                         prepared->buffers.bytes().first(static_cast<uint64_t>(depth) * bytes));
        first += count;
        return failure != 0 ? 0 : static_cast<double>(count);
      };
      const double budget = budget_s / (std::size(kSizes) * std::size(kDepths));
      const Rate rate = MeasureRate(budget, pass);
      if (failure != 0) {
        return SystemError("cannot read a file in " + directory, failure);
      }
      found.points.push_back({.request_bytes = bytes, .depth = depth, .seconds = 1 / rate.median});
    }
  }
  return found;
}

}  // namespace convene::hardware
