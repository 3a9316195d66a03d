// Reads parts of a mapped file with large requests into memory that the caller has. It is for
// weights that are to lie in memory of the process itself; what is used where it lies is mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/open_file.h"
#include "base/result.h"
#include "checkpoint/mapped_file.h"

namespace convene::checkpoint {

class FileReader {
 public:
  // Error: the file cannot be opened, or another one lies in its place since it was mapped.
  static Result<FileReader> Open(const MappedFile& file);

  // Fills `target` with the bytes of the file from `offset` on. Any thread. Errors: the file was
  // cut, its disk fails.
  Status ReadAt(uint64_t offset, std::span<std::byte> target) const;

  // Bytes that ReadPastCache needs beside the target, because it reads whole blocks.
  static constexpr uint64_t kStagingBytes = uint64_t{8} << 10;

  // The same past the page cache (O_DIRECT), where the file system can: for what is not in memory
  // yet and will not be read again. `staging` begins at a multiple of 4,096 and has kStagingBytes
  // more than `target`; no two threads use the same at a time.
  Status ReadPastCache(uint64_t offset, std::span<std::byte> target,
                       std::span<std::byte> staging) const;

  // Takes `size_bytes` from `offset` on out of the page cache, all but what some process has mapped
  // or what is not on the disk yet. A hint, which the kernel may refuse.
  void DropCached(uint64_t offset, uint64_t size_bytes) const;

 private:
  FileReader(OpenFile file, std::optional<OpenFile> direct, std::string path)
      : file_(std::move(file)), direct_(std::move(direct)), path_(std::move(path)) {}

  OpenFile file_;
  std::optional<OpenFile> direct_;  // where the file system has direct reads
  std::string path_;
};

}  // namespace convene::checkpoint
