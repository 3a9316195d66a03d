// A file of known size that is written in parts, by several threads, and is either complete on the
// disk or reported. It does not clean up after a failure: the caller knows what else to remove.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace convene::checkpoint {

class OutputFile {
 public:
  // Creates the file and reserves its space. Errors: it exists, cannot be created, or the disk has
  // too little room (nothing is left then).
  static Result<OutputFile> Create(const std::string& path, uint64_t size_bytes);

  // Opens one that Create created, which was not finished. Error: it is not there, or cannot be
  // opened.
  static Result<OutputFile> Continue(const std::string& path);

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&& other) noexcept;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();  // closes without waiting for the disk

  const std::string& path() const { return path_; }

  // Any thread; ranges of different calls must not overlap.
  Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) const;

  // Waits until what was written so far is on the disk, and lets go of it in the page cache.
  Status Flush() const;

  // Waits until everything is on the disk. Nothing else may be called afterwards.
  Status Finish();

 private:
  OutputFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_ = -1;
};

// Creates `path` with this content, complete on the disk or not at all (written beside, then
// renamed).
Status WriteWholeFile(const std::string& path, std::string_view content);

}  // namespace convene::checkpoint
