// A directory that a command fills with files: complete when kept, gone otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace convene::checkpoint {

class OutputDirectory {
 public:
  // Errors: it exists and is not an empty directory; it cannot be created.
  static Result<OutputDirectory> Prepare(const std::string& path);

  OutputDirectory(OutputDirectory&& other) noexcept
      : path_(std::exchange(other.path_, {})),
        is_new_(other.is_new_),
        files_(std::move(other.files_)) {}
  OutputDirectory& operator=(OutputDirectory&&) = delete;
  // Removes the added files, and the directory if it was made here, unless kept.
  ~OutputDirectory();

  // Error: the disk has less room than that; it ends with `remedy` ("choose another directory").
  Status CheckRoom(uint64_t needed_bytes, std::string_view remedy) const;

  // The path of a file that is about to be written, or of a directory for those that follow.
  std::string Add(const std::string& name);
  void Keep() { path_.clear(); }

 private:
  OutputDirectory(std::string path, bool is_new) : path_(std::move(path)), is_new_(is_new) {}

  std::string path_;
  bool is_new_ = false;
  std::vector<std::string> files_;
};

}  // namespace convene::checkpoint
