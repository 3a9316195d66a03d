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
  // Errors: it cannot be opened or mapped, is empty, or is not a regular file.
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

// Hints to the kernel about mapped bytes (any alignment; threads may call them at any time). They
// never change what is read.
void WillNeed(std::span<const std::byte> bytes);  // start reading them from disk now
void DontNeed(std::span<const std::byte> bytes);  // drop whole pages inside from this process

}  // namespace convene::checkpoint
