// A file mapped read-only into memory. Not for files that others may shorten meanwhile: reading
// behind the new end would kill the process.
#pragma once

#include <cstddef>
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

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  std::string path_;
  std::span<const std::byte> bytes_;
};

// Hints to the kernel about mapped bytes (any alignment; threads may call them at any time). They
// never change what is read.
void WillNeed(std::span<const std::byte> bytes);  // start reading them from disk now
void DontNeed(std::span<const std::byte> bytes);  // drop whole pages inside from this process

}  // namespace convene::checkpoint
