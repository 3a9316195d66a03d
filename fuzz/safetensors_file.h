// Safetensors files as inputs of targets. In the files themselves the length of the header stands
// before it, so that hardly any change of the text would leave a file that can be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

// The beginning of a file, and how many bytes the whole of it is said to have.
struct SafetensorsFile {
  std::vector<std::byte> prefix;  // of its exact size, so that a read behind it is seen
  uint64_t size = 0;
};

// An input that begins with '{' is a header alone, before which its length is put; `num_bytes` of
// data follow it. Any other is a file's beginning as it is, and `num_bytes` follow that.
inline SafetensorsFile MakeSafetensorsFile(std::string_view input, uint64_t num_bytes) {
  constexpr size_t kLengthBytes = 8;
  const size_t first = input.starts_with('{') ? kLengthBytes : 0;
  SafetensorsFile file;
  file.prefix.resize(first + input.size());
  const uint64_t length = input.size();
  if (first != 0) std::memcpy(file.prefix.data(), &length, kLengthBytes);
  if (!input.empty()) std::memcpy(file.prefix.data() + first, input.data(), input.size());
  constexpr uint64_t kMostBytes = uint64_t{1} << 62;  // no file has more
  file.size = file.prefix.size() + (num_bytes < kMostBytes ? num_bytes : kMostBytes);
  return file;
}
