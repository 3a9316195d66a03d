// A lock between processes that make the same thing: a file that one of them has at a time, and
// which is gone once nobody has it. It protects nothing by itself, and knows no readers.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "base/result.h"

namespace convene {

class FileLock {
 public:
  // Waits until nobody else has the lock; calls `waits`, if it is not empty, once before that. It
  // ends with this process, however that ends. Where a file system knows no locks, nobody is kept
  // out. Error: the file cannot be made; names it.
  static Result<FileLock> Take(const std::string& path, const std::function<void()>& waits);

  FileLock(FileLock&& other) noexcept
      : path_(std::exchange(other.path_, {})), descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  FileLock(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;
  int descriptor_;
};

}  // namespace convene
