#include "openai/batch_results.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/json.h"
#include "base/open_file.h"

namespace convene::openai {
namespace {

constexpr std::string_view kBeginning = R"({"id":"batch_req_)";  // of every line that we write

// Notes what the line from `begin` on is; false if it is no result (a request has a custom_id,
// too).
bool Note(std::string_view line, int64_t begin, EarlierResults* earlier) {
  const Result<nlohmann::json> json = ParseJson(line);
  if (!json || !json->is_object() || !json->contains("custom_id")) return false;
  if (!json->contains("response") && !json->contains("error")) return false;
  const nlohmann::json& custom_id = (*json)["custom_id"];
  const auto error = json->find("error");
  if (error == json->end() || error->is_null()) {
    if (custom_id.is_string()) earlier->finished.insert(custom_id.get<std::string>());
    return custom_id.is_string();
  }
  RefusedRequest refused = {.custom_id = {}, .begin = begin, .end = begin + std::ssize(line)};
  if (custom_id.is_string()) {
    refused.custom_id = custom_id.get<std::string>();
  } else {
    const auto number = error->is_object() ? error->find("line") : error->end();
    if (!error->is_object() || number == error->end() || !number->is_number_integer()) return false;
    refused.line = number->get<int64_t>();
  }
  earlier->refused.push_back(std::move(refused));
  return true;
}

// Two writers would overwrite each other. The lock ends with the process; where the file system
// knows none, there is none. A file that another one has replaced meanwhile belongs to who did it.
bool Lock(int file, const std::string& path) {
  if (flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  struct stat opened = {};
  struct stat named = {};
  return fstat(file, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

}  // namespace

Result<BatchResults> BatchResults::Open(const std::string& path) {
  if (path == "-") {
    BatchResults results("standard output");
    results.file_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    if (results.file_ < 0) return results.CannotWrite(errno);
    return results;
  }
  BatchResults results(path);
  const auto cannot_open = [&] {
    return Error{fmt::format("cannot open {} to write results: {}", path,
                             errno == ENXIO ? "nobody reads it; start its reader first"
                                            : std::strerror(errno)),
                 KindOfErrno(errno)};
  };
  // Without waiting for who reads a FIFO, which must be there already.
  results.file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  struct stat status = {};
  if (results.file_ < 0 || fstat(results.file_, &status) != 0) return cannot_open();
  results.is_regular_ = S_ISREG(status.st_mode);
  if (!results.is_regular_) {
    close(results.file_);
    results.file_ = open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    if (results.file_ < 0 || fcntl(results.file_, F_SETFL, O_WRONLY) != 0) return cannot_open();
  }
  if (results.is_regular_) {
    if (!Lock(results.file_, path)) {
      return Unavailable(fmt::format(
          "another run is writing {}; wait until it ends, or choose another --output", path));
    }
    if (const Status read = results.ReadEarlier(); !read) return read.error();
  }
  return results;
}

BatchResults::BatchResults(BatchResults&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      is_regular_(other.is_regular_),
      size_bytes_(other.size_bytes_),
      earlier_(std::move(other.earlier_)) {}

BatchResults::~BatchResults() {
  if (file_ >= 0) close(file_);
}

Status BatchResults::ReadEarlier() {
  std::string line;
  bool last_was_result = true;
  int64_t end_of_results = 0;
  int64_t line_number = 0;
  std::string buffer(size_t{1} << 16, '\0');
  for (;;) {
    const ssize_t count = read(file_, buffer.data(), buffer.size());
    if (count < 0) return SystemError("cannot read " + path_, errno);
    if (count == 0) break;
    for (const char c : std::string_view(buffer.data(), static_cast<size_t>(count))) {
      line.push_back(c);
      if (c != '\n') continue;
      ++line_number;
      if (!last_was_result) {
        return Error{fmt::format(
            "{} holds something else than batch results (line {}); choose another --output", path_,
            line_number - 1)};
      }
      last_was_result = Note(line, end_of_results, &earlier_);
      if (last_was_result) end_of_results += static_cast<int64_t>(line.size());
      line.clear();
    }
  }
  // What is left in `line` has no end: torn off a result, or the last words of something else.
  const size_t num_compared = std::min(line.size(), kBeginning.size());
  const bool is_foreign = line.substr(0, num_compared) != kBeginning.substr(0, num_compared);
  if (is_foreign || (!last_was_result && line_number == 1)) {
    return Error{
        fmt::format("{} holds something else than batch results; choose another --output", path_)};
  }
  if (ftruncate(file_, end_of_results) != 0 || lseek(file_, end_of_results, SEEK_SET) < 0) {
    return CannotWrite(errno);
  }
  size_bytes_ = end_of_results;
  return {};
}

Status BatchResults::Forget(const std::function<bool(const RefusedRequest&)>& is_retried) {
  std::vector<RefusedRequest> forgotten;
  for (const RefusedRequest& refused : earlier_.refused) {
    if (is_retried(refused)) forgotten.push_back(refused);
  }
  if (forgotten.empty()) return {};
  // Beside the file itself, not beside a link to it.
  std::error_code ignored;
  const std::filesystem::path canonical = std::filesystem::canonical(path_, ignored);
  const std::string target_path = canonical.empty() ? path_ : canonical.string();
  const std::string rewritten_path = target_path + ".rewriting";
  const int rewritten = open(rewritten_path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (rewritten < 0) {
    return Error{
        fmt::format(
            "cannot write {}: {}; it replaces {} without the refused lines, which are tried again",
            rewritten_path, std::strerror(errno), path_),
        KindOfErrno(errno)};
  }
  struct stat status = {};
  int64_t size_bytes = 0;
  Status done = CopyKept(forgotten, rewritten, &size_bytes);
  const bool replaced = done && fstat(file_, &status) == 0 &&
                        fchmod(rewritten, status.st_mode & 07777) == 0 && fsync(rewritten) == 0 &&
                        flock(rewritten, LOCK_EX | LOCK_NB) == 0 &&
                        rename(rewritten_path.c_str(), target_path.c_str()) == 0;
  if (!replaced) {
    if (done) done = CannotWrite(errno);
    close(rewritten);
    unlink(rewritten_path.c_str());
    return done;
  }
  close(std::exchange(file_, rewritten));
  size_bytes_ = size_bytes;
  return {};
}

// The file less the lines of `forgotten`, into `target`, which is left at its end.
Status BatchResults::CopyKept(const std::vector<RefusedRequest>& forgotten, int target,
                              int64_t* size_bytes) {
  std::string buffer(size_t{1} << 20, '\0');
  int64_t at = 0;
  for (size_t i = 0; i <= forgotten.size(); ++i) {
    const int64_t end = i < forgotten.size() ? forgotten[i].begin : size_bytes_;
    while (at < end) {
      const auto wanted = static_cast<size_t>(std::min<int64_t>(std::ssize(buffer), end - at));
      const ssize_t count = pread(file_, buffer.data(), wanted, at);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        return Error{fmt::format("cannot read {}: {}", path_,
                                 count < 0 ? std::strerror(errno) : "it became shorter"),
                     KindOfErrno(errno)};
      }
      const int error = WriteAll(target, {buffer.data(), static_cast<size_t>(count)});
      if (error != 0) return CannotWrite(error);
      at += count;
      *size_bytes += count;
    }
    if (i < forgotten.size()) at = forgotten[i].end;
  }
  return {};
}

Status BatchResults::Append(const nlohmann::ordered_json& result) {
  const std::string line =
      result.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (const int error = WriteAll(file_, line); error != 0) {
    // If even this fails the next run cuts the torn line off.
    if (is_regular_ && ftruncate(file_, size_bytes_) == 0) lseek(file_, size_bytes_, SEEK_SET);
    return CannotWrite(error);
  }
  size_bytes_ += std::ssize(line);
  return {};
}

Status BatchResults::Close() {
  if (is_regular_ && fsync(file_) != 0) return CannotWrite(errno);
  if (close(std::exchange(file_, -1)) != 0) return CannotWrite(errno);
  return {};
}

Error BatchResults::CannotWrite(int error_number) const {
  return Error{
      fmt::format(
          "cannot write to {}: {}{}", path_, std::strerror(error_number),
          is_regular_
              ? "; what is finished is kept: make room and run the same command again to go on"
              : ""),
      KindOfErrno(error_number)};
}

}  // namespace convene::openai
