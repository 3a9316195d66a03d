// A file mapped read-only into memory. If somebody shortens it meanwhile, or its disk fails, the
// first read of what is gone ends the process with a message that names the file, and status 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"

namespace convene::checkpoint {

class MappedFile {
 public:
  // It begins where a huge page does, if there is room for that in the address space. Errors: it
  // cannot be opened or mapped, is empty, or is not a regular file.
  static Result<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // The same text for the same file, whatever its path, in all processes of a machine; another one
  // once it was replaced or written to.
  std::string identity() const;
  // What changes once it was replaced or written to, and by nothing else: the number of the device,
  // which identity() has, may be another one after the next mount (NFS, overlay, btrfs, LVM).
  std::string state() const;
  // Whether an open file is the mapped one, whatever was written to it since.
  bool IsSameFile(int descriptor) const;

  // Reads `part` of bytes() into memory now, as a first touch of its pages would, and waits for it.
  // Any thread. Kernels before Linux 5.14 cannot: then the pages come when they are touched. Error:
  // the file was cut, or its disk failed.
  Status Populate(std::span<const std::byte> part) const;

  // Error: the file was written to since it was opened, so that what was read may be a mixture.
  Status CheckUnchanged() const;

 private:
  // By which a file that was written to is told from what it was.
  struct Version {
    uint64_t device, inode;
    int64_t size, seconds, nanoseconds;
    bool operator==(const Version&) const = default;
  };
  static std::optional<Version> VersionOf(const std::string& path);

  MappedFile(std::string path, std::span<const std::byte> bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  std::string path_;
  std::span<const std::byte> bytes_;
  std::optional<Version> version_;
};

// A touch maps what the page cache has in so many bytes around it (the kernel's fault_around_bytes,
// a window that begins at a multiple of them).
inline constexpr uint64_t kTouchedTogether = uint64_t{64} << 10;

// Hints to the kernel about mapped bytes (any alignment; threads may call them at any time). They
// never change what is read.
void WillNeed(std::span<const std::byte> bytes);  // start reading them from disk now
// Drop from this process the pages that they are in, and those that the kernel mapped with them;
// who reads one of these gets it again. Bytes of no mapped file are left alone, here and by Evict.
void DontNeed(std::span<const std::byte> bytes);
// The same, and from the page cache where no other process has them mapped, so that a file that is
// read once takes no memory which a budget knows nothing of (MADV_PAGEOUT, Linux 5.4; only of files
// that one may write to). They are read by then: what the page cache has of them passes through
// this process once more, 2 MiB at a time.
void Evict(std::span<const std::byte> bytes);
// The bytes of mapped pages that lie in memory, of this process or any other. Where the kernel does
// not tell (files that the user may not write to), all of them.
uint64_t CachedBytes(std::span<const std::byte> bytes);
// Read what is not in memory yet in huge pages, where the file system has such (large folios).
void AskForHugePages(std::span<const std::byte> bytes);

// Moves the pages of a file that are in memory already into huge pages, where the kernel does that:
// on tmpfs, and with CONFIG_READ_ONLY_THP_FOR_FS (MADV_COLLAPSE, Linux 6.1). It copies as many
// bytes. Returns false where the kernel refuses.
bool CollapseToHugePages(std::span<const std::byte> bytes);

}  // namespace convene::checkpoint
