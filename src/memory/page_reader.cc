#include "memory/page_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "memory/refused_transfers.h"

namespace convene::memory {
namespace {

constexpr int kMostShortReads = 8;  // of a piece, in turn
// Before the first of these is tried again; then twice as long each time, since what made it short
// may pass.
constexpr auto kFirstPause = std::chrono::microseconds(100);

void CheckRead(const PageRead& read) {
  CHECK(read.offset % kDirectBlockBytes == 0 && read.size_bytes > 0 &&
            reinterpret_cast<uintptr_t>(read.target) % kDirectBlockBytes == 0,
        "{} bytes at {}", read.size_bytes, read.offset);
}

}  // namespace

// One call of Read.
class PageReader::Run {
 public:
  Run(PageReader& reader, std::span<const PageRead> reads, const Arrived& arrived, Feed feed)
      : reader_(reader),
        reads_(reads.begin(), reads.end()),
        arrived_(arrived),
        feed_(std::move(feed)),
        pieces_(static_cast<size_t>(reader.queue_->depth())),
        refused_(pieces_.size()),
        progress_(reads.size()) {
    for (uint32_t tag = 0; tag < pieces_.size(); ++tag) free_.push_back(tag);
  }

  Status Execute() {
    for (;;) {
      while (!failure_ && !free_.empty() && HasNext()) BeginNext();
      if (free_.size() == pieces_.size()) break;
      Finish(WaitForNext());
    }
    if (failure_) return *failure_;
    return {};
  }

 private:
  bool HasNext() {
    if (next_read_ < reads_.size()) return true;
    const uint64_t request_bytes = reader_.options_.request_bytes;
    const uint64_t under_way_bytes = (pieces_.size() - free_.size()) * request_bytes;
    if (!feed_.next || under_way_bytes >= std::max(feed_.bytes, request_bytes)) return false;
    const std::optional<PageRead> read = feed_.next();
    if (!read) {
      feed_.next = nullptr;
      return false;
    }
    CheckRead(*read);
    reads_.push_back(*read);
    progress_.emplace_back();
    return true;
  }

  void BeginNext() {
    const PageRead& read = reads_[next_read_];
    const uint64_t size = std::min(reader_.options_.request_bytes, read.size_bytes - next_begin_);
    const uint32_t tag = free_.back();
    free_.pop_back();
    pieces_[tag] = {.read_idx = next_read_, .begin = next_begin_, .end = next_begin_ + size};
    next_begin_ += size;
    if (next_begin_ == read.size_bytes) {
      ++next_read_;
      next_begin_ = 0;
    }
    Begin(tag);
  }

  FinishedTransfer WaitForNext() {
    double waited_s = 0;
    double patience_s = reader_.options_.patience_s;
    for (;;) {
      if (const auto finished = reader_.queue_->Wait(patience_s)) return *finished;
      waited_s += patience_s;
      patience_s = waited_s;
      if (!reader_.options_.told) continue;
      reader_.options_.told(fmt::format(
          "the disk of {} has answered nothing for {:.3g} s; waiting for it, since what was asked "
          "for may still come",
          reader_.path_, waited_s));
    }
  }

  void Begin(uint32_t tag) {
    Piece& piece = pieces_[tag];
    const PageRead& read = reads_[piece.read_idx];
    piece.requested = DirectBytes(piece.end - piece.begin);
    reader_.queue_->Begin({.offset = read.offset + piece.begin,
                           .size_bytes = static_cast<uint32_t>(piece.requested),
                           .target = read.target + piece.begin,
                           .tag = tag});
  }

  void Finish(FinishedTransfer finished) {
    Piece& piece = pieces_[finished.tag];
    const uint64_t offset = reads_[piece.read_idx].offset + piece.begin;
    const auto& change = reader_.options_.change_result;
    const int64_t result = change ? change(offset, finished.result) : finished.result;
    const bool is_refused = result == -EINTR || result == -EAGAIN;
    if (is_refused && !failure_ && refused_.WaitToTryAgain()) return Begin(finished.tag);
    if (result > 0) refused_.SomeBytesCame();
    if (result < 0) {
      Error error = SystemError(fmt::format("cannot read {} bytes at byte {} of {}",
                                            piece.requested, offset, reader_.path_),
                                static_cast<int>(-result));
      // Whatever a disk calls it, the data cannot be had.
      const bool is_lack = error.kind == ErrorKind::kResourceExhausted && !is_refused;
      if (!is_lack) error.kind = ErrorKind::kDataLoss;
      return Fail(finished.tag, std::move(error));
    }
    const uint64_t wanted = piece.end - piece.begin;
    if (static_cast<uint64_t>(result) < wanted) {
      // The rest, from the block on that is not whole.
      const uint64_t whole = static_cast<uint64_t>(result) / kDirectBlockBytes * kDirectBlockBytes;
      const bool is_in_file =
          reader_.ReadVersion().size_bytes >= static_cast<int64_t>(offset + wanted);
      if (whole == 0 && is_in_file && piece.num_short < kMostShortReads) {
        if (!failure_) {
          std::this_thread::sleep_for(kFirstPause * (1 << piece.num_short++));
          return Begin(finished.tag);
        }
        free_.push_back(finished.tag);
        return;
      }
      if (whole == 0 && is_in_file) {
        return Fail(finished.tag, DataLoss(fmt::format(
                                      "{} gave {} of {} bytes at byte {}, {} times in turn",
                                      reader_.path_, result, wanted, offset, kMostShortReads + 1)));
      }
      if (whole == 0) {
        return Fail(finished.tag,
                    DataLoss(fmt::format(
                        "{} was cut while it was read: it ends before byte {}; leave the files of "
                        "a model alone while it runs, and start again when the file is whole",
                        reader_.path_, offset + wanted)));
      }
      piece.begin += whole;
      piece.num_short = 0;
      if (!failure_) return Begin(finished.tag);
      free_.push_back(finished.tag);
      return;
    }
    free_.push_back(finished.tag);
    reader_.LeaveNoCopy(reads_[piece.read_idx].offset + piece.begin, piece.requested);
    IsThere(piece);
  }

