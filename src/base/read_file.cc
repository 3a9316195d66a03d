#include "base/read_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "base/open_file.h"
#include "base/units.h"

namespace convene {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLongestWaitForWriter = std::chrono::seconds(5);
constexpr auto kLookForWriter = std::chrono::milliseconds(20);

// Reads what is there, at least a byte; 0 at the end. Waits while a stream has a writer that is
// silent.
ssize_t ReadSome(int file, char* buffer, size_t size) {
  for (;;) {
    const ssize_t count = read(file, buffer, size);
    if (count >= 0) return count;
    if (errno == EAGAIN) {
      struct pollfd wanted = {.fd = file, .events = POLLIN, .revents = 0};
      poll(&wanted, 1, -1);
    } else if (errno != EINTR) {
      return -1;
    }
  }
}

Result<std::string> ReadAll(const OpenFile& file, const std::string& path, uint64_t max_bytes) {
  const auto too_large = [&] {
    return Error{
        fmt::format("{} is larger than the {} allowed here", path, FormatBytes(max_bytes))};
  };
  if (file.is_regular() && file.size_bytes() > max_bytes) return too_large();
  std::string bytes;
  char chunk[1 << 14];
  const Clock::time_point start = Clock::now();
  for (;;) {
    const ssize_t count = ReadSome(file.descriptor(), chunk, sizeof chunk);
    if (count < 0) return SystemError("cannot read " + path, errno);
    if (count == 0) {
      if (!bytes.empty() || !file.is_fifo()) return bytes;
      // A FIFO without a writer looks as if it had ended.
      if (Clock::now() - start > kLongestWaitForWriter) {
        return Unavailable(fmt::format(
            "nobody writes to {}, which is a FIFO; start its writer, or give a file", path));
      }
      std::this_thread::sleep_for(kLookForWriter);
      continue;
    }
    if (bytes.size() + static_cast<size_t>(count) > max_bytes) return too_large();
    bytes.append(chunk, static_cast<size_t>(count));
  }
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, uint64_t max_bytes) {
  const Result<OpenFile> file = OpenFile::ToRead(path);
  if (!file) return file.error();
  if (!file->is_regular()) {
    return Error{fmt::format("{} is {}, and must be a regular file", path, file->KindName())};
  }
  return ReadAll(*file, path, max_bytes);
}

Result<std::string> ReadFileOrStream(const std::string& path, uint64_t max_bytes) {
  const Result<OpenFile> file = OpenFile::ToRead(path);
  if (!file) return file.error();
  if (!file->is_regular() && !file->is_fifo() && !file->is_character_device()) {
    return Error{fmt::format("{} is {}, and must be a file or a stream", path, file->KindName())};
  }
  return ReadAll(*file, path, max_bytes);
}

}  // namespace convene
