#include "checkpoint/output_directory.h"

#include <fmt/format.h>

#include <filesystem>
#include <ranges>

#include "base/units.h"

namespace convene::checkpoint {

namespace fs = std::filesystem;

Result<OutputDirectory> OutputDirectory::Prepare(const std::string& path) {
  std::error_code error;
  const bool existed = fs::exists(path, error);
  if (existed && (!fs::is_directory(path, error) || !fs::is_empty(path, error))) {
    return Error{fmt::format("{} exists and is not an empty directory; give another one", path)};
  }
  if (!existed && !fs::create_directories(path, error)) {
    return Error{fmt::format("cannot create the directory {}: {}", path, error.message()),
                 KindOfErrno(error.value())};
  }
  return OutputDirectory(path, !existed);
}

OutputDirectory::~OutputDirectory() {
  if (path_.empty()) return;
  std::error_code ignored;
  // A directory was added before the files in it.
  for (const std::string& name : std::views::reverse(files_)) {
    fs::remove(fs::path(path_) / name, ignored);
  }
  if (is_new_) fs::remove(path_, ignored);
}

Status OutputDirectory::CheckRoom(uint64_t needed_bytes, std::string_view remedy) const {
  std::error_code error;
  const fs::space_info space = fs::space(path_, error);
  if (error || space.available >= needed_bytes) return {};
  return ResourceExhausted(fmt::format("the weights need {}, but the disk of {} has {} free; {}",
                                       FormatBytes(needed_bytes), path_,
                                       FormatBytes(space.available), remedy));
}

std::string OutputDirectory::Add(const std::string& name) {
  files_.push_back(name);
  return (fs::path(path_) / name).string();
}

}  // namespace convene::checkpoint
