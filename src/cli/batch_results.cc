#include "cli/batch_results.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/json.h"

namespace convene::cli {
namespace {

constexpr std::string_view kBeginning = R"({"id":"batch_req_)";  // of every line that we write

// Notes whose result `line` is; false if it is no result (a request has a custom_id, too).
bool Note(std::string_view line, FinishedRequests* finished) {
  const Result<nlohmann::json> json = ParseJson(line);
  if (!json || !json->is_object() || !json->contains("custom_id")) return false;
  if (!json->contains("response") && !json->contains("error")) return false;
  const nlohmann::json& custom_id = (*json)["custom_id"];
  if (custom_id.is_string()) {
    finished->custom_ids.insert(custom_id.get<std::string>());
    return true;
  }
  const auto error = json->find("error");
  if (error == json->end() || !error->is_object()) return false;
  const auto number = error->find("line");
  if (number == error->end() || !number->is_number_integer()) return false;
  finished->lines.insert(number->get<int64_t>());
  return true;
}

}  // namespace

Result<BatchResults> BatchResults::Open(const std::string& path) {
  BatchResults results(path);
  const auto cannot_open = [&] {
    return Error{fmt::format(
        "cannot open {} to write results: {}", path,
        errno == ENXIO ? "nobody reads it; start its reader first" : std::strerror(errno))};
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
    // Two writers would overwrite each other. The lock ends with the process; where the file system
    // knows none, there is none.
    if (flock(results.file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      return Error{fmt::format(
          "another run is writing {}; wait until it ends, or choose another --output", path)};
    }
    if (const Status read = results.ReadFinished(); !read) return read.error();
  }
  return results;
}

BatchResults::BatchResults(BatchResults&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      is_regular_(other.is_regular_),
      size_bytes_(other.size_bytes_),
      finished_(std::move(other.finished_)) {}

BatchResults::~BatchResults() {
  if (file_ >= 0) close(file_);
}

Status BatchResults::ReadFinished() {
  std::string line;
  bool last_was_result = true;
  int64_t end_of_results = 0;
  int64_t line_number = 0;
  std::string buffer(size_t{1} << 16, '\0');
  for (;;) {
    const ssize_t count = read(file_, buffer.data(), buffer.size());
    if (count < 0) return Error{fmt::format("cannot read {}: {}", path_, std::strerror(errno))};
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
      last_was_result = Note(line, &finished_);
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

Status BatchResults::Append(const nlohmann::ordered_json& result) {
  const std::string line =
      result.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = write(file_, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error_number = count < 0 ? errno : ENOSPC;
      // If even this fails the next run cuts the torn line off.
      if (is_regular_ && ftruncate(file_, size_bytes_) == 0) lseek(file_, size_bytes_, SEEK_SET);
      return CannotWrite(error_number);
    }
    written += static_cast<size_t>(count);
  }
  size_bytes_ += static_cast<int64_t>(line.size());
  return {};
}

Status BatchResults::Close() {
  if (is_regular_ && fsync(file_) != 0) return CannotWrite(errno);
  if (close(std::exchange(file_, -1)) != 0) return CannotWrite(errno);
  return {};
}

Error BatchResults::CannotWrite(int error_number) const {
  return Error{fmt::format(
      "cannot write to {}: {}; what is finished is kept: make room and run the same command again "
      "to go on",
      path_, std::strerror(error_number))};
}

}  // namespace convene::cli
