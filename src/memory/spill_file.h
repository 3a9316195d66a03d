// A file without a name, in which memory that has no room is kept while a program runs: its blocks
// are written and read past the page cache (O_DIRECT), many at a time. The system takes it back
// when the program ends, however it does. What blocks mean is the caller's matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "memory/disk_queue.h"

namespace convene::memory {

// Bytes of memory to the file, or back.
struct SpillTransfer {
  uint64_t offset = 0;          // in the file, a multiple of kDirectBlockBytes (page_reader.h)
  uint64_t size_bytes = 0;      // likewise, at least one
  std::byte* memory = nullptr;  // likewise
};

class SpillFile {
 public:
  struct Options {
    int depth = 32;  // as PageReader::Options, and so the next ones
    int threads = 8;
    uint64_t request_bytes = uint64_t{1} << 20;
    bool use_io_uring = true;
    bool use_direct = true;
    double patience_s = 10;
    std::function<void(const std::string&)> told = {};
    // For tests of failing disks: gets the place of each request and what it gave (bytes, or a
    // negative errno), and says what it gave instead.
    std::function<int64_t(uint64_t offset, bool is_write, int64_t result)> change_result = {};
  };

  // Reserves `size_bytes` of the disk in `directory`, which is made if it is not there. Errors: no
  // file can be made there; the disk has no room for it (ResourceExhausted, with what there is);
  // the system refuses threads.
  static Result<std::unique_ptr<SpillFile>> Create(const std::string& directory,
                                                   uint64_t size_bytes, Options options);
  // Bytes that could be reserved in a directory, or where it would be made; 0: it cannot be said.
  static uint64_t FreeBytes(const std::string& directory);
  // Whether files can be made in a directory, or where it would be made.
  static bool CanWrite(const std::string& directory);
  // Whether a directory, or where it would be made, lies in memory itself (tmpfs).
  static bool IsInMemory(const std::string& directory);

  // Whether what is written to one directory, or where it would be made, takes room of the other.
  static bool ShareDisk(const std::string& one, const std::string& other);

  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Return when all of it is done. One thread at a time. After an error nothing is under way, and
  // what was to be filled holds anything. Errors: the disk's (DataLoss).
  Status Read(std::span<const SpillTransfer> transfers) { return Transfer(transfers, false); }
  Status Write(std::span<const SpillTransfer> transfers) { return Transfer(transfers, true); }

  // As memory::Describe.
  std::string Describe() const;
  const std::string& directory() const { return directory_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  class Run;

  SpillFile(std::string directory, uint64_t size_bytes, Options options)
      : directory_(std::move(directory)), size_bytes_(size_bytes), options_(std::move(options)) {}
  Status Make();
  void TryDirect();
  Status Reserve();
  Status MakeQueue();
  Status Transfer(std::span<const SpillTransfer> transfers, bool is_write);

  std::string directory_;
  uint64_t size_bytes_;
  Options options_;
  int descriptor_ = -1;
  bool is_direct_ = false;
  std::string why_;  // there is no io_uring, or nothing goes past the page cache; otherwise empty
  std::unique_ptr<DiskQueue> queue_;
};

}  // namespace convene::memory
