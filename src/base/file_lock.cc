#include "base/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace convene {
namespace {

// Whether a file is still the one of that name: whoever had the lock before has removed its own.
bool IsNamed(int descriptor, const std::string& path) {
  struct stat opened = {};
  struct stat named = {};
  return fstat(descriptor, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

// 0, or an errno.
int Lock(int descriptor, int operation) {
  while (flock(descriptor, operation) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

Result<FileLock> FileLock::Take(const std::string& path, const std::function<void()>& waits) {
  bool has_waited = false;
  for (;;) {
    const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0) return SystemError(fmt::format("cannot make the lock {}", path), errno);
    FileLock lock(path, descriptor);
    int failed = Lock(descriptor, LOCK_EX | LOCK_NB);
    if (failed == EWOULDBLOCK) {
      if (!has_waited && waits) waits();
      has_waited = true;
      failed = Lock(descriptor, LOCK_EX);
    }
    // Without locks the file is still taken away, which hurts nobody.
    if (failed != 0 || IsNamed(descriptor, path)) return lock;
    lock.path_.clear();  // it is somebody else's
  }
}

// While it is held, so that nobody is let in through a file that is about to go.
FileLock::~FileLock() {
  if (descriptor_ < 0) return;
  if (!path_.empty()) unlink(path_.c_str());
  close(descriptor_);
}

}  // namespace convene
