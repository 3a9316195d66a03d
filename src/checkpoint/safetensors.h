// The safetensors format (https://github.com/huggingface/safetensors, "Format"): the checked table
// of contents of a file. It knows neither models nor which tensors they need.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace convene::checkpoint {

// Longer headers are refused, as by the reference implementation.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct StoredTensor {
  std::string name;
  std::string_view dtype;  // the format's spelling, e.g. "BF16"; static storage
  std::vector<int64_t> shape;
  uint64_t offset = 0;  // of the first byte, from the start of the file
  uint64_t size_bytes = 0;
};

// The tensors of a safetensors file, in the order of their bytes. `prefix` is the file's beginning
// (all of it is fine) and must hold the whole header; `file_size` the size of the whole file.
// Errors: a header that is cut, too long or not the JSON that the format prescribes; two tensors of
// one name; an unknown dtype; a shape that does not fit the byte range (or overflows); byte ranges
// that overlap, leave holes, or do not end where the file ends.
Result<std::vector<StoredTensor>> ParseSafetensors(std::span<const std::byte> prefix,
                                                   uint64_t file_size);

// The beginning of a file that stores `tensors` in this order (their offset and size_bytes are not
// looked at): the length, then the header, padded so that the data starts at a multiple of
// `alignment` bytes. Precondition: known dtypes, whole bytes per tensor, no overflow.
std::string SafetensorsPrefix(std::span<const StoredTensor> tensors, size_t alignment = 64);

// Bits of one element of a safetensors dtype; 0 if there is no such dtype.
int DtypeBits(std::string_view dtype);

}  // namespace convene::checkpoint
