#include "hardware/kernel_files.h"

#include <charconv>
#include <fstream>
#include <iterator>

namespace convene::hardware {

std::optional<std::string> ReadKernelFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) return std::nullopt;
  return text;
}

std::optional<uint64_t> NumberAfter(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const size_t line_size = text.find('\n');
    std::string_view line = text.substr(0, line_size);
    text.remove_prefix(line_size == text.npos ? text.size() : line_size + 1);
    if (!line.starts_with(key)) continue;
    line.remove_prefix(key.size());
    if (line.starts_with(':')) line.remove_prefix(1);
    const size_t number = line.find_first_not_of(" \t");
    if (number == line.npos || number == 0) continue;  // another key that begins alike
    line.remove_prefix(number);
    uint64_t value = 0;
    const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), value);
    if (error == std::errc()) return value;
  }
  return std::nullopt;
}

}  // namespace convene::hardware
