#include "memory/spill_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "memory/page_reader.h"
#include "memory/refused_transfers.h"

namespace convene::memory {

namespace fs = std::filesystem;

// One call of Read or Write.
class SpillFile::Run {
 public:
  Run(SpillFile& file, std::span<const SpillTransfer> transfers, bool is_write)
      : file_(file),
        transfers_(transfers),
        is_write_(is_write),
        pieces_(static_cast<size_t>(file.queue_->depth())),
        refused_(pieces_.size()) {
    for (uint32_t tag = 0; tag < pieces_.size(); ++tag) free_.push_back(tag);
  }

  Status Execute() {
    for (;;) {
      while (!failure_ && next_ < transfers_.size() && !free_.empty()) BeginNext();
      if (free_.size() == pieces_.size()) break;
      Finish(WaitForNext());
    }
    if (failure_) return *failure_;
    return {};
  }

 private:
  void BeginNext() {
    const SpillTransfer& whole = transfers_[next_];
    const uint64_t size = std::min(file_.options_.request_bytes, whole.size_bytes - next_begin_);
    const uint32_t tag = free_.back();
    free_.pop_back();
    pieces_[tag] = {.offset = whole.offset + next_begin_,
                    .size_bytes = size,
                    .memory = whole.memory + next_begin_};
    next_begin_ += size;
    if (next_begin_ == whole.size_bytes) {
      ++next_;
      next_begin_ = 0;
    }
    Begin(tag);
  }

  void Begin(uint32_t tag) {
    const SpillTransfer& piece = pieces_[tag];
    file_.queue_->Begin({.offset = piece.offset,
                         .size_bytes = static_cast<uint32_t>(piece.size_bytes),
                         .target = piece.memory,
                         .tag = tag,
                         .is_write = is_write_});
  }

  FinishedTransfer WaitForNext() {
    double waited_s = 0;
    double patience_s = file_.options_.patience_s;
    for (;;) {
      if (const auto finished = file_.queue_->Wait(patience_s)) return *finished;
      waited_s += patience_s;
      patience_s = waited_s;
      if (!file_.options_.told) continue;
      file_.options_.told(
          fmt::format("the disk of {} has answered nothing for {:.3g} s; waiting for it",
                      file_.directory_, waited_s));
    }
  }

  void Finish(FinishedTransfer finished) {
    SpillTransfer& piece = pieces_[finished.tag];
    const auto& change = file_.options_.change_result;
    const int64_t result =
        change ? change(piece.offset, is_write_, finished.result) : finished.result;
    const bool is_refused = result == -EINTR || result == -EAGAIN;
    if (is_refused && !failure_ && refused_.WaitToTryAgain()) return Begin(finished.tag);
    if (result > 0) refused_.SomeBytesCame();
    const auto done = static_cast<uint64_t>(std::max<int64_t>(result, 0));
    // A part of it is taken up to the last whole block; nothing at all is a file that was cut.
    const uint64_t whole = std::min(done, piece.size_bytes) / kDirectBlockBytes * kDirectBlockBytes;
    if (whole == 0) {
      const std::string what = fmt::format("cannot {} {} bytes at byte {} of the spill file in {}",
                                           is_write_ ? "write" : "read", piece.size_bytes,
                                           piece.offset, file_.directory_);
      Error error = result < 0 ? SystemError(what, static_cast<int>(-result))
                               : DataLoss(what + ": the disk gave none of them");
      error.kind = ErrorKind::kDataLoss;
      if (!failure_) failure_ = std::move(error);
    } else if (whole < piece.size_bytes && !failure_) {
      piece = {piece.offset + whole, piece.size_bytes - whole, piece.memory + whole};
      return Begin(finished.tag);
    }
    free_.push_back(finished.tag);
  }

