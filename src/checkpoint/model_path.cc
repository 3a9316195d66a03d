#include "checkpoint/model_path.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <string_view>

#include "base/quote.h"

namespace convene::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWanted =
    "the directory of a checkpoint as Hugging Face publishes it: config.json, tokenizer.json and "
    "safetensors files";

bool IsHubWord(std::string_view word) {
  return !word.empty() && word != "." && word != ".." &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

// "organisation/name", as on the hub.
bool IsHubName(std::string_view path) {
  const size_t slash = path.find('/');
  return slash != std::string_view::npos && IsHubWord(path.substr(0, slash)) &&
         IsHubWord(path.substr(slash + 1));
}

Error Missing(const std::string& path, int error_number) {
  if (error_number != ENOENT && error_number != ENOTDIR) {
    return SystemError("cannot open the model " + Quote(path), error_number);
  }
  if (IsHubName(path)) {
    const std::string name = path.substr(path.find('/') + 1);
    return NotFound(fmt::format(
        "there is no directory {}. If it is a model of the Hugging Face hub, download it first "
        "(`hf download {} --local-dir {}`) and give that directory",
        Quote(path), path, name));
  }
  return NotFound(fmt::format("there is no directory {}; give {}", Quote(path), kWanted));
}

Error IsGguf(const std::string& path) {
  return Error{fmt::format("{} is GGUF, which is not read here; give {}", Quote(path), kWanted)};
}

bool HasGguf(const std::string& directory) {
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == ".gguf") return true;
  }
  return false;
}

}  // namespace

Status CheckModelPath(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return Missing(path, errno);
  if (!S_ISDIR(status.st_mode)) {
    if (path.ends_with(".gguf")) return IsGguf(path);
    if (!S_ISREG(status.st_mode) || path.ends_with(".json")) return {};
    return Error{fmt::format("{} is a file; give {}", Quote(path), kWanted)};
  }
  const auto has = [&](const char* name) {
    // What cannot be looked at may be there: who reads it says why not.
    const std::string file = (fs::path(path) / name).string();
    return stat(file.c_str(), &status) == 0 || errno != ENOENT;
  };
  if (has("config.json") || has("tokenizer.json") || has("vocab.json")) return {};
  if (HasGguf(path)) return IsGguf(path);
  return NotFound(
      fmt::format("{} has no config.json, so it is not a (complete) model directory; give {}",
                  Quote(path), kWanted));
}

}  // namespace convene::checkpoint
