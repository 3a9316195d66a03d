#include "checkpoint/file_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace convene::checkpoint {
namespace {

// Direct reads begin and end at multiples of it, in the file and in memory. Disks ask for 4,096
// bytes at most.
constexpr uint64_t kBlockBytes = 4096;

// The same file once more, for direct reads; nothing where its file system has none.
std::optional<OpenFile> OpenDirect(const MappedFile& file) {
  Result<OpenFile> opened = OpenFile::ToRead(file.path());
  if (!opened || !file.IsSameFile(opened->descriptor())) return std::nullopt;
  const int flags = fcntl(opened->descriptor(), F_GETFL);
  if (flags < 0 || fcntl(opened->descriptor(), F_SETFL, flags | O_DIRECT) != 0) return std::nullopt;
  return *std::move(opened);
}

}  // namespace

Result<FileReader> FileReader::Open(const MappedFile& file) {
  Result<OpenFile> opened = OpenFile::ToRead(file.path());
  if (!opened) return opened.error();
  if (!file.IsSameFile(opened->descriptor())) {
    return DataLoss(
        fmt::format("{} was replaced while it was read; leave the files of a model alone while it "
                    "is loaded, and start again",
                    file.path()));
  }
  return FileReader(*std::move(opened), OpenDirect(file), file.path());
}

Status FileReader::ReadAt(uint64_t offset, std::span<std::byte> target) const {
  while (!target.empty()) {
    const ssize_t count =
        pread(file_.descriptor(), target.data(), target.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError("cannot read " + path_, errno);
    if (count == 0) {
      return DataLoss(
          fmt::format("{} was cut while it was read: it ends at {} bytes or before; leave the "
                      "files of a model alone while it is loaded, and start again when the file is "
                      "whole",
                      path_, offset));
    }
    offset += static_cast<uint64_t>(count);
    target = target.subspan(static_cast<size_t>(count));
  }
  return {};
}

void FileReader::DropCached(uint64_t offset, uint64_t size_bytes) const {
  posix_fadvise(file_.descriptor(), static_cast<off_t>(offset), static_cast<off_t>(size_bytes),
                POSIX_FADV_DONTNEED);
}

Status FileReader::ReadPastCache(uint64_t offset, std::span<std::byte> target,
                                 std::span<std::byte> staging) const {
  static_assert(kStagingBytes == 2 * kBlockBytes);
  CHECK(staging.size() >= target.size() + kStagingBytes, "{} bytes of staging for {}",
        staging.size(), target.size());
  if (!direct_ || target.empty()) return ReadAt(offset, target);
  const uint64_t first = offset / kBlockBytes * kBlockBytes;
  const uint64_t wanted_bytes = offset - first + target.size();
  const uint64_t block_bytes = (wanted_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  for (uint64_t done_bytes = 0; done_bytes < wanted_bytes;) {
    const ssize_t count = pread(direct_->descriptor(), staging.data() + done_bytes,
                                block_bytes - done_bytes, static_cast<off_t>(first + done_bytes));
    if (count < 0 && errno == EINTR) continue;
    // File systems may refuse direct reads only now; a cut file and a failing disk show there, too.
    if (count <= 0) return ReadAt(offset, target);
    done_bytes += static_cast<uint64_t>(count);
    if (done_bytes % kBlockBytes != 0 && done_bytes < wanted_bytes) return ReadAt(offset, target);
  }
  std::memcpy(target.data(), staging.data() + (offset - first), target.size());
  return {};
}

}  // namespace convene::checkpoint
