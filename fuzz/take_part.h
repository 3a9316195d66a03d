// Inputs of several parts with zero bytes between, as targets take them that read several files.
#pragma once

#include <string_view>

// Takes the part of `input` before its first zero byte, and that byte.
inline std::string_view TakePart(std::string_view& input) {
  const size_t size = input.find('\0');
  const std::string_view part = input.substr(0, size);
  input.remove_prefix(size == input.npos ? input.size() : size + 1);
  return part;
}