  SpillFile& file_;
  std::span<const SpillTransfer> transfers_;
  bool is_write_;
  std::vector<SpillTransfer> pieces_;  // by tag: what one request moves
  std::vector<uint32_t> free_;         // tags
  RefusedTransfers refused_;
  size_t next_ = 0;
  uint64_t next_begin_ = 0;  // of its next piece
  std::optional<Error> failure_;
};

namespace {

// The directory, or the nearest one above it that is there.
fs::path PlaceOf(const std::string& directory) {
  std::error_code failed;
  fs::path place = fs::absolute(directory, failed);
  while (!fs::exists(place, failed) && place != place.parent_path()) place = place.parent_path();
  return place;
}

}  // namespace

uint64_t SpillFile::FreeBytes(const std::string& directory) {
  std::error_code failed;
  const fs::space_info space = fs::space(PlaceOf(directory), failed);
  return failed ? 0 : space.available;
}

bool SpillFile::CanWrite(const std::string& directory) {
  return access(PlaceOf(directory).c_str(), W_OK | X_OK) == 0;
}

bool SpillFile::IsInMemory(const std::string& directory) {
  struct statfs status = {};
  return statfs(PlaceOf(directory).c_str(), &status) == 0 &&
         (status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC);
}

bool SpillFile::ShareDisk(const std::string& one, const std::string& other) {
  struct stat of_one = {};
  struct stat of_other = {};
  return stat(PlaceOf(one).c_str(), &of_one) == 0 && stat(PlaceOf(other).c_str(), &of_other) == 0 &&
         of_one.st_dev == of_other.st_dev;
}

Result<std::unique_ptr<SpillFile>> SpillFile::Create(const std::string& directory,
                                                     uint64_t size_bytes, Options options) {
  CHECK(size_bytes > 0 && options.request_bytes % kDirectBlockBytes == 0);
  std::unique_ptr<SpillFile> file(new SpillFile(directory, size_bytes, std::move(options)));
  if (const Status made = file->Make(); !made) return made.error();
  if (const Status reserved = file->Reserve(); !reserved) return reserved.error();
  if (const Status made = file->MakeQueue(); !made) return made.error();
  if (!file->why_.empty() && file->options_.told) {
    file->options_.told(fmt::format("what has no room in memory goes to {} in a slower way: {}",
                                    file->directory_, file->Describe()));
  }
  return file;
}

SpillFile::~SpillFile() {
  queue_.reset();
  if (descriptor_ >= 0) close(descriptor_);
}

// Without a name from the beginning where the file system can do that; otherwise it loses it at
// once.
Status SpillFile::Make() {
  std::error_code failed;
  fs::create_directories(directory_, failed);
  const std::string what =
      fmt::format("cannot make a spill file in {} (--spill-dir names another place)", directory_);
  if (failed) return SystemError(what, failed.value());
  descriptor_ = open(directory_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor_ < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)) {
    std::string name = directory_ + "/convene-spill-XXXXXX";
    descriptor_ = mkostemp(name.data(), O_CLOEXEC);
    if (descriptor_ >= 0) unlink(name.c_str());
  }
  if (descriptor_ < 0) return SystemError(what, errno);
  const int flags = fcntl(descriptor_, F_GETFL);
  // Where the file system refuses it, the page cache is between.
  is_direct_ =
      options_.use_direct && flags >= 0 && fcntl(descriptor_, F_SETFL, flags | O_DIRECT) == 0;
  if (!is_direct_) why_ = "its file system has no direct reads and writes (O_DIRECT)";
  return {};
}

// Some file systems refuse direct requests only when one comes.
void SpillFile::TryDirect() {
  constexpr size_t kBlock = 4096;
  alignas(kBlock) static constexpr std::byte kZeros[kBlock] = {};
  if (!is_direct_ || pwrite(descriptor_, kZeros, kBlock, 0) >= 0 || errno != EINVAL) return;
  is_direct_ = false;
  why_ = "its file system refuses direct writes of 4096 bytes";
  fcntl(descriptor_, F_SETFL, fcntl(descriptor_, F_GETFL) & ~O_DIRECT);
}

// A full disk is better noticed now than after hours. Not every file system can reserve. What is
// free is asked before: trying takes all there is, from others too, and then nothing is left.
Status SpillFile::Reserve() {
  const auto size = static_cast<off_t>(size_bytes_);
  TryDirect();
  const uint64_t free_bytes = FreeBytes(directory_);
  int reason = ENOSPC;
  if (free_bytes == 0 || size_bytes_ <= free_bytes) {  // 0: nobody can say
    if (fallocate(descriptor_, 0, 0, size) == 0) return {};
    reason = errno;
    if ((reason == EOPNOTSUPP || reason == ENOSYS) && ftruncate(descriptor_, size) == 0) return {};
  }
  return ResourceExhausted(fmt::format(
      "cannot reserve {} for a spill file in {}, whose disk has {} left: {}; give another "
      "--spill-dir, let fewer run together (--max-batch), or --spill-dir none, which keeps all in "
      "memory",
      FormatBytes(size_bytes_), directory_, FormatBytes(free_bytes),
      std::generic_category().message(reason)));
}

Status SpillFile::MakeQueue() {
  auto queue =
      MakeDiskQueue(descriptor_, {options_.depth, options_.threads, options_.use_io_uring}, &why_);
  if (!queue) return queue.error();
  queue_ = *std::move(queue);
  return {};
}

std::string SpillFile::Describe() const { return memory::Describe(*queue_, is_direct_, why_); }

Status SpillFile::Transfer(std::span<const SpillTransfer> transfers, bool is_write) {
  for (const SpillTransfer& each : transfers) {
    CHECK(each.offset % kDirectBlockBytes == 0 && each.size_bytes % kDirectBlockBytes == 0 &&
              each.size_bytes > 0 && each.offset + each.size_bytes <= size_bytes_ &&
              reinterpret_cast<uintptr_t>(each.memory) % kDirectBlockBytes == 0,
          "{} bytes at {}", each.size_bytes, each.offset);
  }
  return Run(*this, transfers, is_write).Execute();
}

}  // namespace convene::memory
