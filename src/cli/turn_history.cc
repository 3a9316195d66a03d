#include "cli/turn_history.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/json.h"
#include "base/read_file.h"

namespace convene::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kKeptTurns = 1000;          // of a file that has become longer than
constexpr size_t kMaxTurns = 2000;           // so many turns or
constexpr size_t kLongFileBytes = 8u << 20;  // so many bytes
constexpr size_t kKeptBytes = 4u << 20;
constexpr size_t kMaxTurnBytes = 1u << 20;  // a longer one is not kept
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 28;

std::string LineOf(const std::string& turn) {
  return nlohmann::json(turn).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Error CannotWriteHistory(const std::string& path, int error) {
  return SystemError("cannot write " + path, error);
}

// In one piece, so that lines of several programs do not mix. Others shall not read it.
Status Write(const std::string& path, int flags, std::string_view text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
  if (file < 0) return CannotWriteHistory(path, errno);
  const ssize_t written = write(file, text.data(), text.size());
  const int error = written < 0 ? errno : written < std::ssize(text) ? ENOSPC : 0;
  close(file);
  return error == 0 ? Status() : CannotWriteHistory(path, error);
}

// The latest turns of those given, as many as are kept.
size_t FirstKept(const std::vector<std::string>& turns) {
  size_t first = turns.size();
  size_t num_bytes = 0;
  while (first > 0 && turns.size() - first < kKeptTurns) {
    num_bytes += turns[first - 1].size();
    if (num_bytes > kKeptBytes) break;
    --first;
  }
  return first;
}

// A reader sees the old file or the new one.
Status Replace(const std::string& path, const std::vector<std::string>& turns) {
  std::string text;
  for (const std::string& turn : turns) text += LineOf(turn);
  const std::string temporary = fmt::format("{}.{}", path, getpid());
  if (const Status written = Write(temporary, O_TRUNC, text); !written) return written;
  if (rename(temporary.c_str(), path.c_str()) != 0) return CannotWriteHistory(path, errno);
  return {};
}

}  // namespace

Result<TurnHistory> TurnHistory::Load(const std::string& path) {
  TurnHistory history(path);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return history;
  const Result<std::string> text = ReadFile(path, kMaxFileBytes);
  if (!text) return text.error();
  std::string_view rest = *text;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const Result<nlohmann::json> turn = ParseJson(line);
    if (turn && turn->is_string()) history.turns_.push_back(turn->get<std::string>());
  }
  if (history.turns_.size() <= kMaxTurns && text->size() <= kLongFileBytes) return history;
  history.turns_.erase(history.turns_.begin(),
                       history.turns_.begin() + static_cast<ptrdiff_t>(FirstKept(history.turns_)));
  if (const Status cut = Replace(path, history.turns_); !cut) return cut.error();
  return history;
}

Status TurnHistory::Add(const std::string& turn) {
  if (turn.size() > kMaxTurnBytes || (!turns_.empty() && turns_.back() == turn)) return {};
  turns_.push_back(turn);
  std::error_code failure;
  const fs::path directory = fs::path(path_).parent_path();
  if (!directory.empty()) fs::create_directories(directory, failure);
  if (failure) return CannotWriteHistory(path_, failure.value());
  return Write(path_, O_APPEND, LineOf(turn));
}

}  // namespace convene::cli
