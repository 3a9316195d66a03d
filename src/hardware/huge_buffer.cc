#include "hardware/huge_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>

#include "base/units.h"
#include "hardware/huge_pages.h"
#include "hardware/memory_status.h"

namespace convene::hardware {
namespace {

size_t UpToHugePages(size_t size_bytes) {
  return (size_bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

// Newer than the headers of some systems on which convene is built.
#ifdef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#else
constexpr int kPopulateWrite = 23;  // Linux 5.14
#endif

size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

Error Refused(size_t size_bytes, std::string_view purpose, const char* reason) {
  std::string message =
      fmt::format("cannot reserve {} for {} ({})", FormatBytes(size_bytes), purpose, reason);
  if (const Result<AvailableMemory> available = ReadAvailableMemory()) {
    message += fmt::format(": {} available, limited by {}", FormatBytes(available->bytes),
                           available->limited_by);
  }
  return ResourceExhausted(message);
}

}  // namespace

Result<HugeBuffer> HugeBuffer::Allocate(size_t size_bytes, std::string_view purpose) {
  if (size_bytes == 0) return HugeBuffer();
  // The last page stays inaccessible: it catches overruns and keeps the kernel from merging the
  // mapping with the next, so that smaps tells of this buffer alone.
  const size_t guard_bytes = PageBytes();
  if (size_bytes > std::numeric_limits<size_t>::max() / 2) {
    return Refused(size_bytes, purpose, "more than an address space");
  }
  const size_t usable_bytes = UpToHugePages(size_bytes);
  const size_t mapped_bytes = kHugePageBytes + usable_bytes + guard_bytes;
  void* mapping = mmap(nullptr, mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return Refused(size_bytes, purpose, std::strerror(errno));

  auto* begin = static_cast<std::byte*>(mapping);
  const size_t skipped_bytes =
      UpToHugePages(reinterpret_cast<uintptr_t>(begin)) - reinterpret_cast<uintptr_t>(begin);
  std::byte* data = begin + skipped_bytes;
  if (skipped_bytes > 0) munmap(begin, skipped_bytes);
  const size_t surplus_bytes = kHugePageBytes - skipped_bytes;
  if (surplus_bytes > 0) munmap(data + usable_bytes + guard_bytes, surplus_bytes);
  if (mprotect(data, usable_bytes, PROT_READ | PROT_WRITE) != 0) {
    const int error = errno;
    munmap(data, usable_bytes + guard_bytes);
    return Refused(size_bytes, purpose, std::strerror(error));
  }
  // Refused where huge pages are not built in: then small ones do.
  static_cast<void>(madvise(data, usable_bytes, MADV_HUGEPAGE));
  total_bytes_ += size_bytes;
  return HugeBuffer(data, size_bytes);
}

void HugeBuffer::Free() {
  if (data_ == nullptr) return;
  const int result = munmap(data_, UpToHugePages(size_bytes_) + PageBytes());
  CHECK(result == 0, "munmap of {} bytes: {}", size_bytes_, std::strerror(errno));
  total_bytes_ -= size_bytes_;
}

size_t HugeBuffer::huge_page_bytes() const {
  if (data_ == nullptr) return 0;
  return std::min<size_t>(HugePageBytes(bytes()), size_bytes_);
}

bool TakePages(std::span<std::byte> part) {
  const auto begin = reinterpret_cast<uintptr_t>(part.data()) / PageBytes() * PageBytes();
  const auto end = reinterpret_cast<uintptr_t>(part.data() + part.size());
  int result = 0;
  do {
    result = madvise(reinterpret_cast<void*>(begin), end - begin, kPopulateWrite);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  return result == 0;
}

}  // namespace convene::hardware
