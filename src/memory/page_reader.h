// Reads pages of a file into memory that the caller has, past the page cache (O_DIRECT) and with
// many large requests under way, so that a disk gives its full rate. It maps nothing: a file that
// is cut or damaged meanwhile is an error, never a signal. What pages mean is weights/'s matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/open_file.h"
#include "base/result.h"
#include "memory/disk_queue.h"

namespace convene::memory {

// Direct reads begin and end at multiples of it, in the file and in memory. Disks ask for 4,096
// bytes at most.
inline constexpr uint64_t kDirectBlockBytes = 4096;
// Rounded up to it.
inline constexpr uint64_t DirectBytes(uint64_t size_bytes) {
  return (size_bytes + kDirectBlockBytes - 1) / kDirectBlockBytes * kDirectBlockBytes;
}

struct PageRead {
  uint64_t offset = 0;          // in the file, a multiple of kDirectBlockBytes
  uint64_t size_bytes = 0;      // at least 1
  std::byte* target = nullptr;  // DirectBytes(size_bytes) of memory at such a multiple
};

class PageReader {
 public:
  struct Options {
    int depth = 32;   // requests under way with io_uring
    int threads = 8;  // where io_uring is refused: requests under way by pread
    uint64_t request_bytes = uint64_t{1} << 20;  // of each, a multiple of kDirectBlockBytes
    bool use_io_uring = true;                    // false: as where it is refused
    bool use_direct = true;  // false: as where the file system has no direct reads
    // Where nothing that was asked for has come for so long, `told` gets a line for people, and
    // again when twice as long has passed. Reads go on: a disk may come back.
    double patience_s = 10;
    std::function<void(const std::string&)> told = {};
    // For tests of failing disks: takes the place of io_uring and threads.
    std::function<std::unique_ptr<DiskQueue>(int descriptor)> make_queue = {};
    // The same: gets the place of each request and what it gave (bytes, or a
    // negative errno), and says what it gave instead.
    std::function<int64_t(uint64_t offset, int64_t result)> change_result = {};
  };

  // Errors: the file cannot be opened or is no regular file; the system refuses threads.
  static Result<std::unique_ptr<PageReader>> Open(const std::string& path, Options options);
  static Result<std::unique_ptr<PageReader>> Open(const std::string& path) {
    return Open(path, Options());
  }

  using Arrived = std::function<void(size_t read_idx, uint64_t num_bytes)>;
  // Where more is to be read from, while the first reads are under way: `next` gives one read,
  // whose index is the next one, or nothing if there are no more. It is asked as soon as fewer than
  // `bytes` are under way, so that the disk need not stand still, and little is read that would not
  // have been asked for a moment later.
  struct Feed {
    std::function<std::optional<PageRead>()> next = {};
    uint64_t bytes = 0;
  };
  // Reads all of them, in this order as far as the disk keeps it. Whenever more of the beginning of
  // one is there, `arrived` gets its index and how many bytes that is, up to all of them; meanwhile
  // other requests are under way. It may be empty. One thread at a time. After an error nothing is
  // under way, and targets hold anything. Errors: the disk's; the file was cut.
  Status Read(std::span<const PageRead> reads, const Arrived& arrived, Feed feed);
  Status Read(std::span<const PageRead> reads, const Arrived& arrived) {
    return Read(reads, arrived, Feed());
  }

  // Error: the file was written to or cut since it was opened. One that another file took the place
  // of is read as it was.
  Status CheckUnchanged() const;

  const std::string& path() const { return path_; }
  uint64_t file_bytes() const { return file_.size_bytes(); }  // when it was opened
  // As memory::Describe.
  std::string Describe() const;

 private:
  // A part of a page that one request reads.
  struct Piece {
    size_t read_idx = 0;
    uint64_t begin = 0;  // in the page
    uint64_t end = 0;    // of what is wanted; the request ends at a multiple of kDirectBlockBytes
    uint64_t requested = 0;
    int num_short = 0;  // requests that gave less than a block of a file that has more
  };
  class Run;
  // By which a file that was written to is told from what it was.
  struct Version {
    int64_t size_bytes = 0, seconds = 0, nanoseconds = 0;
    bool operator==(const Version&) const = default;
  };

  PageReader(std::string path, OpenFile file, Options options)
      : path_(std::move(path)), file_(std::move(file)), options_(std::move(options)) {}
  Version ReadVersion() const;
  void LeaveCacheOut();
  void LeaveNoCopy(uint64_t offset, uint64_t size_bytes) const;
  Status MakeQueue();

  std::string path_;
  OpenFile file_;
  Options options_;
  Version version_;  // when it was opened
  bool is_direct_ = false;
  std::string why_;  // there is no io_uring, or no direct reads; otherwise empty
  std::unique_ptr<DiskQueue> queue_;
};

}  // namespace convene::memory
