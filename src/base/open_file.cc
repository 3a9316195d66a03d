#include "base/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace convene {

Result<OpenFile> OpenFile::ToRead(const std::string& path) {
  OpenFile file;
  file.descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat status = {};
  if (file.descriptor_ < 0 || fstat(file.descriptor_, &status) != 0) {
    const char* why =
        errno == ENXIO ? "it is a socket, or a device that is not there" : std::strerror(errno);
    return Error{fmt::format("cannot open {}: {}", path, why), KindOfErrno(errno)};
  }
  file.mode_ = status.st_mode;
  file.size_bytes_ = static_cast<uint64_t>(status.st_size);
  return file;
}

OpenFile::OpenFile(OpenFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      mode_(other.mode_),
      size_bytes_(other.size_bytes_) {}

OpenFile::~OpenFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

bool OpenFile::is_regular() const { return S_ISREG(mode_); }
bool OpenFile::is_fifo() const { return S_ISFIFO(mode_); }
bool OpenFile::is_character_device() const { return S_ISCHR(mode_); }

std::string OpenFile::KindName() const {
  if (S_ISREG(mode_)) return "a regular file";
  if (S_ISDIR(mode_)) return "a directory";
  if (S_ISFIFO(mode_)) return "a FIFO";
  return S_ISSOCK(mode_) ? "a socket" : "a device";
}

int WriteAll(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count < 0 ? errno : ENOSPC;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return 0;
}

Result<Stream> OpenToWrite(const std::string& path) {
  const auto cannot = [&](int error_number) {
    const char* why = error_number == ENXIO
                          ? "nobody reads this FIFO or device; start its reader first"
                          : std::strerror(error_number);
    return Error{fmt::format("cannot write {}: {}", path, why), KindOfErrno(error_number)};
  };
  // A FIFO that nobody reads would be waited for.
  const int descriptor =
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
  if (descriptor < 0) return cannot(errno);
  const int flags = fcntl(descriptor, F_GETFL);
  std::FILE* file = flags < 0 || fcntl(descriptor, F_SETFL, flags & ~O_NONBLOCK) != 0
                        ? nullptr
                        : fdopen(descriptor, "wb");
  if (file != nullptr) return Stream(file);
  const int error_number = errno;
  close(descriptor);
  return cannot(error_number);
}

int ReplaceFile(const std::string& path, std::string_view bytes, mode_t mode) {
  std::string temporary = path + ".XXXXXX";
  const int descriptor = mkostemp(temporary.data(), O_CLOEXEC);
  if (descriptor < 0) return errno;
  int error_number = WriteAll(descriptor, bytes);
  if (error_number == 0 && fsync(descriptor) != 0) error_number = errno;
  if (fchmod(descriptor, mode) != 0 && error_number == 0) error_number = errno;
  if (close(descriptor) != 0 && error_number == 0) error_number = errno;
  if (error_number == 0 && rename(temporary.c_str(), path.c_str()) != 0) error_number = errno;
  if (error_number != 0) unlink(temporary.c_str());
  return error_number;
}

void RemoveUnfinished(const std::string& path) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode)) unlink(path.c_str());
}

}  // namespace convene
