#include "checkpoint/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/open_file.h"

namespace convene::checkpoint {
namespace {

// The mapped files, kept where a signal handler can read them. Nodes are never freed, so that it
// can walk the list at any time; those of files that are no longer mapped are used again.
struct Mapping {
  std::atomic<const char*> path = nullptr;  // null: not in use
  std::atomic<uintptr_t> begin = 0;
  std::atomic<uintptr_t> end = 0;
  Mapping* next = nullptr;
};
std::atomic<Mapping*> first_mapping = nullptr;
struct sigaction action_before = {};

void Write(const char* text) { static_cast<void>(!write(STDERR_FILENO, text, std::strlen(text))); }

// A page of a mapped file cannot be had: the file was cut, or its disk fails. Every thread that
// touches one would be killed without a word.
void OnBusError(int, siginfo_t* info, void*) {
  const bool is_fault = info->si_code > 0;  // otherwise somebody sent it
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Mapping* at = first_mapping.load(); is_fault && at != nullptr; at = at->next) {
    const char* path = at->path.load();
    if (path == nullptr || address < at->begin.load() || address >= at->end.load()) continue;
    Write("convene: ");
    Write(path);
    Write(
        " was cut, or its disk failed, while it was in use; leave the files of a model alone while "
        "it runs, and start again when the file is whole\n");
    _exit(EXIT_FAILURE);
  }
  sigaction(SIGBUS, &action_before, nullptr);
  if (!is_fault) raise(SIGBUS);  // otherwise the instruction is tried again
}

// Every rank runs this before it maps anything.
void WatchBusErrors() {
  static const bool is_watched = [] {
    struct sigaction action = {};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGBUS, &action, &action_before) == 0;
  }();
  CHECK(is_watched);
}

void Register(const std::string& path, std::span<const std::byte> bytes) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  WatchBusErrors();
  Mapping* mapping = first_mapping.load();
  while (mapping != nullptr && mapping->path.load() != nullptr) mapping = mapping->next;
  const bool is_new = mapping == nullptr;
  if (is_new) mapping = new Mapping;
  mapping->begin = reinterpret_cast<uintptr_t>(bytes.data());
  mapping->end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size());
  mapping->path = strdup(path.c_str());
  if (!is_new) return;
  mapping->next = first_mapping.load();
  first_mapping = mapping;
}

// All of the mapped file that holds these bytes; empty: none does.
std::span<const std::byte> MappingOf(std::span<const std::byte> bytes) {
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  for (const Mapping* at = first_mapping.load(); at != nullptr; at = at->next) {
    const uintptr_t begin = at->begin.load();
    const uintptr_t end = at->end.load();
    if (at->path.load() == nullptr || address < begin || address >= end) continue;
    return {bytes.data() - (address - begin), end - begin};
  }
  return {};
}

void Unregister(std::span<const std::byte> bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  for (Mapping* at = first_mapping.load(); at != nullptr; at = at->next) {
    if (at->path.load() == nullptr || at->begin.load() != begin) continue;
    free(const_cast<char*>(at->path.exchange(nullptr)));
    return;
  }
}

// Newer than the headers of some systems on which convene is built.
#ifdef MADV_POPULATE_READ
constexpr int kPopulateRead = MADV_POPULATE_READ;
#else
constexpr int kPopulateRead = 22;  // Linux 5.14
#endif
#ifdef MADV_COLLAPSE
constexpr int kCollapse = MADV_COLLAPSE;
#else
constexpr int kCollapse = 25;      // Linux 6.1
#endif

