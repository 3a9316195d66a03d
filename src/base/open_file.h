// A file that is opened without ever waiting for somebody at its other end, and what kind of file
// it is. Neither buffers nor formats.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace convene {

class OpenFile {
 public:
  // Without waiting: reads of a FIFO or a terminal that has nothing to read fail with EAGAIN.
  // Error: it cannot be opened; names the file.
  static Result<OpenFile> ToRead(const std::string& path);

  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile();

  int descriptor() const { return descriptor_; }
  uint64_t size_bytes() const { return size_bytes_; }  // of a regular file
  bool is_regular() const;
  bool is_fifo() const;  // or a pipe
  bool is_character_device() const;
  std::string KindName() const;  // "a directory", "a FIFO"

 private:
  OpenFile() = default;
  int descriptor_ = -1;
  mode_t mode_ = 0;
  uint64_t size_bytes_ = 0;
};

struct CloseStream {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using Stream = std::unique_ptr<std::FILE, CloseStream>;

// Writes all of `bytes` to a descriptor; returns 0, or an errno where that fails.
int WriteAll(int descriptor, std::string_view bytes);

// Puts a file of these bytes and this mode in the place of `path`, or of nothing: a reader sees the
// old file or the new one, also when two processes write at once, and where this fails the old one
// is as it was. Returns 0, or an errno.
int ReplaceFile(const std::string& path, std::string_view bytes, mode_t mode);

// Opens a file to be written from its beginning, which is created or emptied. A FIFO without a
// reader is refused. Errors name the file.
Result<Stream> OpenToWrite(const std::string& path);

// Removes what OpenToWrite has created, if it is a file: half a result shall not be taken for one.
void RemoveUnfinished(const std::string& path);

}  // namespace convene
