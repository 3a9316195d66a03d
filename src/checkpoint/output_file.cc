#include "checkpoint/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/units.h"

namespace convene::checkpoint {
namespace {

Error CannotWrite(const std::string& path, int reason) {
  return SystemError("cannot write " + path, reason);
}

}  // namespace

Result<OutputFile> OutputFile::Create(const std::string& path, uint64_t size_bytes) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor < 0) return CannotWrite(path, errno);
  OutputFile file(path, descriptor);
  // A full disk is better noticed now than after minutes. Not every file system can reserve.
  if (size_bytes > 0 && fallocate(descriptor, 0, 0, static_cast<off_t>(size_bytes)) != 0 &&
      errno != EOPNOTSUPP && errno != ENOSYS) {
    const int reason = errno;
    unlink(path.c_str());
    return SystemError(fmt::format("cannot reserve {} for {}", FormatBytes(size_bytes), path),
                       reason);
  }
  return file;
}

Result<OutputFile> OutputFile::Continue(const std::string& path) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor < 0) return CannotWrite(path, errno);
  return OutputFile(path, descriptor);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

Status OutputFile::WriteAt(uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t written =
        pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      return CannotWrite(path_, errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return {};
}

Status OutputFile::Flush() const {
  if (fdatasync(descriptor_) != 0) return CannotWrite(path_, errno);
  posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);  // a hint, which may be refused
  return {};
}

Status OutputFile::Finish() {
  const int descriptor = std::exchange(descriptor_, -1);
  const int sync_error = fsync(descriptor) == 0 ? 0 : errno;
  const int close_error = close(descriptor) == 0 ? 0 : errno;
  if (sync_error != 0) return CannotWrite(path_, sync_error);
  if (close_error != 0) return CannotWrite(path_, close_error);
  return {};
}

Status WriteWholeFile(const std::string& path, std::string_view content) {
  const std::string temporary = path + ".tmp";
  unlink(temporary.c_str());  // of a run that was killed
  Result<OutputFile> file = OutputFile::Create(temporary, content.size());
  if (!file) return file.error();
  Status status = file->WriteAt(0, std::as_bytes(std::span(content)));
  if (status) status = file->Finish();
  if (status && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = CannotWrite(path, errno);
  }
  if (!status) unlink(temporary.c_str());
  return status;
}

}  // namespace convene::checkpoint
