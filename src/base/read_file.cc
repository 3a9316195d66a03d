#include "base/read_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/units.h"

namespace convene {

Result<std::string> ReadFile(const std::string& path, uint64_t max_bytes) {
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rb"), close);
  if (!file) return Error{fmt::format("cannot open {}: {}", path, std::strerror(errno))};

  std::string bytes;
  char chunk[1 << 16];
  while (const size_t count = std::fread(chunk, 1, sizeof chunk, file.get())) {
    if (bytes.size() + count > max_bytes) {
      return Error{
          fmt::format("{} is larger than the {} allowed here", path, FormatBytes(max_bytes))};
    }
    bytes.append(chunk, count);
  }
  if (std::ferror(file.get())) {
    return Error{fmt::format("cannot read {}: {}", path, std::strerror(errno))};
  }
  return bytes;
}

}  // namespace convene