  void IsThere(const Piece& piece) {
    const uint64_t request_bytes = reader_.options_.request_bytes;
    const uint64_t size_bytes = reads_[piece.read_idx].size_bytes;
    Progress& progress = progress_[piece.read_idx];
    progress.is_there.resize((size_bytes + request_bytes - 1) / request_bytes);
    progress.is_there[(piece.end - 1) / request_bytes] = true;
    const size_t before = progress.num_first;
    while (progress.num_first < progress.is_there.size() && progress.is_there[progress.num_first]) {
      ++progress.num_first;
    }
    if (progress.num_first == before || failure_ || !arrived_) return;
    arrived_(piece.read_idx, std::min(size_bytes, progress.num_first * request_bytes));
  }

  void Fail(uint32_t tag, Error error) {
    if (!failure_) failure_ = std::move(error);
    free_.push_back(tag);
  }

  PageReader& reader_;
  std::vector<PageRead> reads_;
  const Arrived& arrived_;
  Feed feed_;
  std::vector<Piece> pieces_;   // by tag
  std::vector<uint32_t> free_;  // tags
  RefusedTransfers refused_;
  struct Progress {
    std::vector<bool> is_there = {};  // by request
    size_t num_first = 0;             // so many of the first ones
  };
  std::vector<Progress> progress_;  // by read
  size_t next_read_ = 0;
  uint64_t next_begin_ = 0;  // of its next piece
  std::optional<Error> failure_;
};

Result<std::unique_ptr<PageReader>> PageReader::Open(const std::string& path, Options options) {
  CHECK(options.request_bytes % kDirectBlockBytes == 0 && options.request_bytes > 0);
  Result<OpenFile> file = OpenFile::ToRead(path);
  if (!file) return file.error();
  if (!file->is_regular()) {
    return Error{
        fmt::format("{} is {}; pages can be read of a regular file only", path, file->KindName())};
  }
  std::unique_ptr<PageReader> reader(new PageReader(path, *std::move(file), std::move(options)));
  reader->version_ = reader->ReadVersion();
  reader->LeaveCacheOut();
  if (const Status made = reader->MakeQueue(); !made) return made.error();
  return reader;
}

PageReader::Version PageReader::ReadVersion() const {
  struct stat status = {};
  if (fstat(file_.descriptor(), &status) != 0) return {};
  return {status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

Status PageReader::CheckUnchanged() const {
  const Version now = ReadVersion();
  if (now == version_) return {};
  return DataLoss(fmt::format(
      "{} was {} while it was in use; leave the files of a model alone while it runs, and start "
      "again when the file is whole",
      path_, now.size_bytes < version_.size_bytes ? "cut" : "written to"));
}

// Some file systems refuse direct reads when they are asked for, others at the first one.
void PageReader::LeaveCacheOut() {
  alignas(kDirectBlockBytes) static thread_local std::array<std::byte, kDirectBlockBytes> block;
  const int descriptor = file_.descriptor();
  const int flags = fcntl(descriptor, F_GETFL);
  is_direct_ =
      options_.use_direct && flags >= 0 && fcntl(descriptor, F_SETFL, flags | O_DIRECT) == 0;
  if (is_direct_ && pread(descriptor, block.data(), block.size(), 0) < 0 && errno == EINVAL) {
    is_direct_ = fcntl(descriptor, F_SETFL, flags) != 0;
  }
  if (is_direct_) return;
  why_ = "its file system has no direct reads (O_DIRECT)";
  // Requests are large, and many are under way: what the system would read ahead of them nobody has
  // asked for.
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_RANDOM);
}

// Through the page cache: a copy there would take memory that the caller's budget does not know of,
// and push out pages that somebody will read. A hint, which may be refused.
void PageReader::LeaveNoCopy(uint64_t offset, uint64_t size_bytes) const {
  if (is_direct_) return;
  posix_fadvise(file_.descriptor(), static_cast<off_t>(offset), static_cast<off_t>(size_bytes),
                POSIX_FADV_DONTNEED);
}

Status PageReader::MakeQueue() {
  if (options_.make_queue) {
    queue_ = options_.make_queue(file_.descriptor());
    return {};
  }
  auto queue = MakeDiskQueue(file_.descriptor(),
                             {options_.depth, options_.threads, options_.use_io_uring}, &why_);
  if (!queue) return queue.error();
  queue_ = *std::move(queue);
  return {};
}

std::string PageReader::Describe() const { return memory::Describe(*queue_, is_direct_, why_); }

Status PageReader::Read(std::span<const PageRead> reads, const Arrived& arrived, Feed feed) {
  for (const PageRead& read : reads) CheckRead(read);
  return Run(*this, reads, arrived, std::move(feed)).Execute();
}

}  // namespace convene::memory
