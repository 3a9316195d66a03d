// How much of a file is in the page cache, for tests of what leaves nothing there.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/check.h"

namespace convene {

// The share of the file's pages.
inline double CachedShare(const std::filesystem::path& path) {
  const int file = open(path.c_str(), O_RDONLY);
  const size_t size = std::filesystem::file_size(path);
  void* const mapped = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  std::vector<unsigned char> pages((size + 4095) / 4096);
  const bool is_known = mapped != MAP_FAILED && mincore(mapped, size, pages.data()) == 0;
  if (mapped != MAP_FAILED) munmap(mapped, size);
  close(file);
  CHECK(is_known, "no mincore of {}", path.string());
  const auto count = std::ranges::count_if(pages, [](unsigned char page) { return page & 1; });
  return static_cast<double>(count) / static_cast<double>(pages.size());
}

// Drops what of it is there, as far as the system does that; false: it does not, as on tmpfs.
inline bool DropFromCache(const std::filesystem::path& path) {
  const int file = open(path.c_str(), O_RDONLY);
  fsync(file);
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  close(file);
  return CachedShare(path) == 0;
}

}  // namespace convene
