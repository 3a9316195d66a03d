#include "cli/output.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/message.h"
#include "base/open_file.h"
#include "base/quote.h"
#include "base/read_file.h"
#include "base/units.h"
#include "cli/value_options.h"

namespace convene::cli {
namespace {

namespace fs = std::filesystem;

// Far beyond any context, and little enough to be read at once.
constexpr uint64_t kMaxTextBytes = uint64_t{1} << 30;

// Who reads our output has left (`| head`): the end, and as quiet as that of other programs.
void EndIfNobodyReads() {
  if (errno != EPIPE) return;
  std::signal(SIGPIPE, SIG_DFL);
  raise(SIGPIPE);
}

Error CannotWrite(const std::string& what) { return SystemError("cannot write " + what, errno); }

}  // namespace

Status WriteOutput(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    EndIfNobodyReads();
    return CannotWrite("standard output");
  }
  return {};
}

Status FlushOutput() {
  if (std::fflush(stdout) == 0) return {};
  EndIfNobodyReads();
  return CannotWrite("standard output");
}

Status ShowOutput(std::string_view text) {
  const Status written = WriteOutput(text);
  return written ? FlushOutput() : written;
}

Status WriteJson(const std::string& path, const nlohmann::ordered_json& json) {
  if (path.empty()) return {};
  const std::string text =
      json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  return WriteText(path, text);
}

Status WriteText(const std::string& path, std::string_view text) {
  if (path == "-") return WriteOutput(text);
  struct stat old = {};
  std::error_code failed;
  // Of an empty file nothing can be lost, and whoever made it may hold it open to read from it.
  if (stat(path.c_str(), &old) == 0 && S_ISREG(old.st_mode) && old.st_size > 0) {
    // What is there is lost only once what replaces it lies on the disk. Where nothing can be put
    // in its place (its directory is closed to us, it is a mount point), the file itself may be
    // open.
    const fs::path place = fs::canonical(path, failed);
    const int error = ReplaceFile(failed ? path : place.string(), text, old.st_mode & 07777);
    if (error == 0) return {};
    if (error == ENOSPC || error == EDQUOT || error == EFBIG || error == EIO) {
      errno = error;
      return CannotWrite(path);
    }
  }
  Result<Stream> file = OpenToWrite(path);
  if (!file) return file.error();
  const bool written = std::fwrite(text.data(), 1, text.size(), file->get()) == text.size();
  if (std::fclose(file->release()) == 0 && written) return {};
  const Error error = CannotWrite(path);
  RemoveUnfinished(path);
  return error;
}

Status WriteReport(std::initializer_list<std::string_view> results, std::string_view text) {
  if (std::ranges::find(results, "-") != results.end()) {
    PrintNoteText(text);
    return {};
  }
  return ShowOutput(Printable(text, "\n\t"));
}

Result<std::string> ReadText(const std::string& path) {
  if (path != "-") return ReadFileOrStream(path, kMaxTextBytes);
  if (isatty(STDIN_FILENO) == 1) {
    PrintNote("reading from the terminal; Ctrl-D on a line of its own ends the text\n");
  }
  std::string text;
  char buffer[1 << 16];
  size_t num_read = sizeof buffer;
  while (num_read == sizeof buffer) {  // less only at the end: a terminal would ask for it again
    num_read = std::fread(buffer, 1, sizeof buffer, stdin);
    text.append(buffer, num_read);
    if (text.size() > kMaxTextBytes) {
      return Error{fmt::format("standard input holds more than {}; cut it into parts",
                               FormatBytes(kMaxTextBytes))};
    }
  }
  if (std::ferror(stdin) != 0) return SystemError("cannot read standard input", errno);
  return text;
}

CLI::Validator WritableFile() {
  return CLI::Validator(
      [](const std::string& path) -> std::string {
        if (path == "-") return {};
        std::error_code ignored;
        if (fs::is_directory(path, ignored)) {
          return fmt::format("cannot write {}: it is a directory", path);
        }
        const bool exists = fs::exists(path, ignored);
        const std::string parent = fs::path(path).parent_path();
        const std::string changed = exists ? path : parent.empty() ? "." : parent;
        if (access(changed.c_str(), W_OK) == 0) return {};
        return CannotWrite(path).message;
      },
      "", kWritableFile);
}

CLI::Validator NoStandardOutput(const char* why) {
  return CLI::Validator(
      [why](const std::string& path) { return path == "-" ? why : std::string(); }, "");
}

CLI::Validator NewDirectory() {
  return CLI::Validator(
      [](const std::string& path) -> std::string {
        std::error_code ignored;
        // What will be changed: the nearest directory that is there.
        fs::path changed = path;
        while (!changed.empty() && !fs::exists(changed, ignored)) changed = changed.parent_path();
        if (changed.empty()) changed = ".";
        if (changed == path && !fs::is_empty(changed, ignored)) {
          return fmt::format("{} exists and is not an empty directory; give another one", path);
        }
        if (!fs::is_directory(changed, ignored)) {
          return fmt::format("cannot write {}: {} is not a directory", path, changed.string());
        }
        if (access(changed.c_str(), W_OK | X_OK) == 0) return {};
        return CannotWrite(path).message;
      },
      "");
}

void AddJsonOption(CLI::App& app, std::string& path) {
  AddPath(app, "--json", path, "Write the figures as JSON ('-': standard output)")
      ->check(WritableFile());
}

}  // namespace convene::cli
