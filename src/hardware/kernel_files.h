// Reads the small text files of /proc and /sys. Not for files of users: no limits, no messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace convene::hardware {

// The whole file; nothing if it cannot be read.
std::optional<std::string> ReadKernelFile(const std::string& path);

// The number after `key` at the start of a line, as in "MemFree:    123 kB" or "inactive_file
// 4096", in the unit of the file. Nothing if the key is missing or no number follows it.
std::optional<uint64_t> NumberAfter(std::string_view text, std::string_view key);

}  // namespace convene::hardware