size_t PageSize() {
  static const size_t size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// From an address at which a huge page begins: the kernel maps what lies in a huge page of the file
// in one only where both begin alike, and not every file system looks for such an address by
// itself. MAP_FAILED: errno says why.
void* MapAligned(int descriptor, size_t size) {
  constexpr size_t kAlignment = size_t{2} << 20;
  constexpr int kReserve = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const size_t reserved = size + kAlignment;
  void* const room = mmap(nullptr, reserved, PROT_NONE, kReserve, -1, 0);
  // There are limits on address space.
  if (room == MAP_FAILED) return mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  auto* const first = static_cast<std::byte*>(room);
  const uint64_t past = reinterpret_cast<uintptr_t>(first) % kAlignment;
  const uint64_t before = past == 0 ? 0 : kAlignment - past;
  void* const address =
      mmap(first + before, size, PROT_READ, MAP_SHARED | MAP_FIXED, descriptor, 0);
  const int error = errno;
  if (address == MAP_FAILED) {
    munmap(room, reserved);
  } else {
    if (before > 0) munmap(room, before);
    const size_t end = before + (size + PageSize() - 1) / PageSize() * PageSize();
    if (end < reserved) munmap(first + end, reserved - end);
  }
  errno = error;
  return address;
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const Result<OpenFile> file = OpenFile::ToRead(path);
  if (!file) return file.error();
  const auto failed = [&](std::string reason, ErrorKind kind) {
    return Error{fmt::format("cannot map {}: {}", path, reason), kind};
  };
  if (!file->is_regular()) {
    return failed("it is " + file->KindName() + ", not a regular file",
                  ErrorKind::kInvalidArgument);
  }
  if (file->size_bytes() == 0) return failed("it is empty", ErrorKind::kDataLoss);
  const auto size = static_cast<size_t>(file->size_bytes());
  void* const address = MapAligned(file->descriptor(), size);
  if (address == MAP_FAILED) return failed(std::strerror(errno), KindOfErrno(errno));
  MappedFile mapped(path, {static_cast<const std::byte*>(address), size});
  mapped.version_ = VersionOf(path);
  Register(path, mapped.bytes_);
  return mapped;
}

Status MappedFile::Populate(std::span<const std::byte> part) const {
  if (part.empty()) return {};
  const auto begin = reinterpret_cast<uintptr_t>(part.data()) / PageSize() * PageSize();
  const auto end = reinterpret_cast<uintptr_t>(part.data() + part.size());
  int result = 0;
  do {
    result = madvise(reinterpret_cast<void*>(begin), end - begin, kPopulateRead);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  // EFAULT and EHWPOISON are what a touch would end the process for.
  if (result == 0 || (errno != EFAULT && errno != EHWPOISON)) return {};
  return DataLoss(fmt::format(
      "{} was cut, or its disk failed, while it was read; leave the files of a model alone while "
      "it is loaded, and start again when the file is whole",
      path_));
}

std::optional<MappedFile::Version> MappedFile::VersionOf(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return std::nullopt;
  return Version{status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec,
                 status.st_mtim.tv_nsec};
}

std::string MappedFile::identity() const {
  if (!version_) return path_;
  return fmt::format("device {} {}", version_->device, state());
}

std::string MappedFile::state() const {
  if (!version_) return "";
  return fmt::format("inode {}, {} bytes, changed at {}.{:09}", version_->inode, version_->size,
                     version_->seconds, version_->nanoseconds);
}

bool MappedFile::IsSameFile(int descriptor) const {
  struct stat status = {};
  return version_ && fstat(descriptor, &status) == 0 && status.st_dev == version_->device &&
         status.st_ino == version_->inode;
}

Status MappedFile::CheckUnchanged() const {
  const std::optional<Version> now = VersionOf(path_);
  // One that was deleted or replaced is still mapped as it was.
  if (!now || !version_ || now->device != version_->device || now->inode != version_->inode) {
    return {};
  }
  if (*now == *version_) return {};
  return DataLoss(fmt::format(
      "{} was written to while it was read; leave the files of a model alone while it is loaded, "
      "and start again when the file is whole",
      path_));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, {})),
      version_(other.version_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(version_, other.version_);
  return *this;
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  Unregister(bytes_);
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void WillNeed(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()) / PageSize() * PageSize();
  const auto end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size());
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

void DontNeed(std::span<const std::byte> bytes) {
  const std::span<const std::byte> file = MappingOf(bytes);
  if (file.empty() || bytes.empty()) return;
  const auto of_file = reinterpret_cast<uintptr_t>(file.data());
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t begin = std::max(of_file, address / kTouchedTogether * kTouchedTogether);
  const uintptr_t end = (address + bytes.size() + kTouchedTogether - 1) / kTouchedTogether;
  const uintptr_t inside = std::min(of_file + file.size(), end * kTouchedTogether);
  madvise(reinterpret_cast<void*>(begin), inside - begin, MADV_DONTNEED);
}

void Evict(std::span<const std::byte> bytes) {
  constexpr size_t kPieceBytes = size_t{2} << 20;
  // Whole pages inside: one that is shared with a neighbour would be read from the disk again.
  const size_t page = PageSize();
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  const size_t before = std::min((page - address % page) % page, bytes.size());
  const size_t behind = std::min((address + bytes.size()) % page, bytes.size() - before);
  std::span<const std::byte> rest = bytes.subspan(before, bytes.size() - before - behind);
  if (MappingOf(bytes).empty()) return;
  while (!rest.empty()) {
    // Large folios, which begin at such multiples, are left whole.
    const size_t past_piece = reinterpret_cast<uintptr_t>(rest.data()) % kPieceBytes;
    const auto piece = rest.first(std::min(kPieceBytes - past_piece, rest.size()));
    rest = rest.subspan(piece.size());
    // The kernel takes from the cache what is mapped. What is not there, as where two have read it
    // and one has evicted it, is not to be read for that.
    if (CachedBytes(piece) < piece.size() / 2) continue;
    auto* const begin = const_cast<std::byte*>(piece.data());
    madvise(begin, piece.size(), kPopulateRead);
    madvise(begin, piece.size(), MADV_PAGEOUT);
    madvise(begin, piece.size(), MADV_DONTNEED);
  }
  DontNeed(bytes);
}

uint64_t CachedBytes(std::span<const std::byte> bytes) {
  if (bytes.empty()) return 0;
  const size_t page = PageSize();
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size());
  std::vector<unsigned char> pages((end - begin + page - 1) / page);
  if (mincore(reinterpret_cast<void*>(begin), end - begin, pages.data()) != 0) return bytes.size();
  const auto count = std::ranges::count_if(pages, [](unsigned char state) { return state & 1; });
  return std::min<uint64_t>(static_cast<uint64_t>(count) * page, bytes.size());
}

void AskForHugePages(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()) / PageSize() * PageSize();
  const auto end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size());
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

bool CollapseToHugePages(std::span<const std::byte> bytes) {
  if (bytes.empty()) return true;
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()) / PageSize() * PageSize();
  const auto end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size());
  // A page that another thread or the kernel uses at this moment can be moved a little later.
  constexpr int kTries = 5;
  for (int i = 0; i < kTries; ++i) {
    if (madvise(reinterpret_cast<void*>(begin), end - begin, kCollapse) == 0) return true;
    if (errno != EAGAIN && errno != EBUSY) return false;
    usleep(1000);
  }
  return false;
}

}  // namespace convene::checkpoint
